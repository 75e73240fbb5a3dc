"""The place of a dataset that its owner is about to seal in a series (spec/approvals.md §5.2)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sealtrain.base.canonical import JsonValue
from sealtrain.base.models import load_model
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.pin import load_pin
from sealtrain.consortium.datasets import load_dataset_manifest, verify_dataset
from sealtrain.consortium.series import block_of, chain_of, member_digest
from sealtrain.consortium.series_block import SeriesBlock, SuccessorBounds
from sealtrain.errors import UsageError
from sealtrain.owner.owner_files import OwnerFiles, at_each
from sealtrain.recipe.lock import LockedRecipe

if TYPE_CHECKING:
    from sealtrain.consortium.datasets import DatasetManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """What an owner says of a series when it begins.

    Attributes:
        mode: Whether a run reads every member or the newest; ``append`` where left out.
        bounds: What every successor may be; ``None`` without bounds.
    """

    mode: Literal["append", "replace"] | None = None
    bounds: SuccessorBounds | None = None


def place_in_series(
    owner: OwnerFiles,
    name: str,
    deployment: LockedRecipe,
    *,
    after: Path | None = None,
    beginning: Beginning = Beginning(),
) -> SeriesBlock:
    """The place behind the newest member, or the first one.

    Args:
        owner: Whose series it is; its brokers list the members.
        name: Of the series.
        deployment: That the dataset is sealed for.
        after: Sealed member that the new one follows; the newest that the brokers list when
            ``None``, and the first member where they list none.
        beginning: Of a series that begins.

    Raises:
        UsageError: A series that has begun is told how to begin, or ``after`` is in no such series.
        SeriesMismatch: The brokers list no chain.
        SealtrainError: No broker answered.
    """
    last = _find_listed(owner, name, deployment) if after is None else _member(owner, name, after)
    if last is None:
        begins: dict[str, JsonValue] = {
            "name": name,
            "number": 1,
            "mode": beginning.mode or "append",
            "previous": None,
        }
        if beginning.bounds is not None:
            begins["bounds"] = beginning.bounds.to_dict()
        return load_model(SeriesBlock, begins, UsageError, "series")
    block = block_of(last)
    if beginning.bounds is not None or beginning.mode not in (None, block.mode):
        raise UsageError(
            f"the series {name} has begun, and keeps the mode and the bounds of its member 1",
            check="--series",
            got=beginning.mode or "bounds",
            expected=f"{block.mode}, and no bounds",
            hint="leave them out, or begin a series of another name",
        )
    return SeriesBlock(
        name=name, number=block.number + 1, mode=block.mode, previous=member_digest(last)
    )


def _member(owner: OwnerFiles, name: str, after: Path) -> DatasetManifest:
    manifest = load_dataset_manifest(after, owner.keys.public)
    if manifest.series is None or manifest.series.name != name:
        raise UsageError(
            f"{after} is no member of the series {name}",
            check="--after",
            got=manifest.name,
            expected=name,
            hint="name the sealed folder of the newest member",
        )
    return manifest


def _find_listed(owner: OwnerFiles, name: str, deployment: LockedRecipe) -> DatasetManifest | None:
    """The newest member that any of the owner's brokers lists."""
    target = deployment.target
    me = owner.keys.public

    def at(broker: Path) -> tuple[DatasetManifest, ...]:
        with BrokerClient.at(load_pin(broker)) as client:
            listed = client.series(
                me.name, name, app_id=target.app_id, compose_hash=target.compose_hash
            )
        return chain_of(verify_dataset(document.envelope(), me) for document in listed)

    chains = at_each(owner.brokers, at).done.values()
    longest = max(chains, key=len, default=())
    return longest[-1] if longest else None
