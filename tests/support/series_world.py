"""Series of one owner's datasets in a ``ReleaseWorld``: honest members, and what attackers sign."""

from __future__ import annotations

from typing import Any

from release_world import ReleaseWorld, SealedSet
from world import OWNERS

from sealtrain.consortium.datasets import DatasetManifest
from sealtrain.consortium.series import member_digest
from sealtrain.consortium.series_block import SeriesBlock
from sealtrain.consortium.standing_terms import ApprovedSeries, StandingTerms

A, B, C = OWNERS
NAME = "biopsies"


def manifest_of(sealed: SealedSet) -> DatasetManifest:
    return DatasetManifest.from_bytes(sealed.envelope.payload)


def block(number: int, before: SealedSet | None, **changed: Any) -> SeriesBlock:
    """The place of a member behind another one, with changes."""
    previous = None if before is None else member_digest(manifest_of(before))
    fields = {"name": NAME, "number": number, "mode": "append", "previous": previous} | changed
    return SeriesBlock.model_validate(fields)


def sealed_member(
    world: ReleaseWorld, number: int, before: SealedSet | None, owner: str = C, **changed: Any
) -> SealedSet:
    """A member as its owner seals it; not registered. Changes of its block, or of its manifest."""
    names = SeriesBlock.model_fields.keys()
    of_block = {name: changed.pop(name) for name in tuple(changed) if name in names}
    return world.seal(owner, series=block(number, before, **of_block), **changed)


def reads_series(recipe: dict[str, Any]) -> None:
    """C's data of a recipe are a series."""
    (dataset,) = (dataset for dataset in recipe["datasets"] if dataset["owner"] == C)
    dataset["series"] = dataset.pop("name")


def use_series(world: ReleaseWorld, **first: Any) -> SealedSet:
    """Make the world's recipe one that reads a series of C, whose member 1 is registered."""
    world.locked = world.lock(reads_series)
    for owner in (A, B):
        world.sealed[owner] = world.seal(owner)
        world.register(world.sealed[owner])
    world.sealed[C] = sealed_member(world, 1, None, **first)
    world.register(world.sealed[C])
    return world.sealed[C]


def follow(world: ReleaseWorld, before: SealedSet, number: int, **changed: Any) -> SealedSet:
    """Register the successor of a member of C."""
    found = sealed_member(world, number, before, **changed)
    world.register(found)
    return found


def standing(runs: int, *, epsilon: float | None = None, first: SealedSet | None = None) -> Any:
    """Terms of a standing approval, of the series that begins with ``first``."""
    fields: dict[str, Any] = {"runs": runs}
    if epsilon is not None:
        fields["epsilon"] = epsilon
    if first is not None:
        digest = member_digest(manifest_of(first))
        fields["series"] = (ApprovedSeries(name=NAME, first=digest),)
    return StandingTerms.model_validate(fields)
