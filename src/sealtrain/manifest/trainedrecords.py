"""What became of each training dataset's records, for people who look at a run.

The report, the console and the commands show the same counts in the same words. ``read_stated``
reads a manifest of which nothing but the form was checked: it shows what the manifest claims, and
passes over what no guest writes. Check 15 (``checks.counts``) judges the claim.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sealtrain.consortium.datasets import DatasetManifest
from sealtrain.errors import SealtrainError
from sealtrain.manifest.checks.counts import counts_of
from sealtrain.manifest.limits import TEXTS, limits_of_records
from sealtrain.signing.dsse import Envelope
from sealtrain.signing.logevents import fault

if TYPE_CHECKING:
    from sealtrain.manifest.checks.counts import Counts
    from sealtrain.manifest.predicate import Predicate

_WORDS: Final[Mapping[str, str]] = {
    "whole": "whole",
    "truncated": "truncated",
    "filtered": "too long",
    "empty": "nothing to learn",
}


def records_in_words(counted: Mapping[str, Counts | None], dataset_id: str) -> str:
    """What became of the records of a dataset that the recipe trains on.

    Args:
        counted: From ``checks.counts.counts_of``.
        dataset_id: The dataset's.
    """
    if dataset_id not in counted:
        return "not counted"
    counts = counted[dataset_id]
    if counts is None:
        return "not public"
    said = (f"{counts[part]:,} {words}" for part, words in _WORDS.items() if counts[part])
    return ", ".join(said) or "0"


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetRecords:
    """A dataset of role ``train``.

    Attributes:
        owner: Name of its owner.
        name: Name of the dataset.
        counts: As the run log has them; ``None`` where they are not public, or nothing was counted.
        words: The same for a reader.
    """

    owner: str
    name: str
    counts: Counts | None
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedRecords:
    """What a manifest claims of the records that trained.

    Attributes:
        datasets: In the order of the manifest.
        limits: Limits of the manifest that concern records: id → text.
    """

    datasets: tuple[DatasetRecords, ...] = ()
    limits: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "records": [
                {
                    "owner": dataset.owner,
                    "dataset": dataset.name,
                    "counts": None if dataset.counts is None else dict(dataset.counts),
                    "words": dataset.words,
                }
                for dataset in self.datasets
            ],
            "limits_of_records": list(self.limits),
        }

    def lines(self) -> list[str]:
        """A line for each dataset and limit, for the terminal."""
        found = [
            f"records  {dataset.owner}/{dataset.name}: {dataset.words}" for dataset in self.datasets
        ]
        return [*found, *(f"limit    {name}: {text}" for name, text in self.limits.items())]


def read_stated(predicate: Predicate) -> StatedRecords:
    """What a manifest claims of the records that trained; nothing of it is verified.

    Args:
        predicate: Of a manifest that has its form (``manifest.form.read``).
    """
    entries = [
        entry
        for entry in predicate.run_log.entries
        if fault(entry.get("event"), entry.get("fields")) is None
    ]
    counted = counts_of(entries)
    found = tuple(
        DatasetRecords(
            owner=dataset.owner,
            name=dataset.name,
            counts=counted.get(dataset.dataset_id),
            words=records_in_words(counted, dataset.dataset_id),
        )
        for dataset in _list_trained_on(predicate)
    )
    limits = {name: TEXTS[name] for name in limits_of_records(predicate)}
    return StatedRecords(datasets=found, limits=limits)


def _list_trained_on(predicate: Predicate) -> Iterator[DatasetManifest]:
    recipe = predicate.recipe.lock.get("recipe")
    listed = recipe.get("datasets") if isinstance(recipe, Mapping) else None
    trained = {
        (dataset.get("owner"), dataset.get("name"))
        for dataset in (listed if isinstance(listed, list | tuple) else ())
        if isinstance(dataset, Mapping) and dataset.get("role") == "train"
        if isinstance(dataset.get("owner"), str) and isinstance(dataset.get("name"), str)
    }
    for document in predicate.datasets:
        try:
            dataset = DatasetManifest.from_bytes(Envelope.from_dict(document).payload)
        except SealtrainError:  # the check of the datasets refuses it
            continue
        if (dataset.owner, dataset.name) in trained:
            yield dataset
