"""Before the first step, the guest checks the records against the recipe's rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sealtrain.base.canonical import canonical_json
from sealtrain.base.digests import sha256_hex
from sealtrain.base.files import atomic_write
from sealtrain.manifest.checks.counts import counts_public
from sealtrain.manifest.limits import DATA_COUNTED

if TYPE_CHECKING:
    from sealtrain.guest.guestrun import GuestRun
    from sealtrain.guest.key_holder import DataGuest
    from sealtrain.recipe.schema import PhaseRecipe
    from sealtrain.training.data.sources import SealedFolder, Source
    from sealtrain.training.data.validation.columns import CountTokens
    from sealtrain.training.inputs.learnable import RecordTally

REPORT_NAME = "validation.json"
_MOST_COUNTED = 256
"""Datasets of one entry of the run log."""

PublicCounts = dict[str, dict[str, int] | None]
"""Dataset id → its counts, ``None`` where they are not public (spec/run-manifest.md §2.5)."""


def validate_data(run: GuestRun) -> None:
    """Check all records of a run that has rules for them; record in the run log that they hold.

    Raises:
        ValidationFailed: A rule does not hold.
        SealRefused, DataInvalid: A dataset is damaged.
    """
    rules = run.recipe.validation
    if rules is None:
        return
    from sealtrain.training.data.validation.check import check

    noted: dict[str, Any] = {"rules_sha256": sha256_hex(rules.to_bytes())}

    def publish(report: dict[str, Any]) -> None:
        if run.recipe.release_policy.logs != "structured":
            return
        data = canonical_json(report)
        atomic_write(run.settings.out / REPORT_NAME, data, mode=0o600, overwrite=True)
        noted["report_sha256"] = sha256_hex(data)

    counter = token_counter(run.recipe, run.base, run.model)
    check(rules, run.sources, count_tokens=counter, publish=publish)
    run.record("data.validated", noted)


def counts_of_records(run: DataGuest, say: Callable[[str], None]) -> PublicCounts | None:
    """Count what each training dataset of a guest leaves to learn, before the first step.

    Args:
        run: That opened them.
        say: Takes a line for the operator's terminal.

    Returns:
        What may leave of it; ``None`` where the recipe's records are not counted.

    Raises:
        DataInvalid: A dataset has records, and none that leaves anything to learn.
        RecordInvalid, ModelInvalid: A record does not fit the recipe or its model.
    """
    from sealtrain.training.census import census
    from sealtrain.training.inputs.learnable import counts_records

    recipe = run.recipe
    if not counts_records(recipe):
        return None

    def tokenizer() -> Any:
        from sealtrain.training.models.base import build_tokenizer

        return (
            None if recipe.model.tokenizer is None else build_tokenizer(recipe, run.base, run.model)
        )

    return _public(run, census(recipe, run.sources, tokenizer, run.base), say)


def record_counts(
    run: GuestRun, found: Iterable[tuple[Source, RecordTally]], say: Callable[[str], None]
) -> None:
    """Record what each training dataset leaves to learn.

    The counts stand in the run log where they are public (spec/run-manifest.md §2.5); nothing of
    them leaves elsewhere.

    Args:
        run: That begins.
        found: The counts of each training dataset.
        say: Takes a line for the operator's terminal.
    """
    log_counts(run.record, _public(run, found, say))


def log_counts(record: Callable[[str, dict[str, Any]], None], counts: PublicCounts) -> None:
    """Write counts into the run log (spec/run-log.md, *Counted records*).

    Args:
        record: Appends an event to the log.
        counts: Of every training dataset of the run.
    """
    listed = list(counts.items())
    for at in range(0, len(listed), _MOST_COUNTED):
        record(DATA_COUNTED, dict(listed[at : at + _MOST_COUNTED]))


def _public(
    run: DataGuest, found: Iterable[tuple[Source, RecordTally]], say: Callable[[str], None]
) -> PublicCounts:
    recipe = run.recipe
    stated = {
        dataset.manifest.dataset_id: dataset.manifest.records for dataset in run.sealed_datasets
    }
    counted: PublicCounts = {}
    for source, tally in found:
        dataset_id = source.dataset.dataset_id
        public = counts_public(recipe, stated.get(dataset_id))
        counted[dataset_id] = tally.to_dict() if public else None
        if public and tally.trained < tally.records:
            left = tally.filtered + tally.empty
            say(
                f"{source.owner}/{source.name}: {left:,} of {tally.records:,} records leave "
                "nothing to learn and do not train"
            )
    return counted


def token_counter(
    recipe: PhaseRecipe, base: Path, sealed: SealedFolder | None = None
) -> CountTokens | None:
    """Counts tokens of a text, where a rule asks for it."""
    rules = recipe.validation
    if rules is None or all(rule.max_tokens is None for rule in rules.columns.values()):
        return None
    from sealtrain.training.models.base import build_tokenizer

    tokenizer: Any = build_tokenizer(recipe, base, sealed)
    return lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"])
