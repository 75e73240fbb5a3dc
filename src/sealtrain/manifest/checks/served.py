"""Part of check 15: the rows that the recipe's code was given (spec/run-manifest.md §2.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sealtrain.errors import EgressRefused
from sealtrain.manifest.checks.counts import counts_public
from sealtrain.manifest.errors import ClaimContradicted
from sealtrain.manifest.limits import ROWS_SERVED

if TYPE_CHECKING:
    from sealtrain.consortium.datasets import DatasetManifest
    from sealtrain.manifest.checks.case import Case
    from sealtrain.recipe.lockfile import Lock

_OPENED = ("train", "test")


def rows_of(entries: Any) -> list[tuple[str, int | None]]:
    """Datasets of a run log with the rows served of each, ``None`` where they are not public.

    Args:
        entries: Of a run log, in their forms.
    """
    return [
        pair
        for entry in entries
        if entry.get("event") == ROWS_SERVED
        for pair in entry["fields"].items()
    ]


def rows_true(case: Case, lock: Lock) -> str:
    """Refuse rows that no guest writes; nothing where a check before refused log or datasets."""
    if case.log is None or case.datasets is None:
        return ""
    listed = rows_of(case.log)
    if not listed:
        return ""
    roles = {(dataset.owner, dataset.name): dataset.role for dataset in lock.recipe.datasets}
    opened = {
        dataset.dataset_id: dataset
        for dataset in case.datasets
        if roles.get((dataset.owner, dataset.name)) in _OPENED
    }
    if sorted(dataset_id for dataset_id, _ in listed) != sorted(opened):
        raise ClaimContradicted(
            "the run log does not name exactly the datasets that were opened, each once",
            check="rows served",
            got=f"{len(listed)} named",
            expected=f"{len(opened)} opened",
        )
    for dataset_id, rows in listed:
        _may_stand(opened[dataset_id], rows, lock)
    public = [rows for _, rows in listed if rows is not None]
    return f"; {sum(public):,} rows served" if public else "; rows served not public"


def _may_stand(dataset: DatasetManifest, rows: int | None, lock: Lock) -> None:
    public = counts_public(lock.recipe, dataset.records)
    if rows is None and public:
        raise ClaimContradicted(
            "the run log withholds rows that the recipe lets out",
            check="rows served",
            owner=dataset.owner,
            dataset=dataset.name,
        )
    if rows is not None and not public:
        raise EgressRefused(
            "the run log holds a number of rows that may not leave",
            check="rows served",
            owner=dataset.owner,
            dataset=dataset.name,
            expected="none under privacy, with other logs than structured, or where the owner "
            "publishes no number of records",
        )
