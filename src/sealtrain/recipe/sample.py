"""Propose a phase and columns for a sample of records.

The sample is read on its owner's machine, and nothing of it but names of columns and of classes is
kept: these stand in the recipe, which every owner reads.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from sealtrain.base.canonical import parse_foreign
from sealtrain.errors import DataInvalid, UsageError
from sealtrain.sealing.tabular.delimited import header
from sealtrain.sealing.tabular.plainfile import format_of, opened

__all__ = ["PHASES", "Proposal", "Sample", "propose", "read_sample"]

_MAX_ROWS: Final = 10_000
_MAX_LINE: Final = 16 << 20
_MAX_COLUMNS: Final = 10_000
_MAX_CLASSES: Final = 20

_NAMES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "messages": ("messages", "conversations", "conversation", "turns", "dialogue"),
        "prompt": ("prompt", "question", "instruction", "query", "input", "findings"),
        "completion": ("completion", "answer", "response", "output", "reply"),
        "chosen": ("chosen", "preferred", "accepted"),
        "rejected": ("rejected", "other", "refused"),
        "anchor": ("anchor", "question", "query"),
        "positive": ("positive", "passage", "match"),
        "text": ("text", "content", "letter", "note", "report", "document", "sentence", "body"),
        "label": ("label", "target", "class", "category", "diagnosis", "outcome", "y"),
    }
)
"""What a column of a role is usually called, the likeliest first."""

PHASES: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = MappingProxyType(
    {
        "dpo": (("prompt", "chosen", "rejected"),),
        "embed": (("anchor", "positive"),),
        "sft": (("messages",), ("prompt", "completion")),
        "classify": (("features", "label"), ("text", "label")),
        "cpt": (("text",),),
    }
)
"""Roles of the columns of each phase that can be proposed; the first that fits counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What a sample shows.

    Attributes:
        columns: Their names, in order.
        numeric: Names of those whose values are all numbers.
        classes: Values by column, where there are from 2 to 20 short ones.
        records: How many were read.
    """

    columns: tuple[str, ...]
    numeric: frozenset[str]
    classes: Mapping[str, tuple[str, ...]]
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A phase that fits a sample.

    Attributes:
        phase: Name of the phase.
        columns: Column, or columns of features, by role: as a recipe has them.
        labels: Classes, for ``classify``.
    """

    phase: str
    columns: Mapping[str, str | tuple[str, ...]]
    labels: tuple[str, ...] = ()

    @property
    def of_numbers(self) -> bool:
        """The features are numbers, and the model is a table's."""
        return "features" in self.columns


def read_sample(path: Path) -> Sample:
    """Read the first records of a CSV, JSONL or Parquet file, packed or not, as sealing reads it.

    Raises:
        DataInvalid: It cannot be read, or is of another form.
        ExtraMissing: Parquet without the extra ``seal``.
    """
    readers = {
        **dict.fromkeys((".csv", ".tsv"), _csv),
        **dict.fromkeys((".jsonl", ".ndjson"), _jsonl),
        ".parquet": _parquet,
    }
    form = format_of(path)
    reader = readers.get(form)
    if reader is None:
        raise DataInvalid(
            f"{path} is of a form that no columns are read of",
            got=path.suffix or "no suffix",
            expected=", ".join(readers),
        )
    try:
        return _seen(path, islice(reader(path), _MAX_ROWS))
    except OSError as error:
        raise DataInvalid(f"cannot read {path}: {error.strerror}", hint="check the path") from None
    except (ValueError, csv.Error) as error:
        raise DataInvalid(
            f"{path} is not what its suffix says", got=type(error).__name__, expected=form
        ) from None


