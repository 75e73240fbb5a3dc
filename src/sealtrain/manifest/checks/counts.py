"""Part of check 15: what the run log says of records that trained (spec/run-manifest.md §2.5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from sealtrain.errors import EgressRefused
from sealtrain.manifest.errors import ClaimContradicted
from sealtrain.manifest.limits import DATA_COUNTED

if TYPE_CHECKING:
    from sealtrain.consortium.datasets import DatasetManifest
    from sealtrain.manifest.checks.case import Case
    from sealtrain.recipe.lockfile import Lock
    from sealtrain.recipe.recipe import PhaseRecipe

_PARTS: Final = ("whole", "truncated", "filtered", "empty")
_HIDES: Final = ("patient_privacy", "sequence_privacy")
"""Settings of a collaboration whose noise hides records."""

Counts = Mapping[str, int]


def counts_of(entries: Any) -> dict[str, Counts | None]:
    """Dataset id → its counts in a run log, ``None`` where they are not public.

    Args:
        entries: Of a run log, in their forms.
    """
    found: dict[str, Counts | None] = {}
    for entry in entries:
        if entry.get("event") == DATA_COUNTED:
            found |= entry["fields"]
    return found


def counts_public(recipe: PhaseRecipe, records: int | None) -> bool:
    """Whether counts of a dataset may stand in the run log.

    Args:
        recipe: That owners approved.
        records: That the owner's dataset manifest states; ``None`` where it states none.
    """
    promises = (getattr(recipe.collaboration, name, None) for name in _HIDES)
    hides = any(promise is not None for promise in promises)
    return (
        records is not None
        and recipe.release_policy.logs == "structured"
        and recipe.privacy.dp == "none"
        and not hides
    )


def counts_true(case: Case, lock: Lock) -> str:
    """Refuse counts that no guest writes; nothing where a check before refused log or datasets."""
    if case.log is None or case.datasets is None:
        return ""
    listed = [
        dataset_id
        for entry in case.log
        if entry["event"] == DATA_COUNTED
        for dataset_id in entry["fields"]
    ]
    if not listed:
        return ""
    roles = {(dataset.owner, dataset.name): dataset.role for dataset in lock.recipe.datasets}
    trained = {
        dataset.dataset_id: dataset
        for dataset in case.datasets
        if roles.get((dataset.owner, dataset.name)) == "train"
    }
    if sorted(listed) != sorted(trained):
        raise ClaimContradicted(
            "the run log does not count exactly the datasets that were trained on, each once",
            check="counts",
            got=f"{len(listed)} counted",
            expected=f"{len(trained)} trained on",
        )
    for dataset_id, counts in counts_of(case.log).items():
        require_true_counts(trained[dataset_id], counts, lock.recipe)
    public = [counts for counts in counts_of(case.log).values() if counts is not None]
    if not public:
        return "; counts of records not public"
    total = sum(counts["records"] for counts in public)
    out = sum(counts["filtered"] + counts["empty"] for counts in public)
    return f"; {total - out:,} of {total:,} records trained"


def require_true_counts(
    dataset: DatasetManifest, counts: Counts | None, recipe: PhaseRecipe
) -> None:
    """Refuse counts that no guest states of a training dataset.

    Args:
        dataset: As its owner signed it.
        counts: Of its records; ``None`` where they do not leave.
        recipe: That owners approved.

    Raises:
        EgressRefused: They may not leave.
        ClaimContradicted: They are withheld, do not sum up to its records, or none of them trains.
    """
    public = counts_public(recipe, dataset.records)
    if counts is None:
        if public:
            raise ClaimContradicted(
                "counts are withheld that the recipe lets out",
                check="counts",
                owner=dataset.owner,
                dataset=dataset.name,
            )
        return
    if not public:
        raise EgressRefused(
            "counts of records are stated that may not leave",
            check="counts",
            owner=dataset.owner,
            dataset=dataset.name,
            expected="none under privacy, with other logs than structured, or where the owner "
            "publishes no number of records",
        )
    total = sum(counts[part] for part in _PARTS)
    if not total == counts["records"] == dataset.records:
        raise ClaimContradicted(
            "the counts of a dataset are not those of its records",
            check="counts",
            owner=dataset.owner,
            dataset=dataset.name,
            got=f"{total} in parts, {counts['records']} in all",
            expected=str(dataset.records),
        )
    if total and not counts["whole"] + counts["truncated"]:
        raise ClaimContradicted(
            "a dataset of which no record trains begins no training",
            check="counts",
            owner=dataset.owner,
            dataset=dataset.name,
            got="0 trained",
        )
