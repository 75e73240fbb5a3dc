"""From counts to what may be said: which rules are broken, and the report.

1. Shares are compared exactly.
2. A broken rule is named by the recipe's words: owner, dataset, column, part of the rule.
3. The report gives counts as multiples of the recipe's floor and none below it; quantiles of
   lengths to two digits, and only where the floor lies on either side of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from sealtrain.recipe.validation import Validation
from sealtrain.training.data.validation.columns import ColumnTally
from sealtrain.training.data.validation.measure import DatasetTally, Findings

QUANTILES = (5, 50, 95)


def list_broken_rules(findings: Findings) -> list[str]:
    """Names of the rules that do not hold, in the recipe's order; empty when all do."""
    rules = findings.rules
    broken: list[str] = []
    for tally in findings.datasets:
        where = f"{tally.owner}.{tally.name}"
        broken += (f"{where}: column {name} is missing" for name in sorted(tally.missing))
        broken += (f"{where}: {rule}" for rule in _list_broken(rules, tally))
    if rules.duplicates is not None:
        for number, owner in enumerate(findings.owners):
            if findings.repeats.within(number).value > rules.duplicates.within_owner:
                broken.append(f"{owner}: duplicates.within_owner")
            if findings.repeats.across(number).value > rules.duplicates.across_owners:
                broken.append(f"{owner}: duplicates.across_owners")
    if rules.label is not None:
        if findings.unlabelled:
            broken.append("label.values")
        total = findings.labels.total() + findings.unlabelled
        broken += (
            f"label.min_share: {value}"
            for value in rules.label.values
            if findings.labels[value] < rules.label.min_share * total
        )
    return broken


def _list_broken(rules: Validation, tally: DatasetTally) -> Iterator[str]:
    if rules.min_records is not None and tally.records < rules.min_records:
        yield "min_records"
    for name, column in tally.columns.items():
        for part in sorted(column.broken):
            allowed = column.rule.max_nulls * column.records if part == "max_nulls" else 0
            if column.broken[part] > allowed:
                yield f"columns.{name}.{part}"
    if rules.personal is not None and tally.persons > rules.personal.max_share * tally.records:
        yield "personal.max_share"


def report(findings: Findings) -> dict[str, Any]:
    """What may be said of the data, as JSON. Holds no value of a record and no small count."""
    rules, floor = findings.rules, findings.rules.floor
    document: dict[str, Any] = {
        "version": 1,
        "counts_in_multiples_of": floor,
        "datasets": [_dataset(tally, rules) for tally in findings.datasets],
        "broken": list_broken_rules(findings),
    }
    if rules.duplicates is not None:
        document["duplicates"] = {
            owner: {
                "within_owner": _coarse(findings.repeats.within(number).found, floor),
                "across_owners": _coarse(findings.repeats.across(number).found, floor),
                "estimated": findings.repeats.sampled,
            }
            for number, owner in enumerate(findings.owners)
        }
    if rules.label is not None:
        document["labels"] = {
            value: _coarse(findings.labels[value], floor) for value in rules.label.values
        }
    return document


def _dataset(tally: DatasetTally, rules: Validation) -> dict[str, Any]:
    floor = rules.floor
    found: dict[str, Any] = {
        "owner": tally.owner,
        "name": tally.name,
        "role": tally.role,
        "records": _coarse(tally.records, floor),
        "columns": {name: _column(column, floor) for name, column in tally.columns.items()},
    }
    if rules.personal is not None:
        found["personal"] = {
            kind: _coarse(tally.personal[kind], floor) for kind in rules.personal.kinds
        }
    return found


def _column(column: ColumnTally, floor: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "nulls": _coarse(column.broken["max_nulls"], floor),
        "lengths": _quantiles(column.lengths, floor),
    }
    if column.tokens:
        found["tokens"] = _quantiles(column.tokens, floor)
    return found


def _coarse(count: int, floor: int) -> int | None:
    """A multiple of the floor, not above the count; ``None`` for any count below the floor."""
    return count // floor * floor if count >= floor else None


def _quantiles(lengths: Counter[int], floor: int) -> dict[str, int] | None:
    total = lengths.total()
    if total * min(QUANTILES) < floor * 100:
        return None
    found: dict[str, int] = {}
    passed = 0
    pending = list(QUANTILES)
    for length in sorted(lengths):
        passed += lengths[length]
        while pending and passed * 100 >= pending[0] * total:
            found[f"p{pending.pop(0)}"] = length
    return found