def propose(sample: Sample, phase: str | None = None) -> Proposal:
    """The first phase whose columns a sample has.

    Args:
        sample: What was read.
        phase: Propose this one only.

    Raises:
        UsageError: None fits, or no such phase can be proposed.
    """
    if phase is not None and phase not in PHASES:
        raise UsageError(
            "no recipe is proposed for this phase", got=phase, expected=" or ".join(PHASES)
        )
    for name in PHASES if phase is None else (phase,):
        for roles in PHASES[name]:
            found = _fitting(sample, name, roles)
            if found is not None:
                return found
    wanted = [
        " and ".join(roles) for name in PHASES if phase in {None, name} for roles in PHASES[name]
    ]
    raise UsageError(
        "the columns fit no phase" if phase is None else f"the columns do not fit {phase}",
        got=", ".join(sample.columns)[:400],
        expected="columns called such as " + ", or ".join(wanted),
        hint="begin with a ready recipe instead: sealtrain recipes",
    )


def _fitting(sample: Sample, phase: str, roles: tuple[str, ...]) -> Proposal | None:
    columns: dict[str, str | tuple[str, ...]] = {}
    for role in roles:
        if role == "features":
            continue
        named = _column(sample, role)
        if named is None or named in columns.values():
            return None
        columns[role] = named
    labels: tuple[str, ...] = ()
    if "label" in roles:
        label = str(columns["label"])
        labels = sample.classes.get(label, ())
        if not labels:
            return None
        if "features" in roles:
            features = tuple(name for name in sample.columns if name != label)
            if not features or not set(features) <= sample.numeric:
                return None
            columns = {"features": features, "label": label}
    return Proposal(phase=phase, columns=columns, labels=labels)


def _column(sample: Sample, role: str) -> str | None:
    lower = {name.strip().lower(): name for name in reversed(sample.columns)}
    return next((lower[name] for name in _NAMES[role] if name in lower), None)


def _seen(path: Path, records: Iterable[Mapping[str, Any]]) -> Sample:
    columns: dict[str, None] = {}
    texts: dict[str, set[str]] = {}
    worded: set[str] = set()
    count = 0
    for record in records:
        count += 1
        columns |= dict.fromkeys(record)
        if len(columns) > _MAX_COLUMNS:
            raise DataInvalid(f"{path} has too many columns", expected=f"at most {_MAX_COLUMNS}")
        for name, value in record.items():
            if not _is_number(value):
                worded.add(name)
            found = texts.setdefault(name, set())
            if len(found) <= _MAX_CLASSES:
                found.add(_as_class(value))
    if not count:
        raise DataInvalid(f"{path} has no records", got=0, expected="at least one")
    return Sample(
        columns=tuple(columns),
        numeric=frozenset(columns) - worded,
        classes={
            name: tuple(sorted(found))
            for name, found in texts.items()
            if 2 <= len(found) <= _MAX_CLASSES and all(0 < len(text) <= 64 for text in found)
        },
        records=count,
    )


def _is_number(value: Any) -> bool:
    if isinstance(value, str):
        try:
            float(value)
        except ValueError:
            return False
        return True
    return isinstance(value, int | float) and not isinstance(value, bool)


def _as_class(value: Any) -> str:
    """A class's name; no name for what is no word and no whole number."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else ""


def _csv(path: Path) -> Iterator[Mapping[str, Any]]:
    _, delimiter = header(path)
    with opened(path) as file, io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
        rows = csv.DictReader(text, strict=True, delimiter=delimiter)
        for row in rows:
            if None in row or None in row.values():
                raise ValueError("a row of another length")
            yield row


def _jsonl(path: Path) -> Iterator[Mapping[str, Any]]:
    with opened(path) as file:
        while line := file.readline(_MAX_LINE):
            if not line.strip():
                continue
            record = parse_foreign(line)
            if not isinstance(record, dict):
                raise ValueError("a line that is no object")  # noqa: TRY004  # of the file, not of ours
            yield record


def _parquet(path: Path) -> Iterator[Mapping[str, Any]]:
    from sealtrain.base.extras import require_extras

    require_extras("reading Parquet", "seal")
    import pyarrow.parquet

    for batch in pyarrow.parquet.ParquetFile(path).iter_batches(1000):
        yield from batch.to_pylist()
