"""Propose a phase and columns for a sample of records.

The sample is read on its owner's machine, and nothing of it but names of columns and of classes is
kept: these stand in the recipe, which every owner reads.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from sealtrain.base.canonical import parse_foreign
from sealtrain.base.suggestion import nearest
from sealtrain.errors import DataInvalid, UsageError
from sealtrain.sealing.errors import RecordInvalid
from sealtrain.sealing.tabular.conversion import (
    COMMON_DATES,
    is_date,
    is_missing,
    is_number,
    kind_of_cell,
)
from sealtrain.sealing.tabular.delimited import header, open_text, refuse_length
from sealtrain.sealing.tabular.plainfile import format_of, open_plain

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
        file: Its name.
        columns: Their names, in order.
        numeric: Names of those whose values are all numbers, but for missing ones.
        commas: Names of those whose values are such numbers with a decimal comma.
        dates: Patterns that fit every value, by the column's name.
        gaps: Names of those of which values are missing.
        classes: Values by column, where there are from 2 to 20 short ones.
        odd: By column, the record that made it no column of numbers or dates, what stands there,
            and what its owner can do.
        records: How many were read.
    """

    file: str
    columns: tuple[str, ...]
    numeric: frozenset[str]
    commas: frozenset[str]
    dates: Mapping[str, tuple[str, ...]]
    gaps: frozenset[str]
    classes: Mapping[str, tuple[str, ...]]
    odd: Mapping[str, tuple[int, str, str]]
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A phase that fits a sample.

    Attributes:
        phase: Name of the phase.
        columns: Column, or columns of features, by role: as a recipe has them.
        labels: Classes, for ``classify``.
        seal_as: What an owner says of such a file when it is sealed: words of ``sealtrain seal``.
        gaps: Features of which values are missing.
    """

    phase: str
    columns: Mapping[str, str | tuple[str, ...]]
    labels: tuple[str, ...] = ()
    seal_as: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()

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
        return _look_at(path, islice(reader(path), _MAX_ROWS))
    except OSError as error:
        raise DataInvalid(f"cannot read {path}: {error.strerror}", hint="check the path") from None
    except (ValueError, csv.Error) as error:
        raise DataInvalid(
            f"{path} is not what its suffix says", got=type(error).__name__, expected=form
        ) from None


def propose(
    sample: Sample,
    phase: str | None = None,
    named: Mapping[str, str | tuple[str, ...]] = MappingProxyType({}),
) -> Proposal:
    """The first phase whose columns a sample has.

    Args:
        sample: What was read.
        phase: Propose this one only.
        named: Column, or columns of ``features``, by role, where its owner says which they are;
            spaces around a name, and small or capital letters, need not be those of the file.

    Raises:
        UsageError: None fits, no such phase can be proposed, or the sample has no such column.
    """
    named = {role: _find_named(sample, role, name) for role, name in named.items()}
    if phase is not None and phase not in PHASES:
        raise UsageError(
            "no recipe is proposed for this phase", got=phase, expected=" or ".join(PHASES)
        )
    for name in PHASES if phase is None else (phase,):
        for roles in PHASES[name]:
            found = _fitting(sample, name, roles, named)
            if found is not None:
                return found
    options = [
        tuple(map(_option, roles))
        for name in PHASES
        if phase in {None, name}
        for roles in PHASES[name]
    ]
    given = [_option(role) for role in named]
    if not any(set(given) <= set(known) for known in options):
        who = "no phase reads" if phase is None else f"{phase} does not read"
        sayable = [" and ".join(known) for known in options if set(known) <= _OPTIONS]
        raise UsageError(
            f"{who} these columns together",
            got=" and ".join(given),
            expected=", or ".join(sayable),
            hint="leave one of them out",
        )
    wanted = [
        " and ".join(roles) for name in PHASES if phase in {None, name} for roles in PHASES[name]
    ]
    raise UsageError(
        "the columns fit no phase" if phase is None else f"the columns do not fit {phase}",
        got=", ".join(sample.columns)[:400],
        expected="columns called such as " + ", or ".join(wanted),
        hint="say which columns they are, such as --text NAME --label NAME; or begin with a ready "
        "recipe instead: sealtrain recipes",
    )


_OPTIONS: Final = frozenset({"--text", "--label", "--feature", "--prompt", "--completion"})


def _option(role: str) -> str:
    """The option of ``sealtrain init`` that names the column of a role."""
    return f"--{'feature' if role == 'features' else role}"


def _find_named(sample: Sample, role: str, name: str | tuple[str, ...]) -> str | tuple[str, ...]:
    """The columns that an owner named, as the sample has them.

    Raises:
        UsageError: The sample has no such column, or what is a label has no few values.
    """
    if isinstance(name, tuple):
        return tuple(str(_find_named(sample, role, part)) for part in name)
    option = _option(role)
    like = {column.strip().lower(): column for column in reversed(sample.columns)}
    found = name if name in sample.columns else like.get(name.strip().lower())
    if found is None:
        meant = nearest(name, list(sample.columns))
        raise UsageError(
            "the sample has no such column",
            check=option,
            got=name[:128],
            expected=", ".join(sample.columns)[:400],
            hint=f"did you mean {meant.strip()}?"
            if meant
            else "copy the name out of the first row",
        )
    if role == "label" and found not in sample.classes:
        raise UsageError(
            "a column of labels has a few short values in the sample, each a class",
            check=option,
            got=found[:128],
            expected=f"2 to {_MAX_CLASSES} different values of up to 64 characters",
            hint="name another column, or a sample in which every class occurs",
        )
    if role == "features" and not _is_feature(sample, found):
        got, hint = f"column {found[:128]}", "name another column, or read text: --text NAME"
        if found in sample.odd:
            record, what, hint = sample.odd[found]
            got = f"{sample.file}: record {record} holds {what} in column {found[:128]}"
        raise UsageError(
            "a feature is a number or a date in every record, or missing",
            check=option,
            got=got,
            hint=hint,
        )
    return found


def _is_feature(sample: Sample, name: str) -> bool:
    return name in sample.numeric | sample.commas or bool(sample.dates.get(name))


def _seal_words(sample: Sample, features: Iterable[str]) -> tuple[str, ...]:
    """What ``sealtrain seal`` is told of a file with such features.

    Raises:
        UsageError: The sample does not say which of several patterns its dates have, or it has
            decimals with points and commas.
    """
    features = tuple(features)
    comma = [name for name in features if name in sample.commas - sample.numeric]
    point = [name for name in features if name in sample.numeric - sample.commas]
    if comma and point:
        raise UsageError(
            "the features have decimals of two kinds", check="--feature",
            got=f"{comma[0]}: comma, {point[0]}: point", expected="one kind in a file",
        )  # fmt: skip
    words = ["--decimals", "comma"] if comma else []
    for name in features:
        patterns = () if name in sample.numeric | sample.commas else sample.dates[name]
        if len(patterns) > 1:
            raise UsageError(
                "the sample does not say which of its numbers is the day of a date",
                check="--feature",
                got=name[:128],
                expected=" or ".join(patterns),
                hint="give a sample with a day after the 12th",
            )
        words += ["--dates", f"{name}={patterns[0]}"] if patterns else []
    return tuple(words)


def _fitting(
    sample: Sample,
    phase: str,
    roles: tuple[str, ...],
    named: Mapping[str, str | tuple[str, ...]],
) -> Proposal | None:
    if not set(named) <= set(roles):
        return None
    columns: dict[str, str | tuple[str, ...]] = {}
    for role in roles:
        if role == "features":
            continue
        found = named.get(role) or _column(sample, role)
        if found is None or found in columns.values():
            return None
        columns[role] = found
    labels: tuple[str, ...] = ()
    if "label" in roles:
        label = str(columns["label"])
        labels = sample.classes.get(label, ())
        if not labels:
            return None
        if "features" in roles:
            features = named.get("features") or tuple(
                name for name in sample.columns if name != label
            )
            if not features or not set(features) <= sample.numeric | (
                set(features) if "features" in named else set()
            ):
                return None
            return Proposal(
                phase=phase,
                columns={"features": tuple(features), "label": label},
                labels=labels,
                seal_as=_seal_words(sample, features),
                gaps=tuple(name for name in features if name in sample.gaps),
            )
    return Proposal(phase=phase, columns=columns, labels=labels)


def _column(sample: Sample, role: str) -> str | None:
    lower = {name.strip().lower(): name for name in reversed(sample.columns)}
    return next((lower[name] for name in _NAMES[role] if name in lower), None)


def _look_at(path: Path, records: Iterable[Mapping[str, Any]]) -> Sample:
    columns: dict[str, _Seen] = {}
    count = 0
    for record in records:
        count += 1
        if len(columns.keys() | record.keys()) > _MAX_COLUMNS:
            raise DataInvalid(f"{path} has too many columns", expected=f"at most {_MAX_COLUMNS}")
        for name, value in record.items():
            columns.setdefault(name, _Seen()).add(value, count)
    if not count:
        raise DataInvalid(f"{path} has no records", got=0, expected="at least one")

    def those(what: Callable[[_Seen], bool]) -> frozenset[str]:
        return frozenset(name for name, seen in columns.items() if what(seen))

    return Sample(
        file=path.name,
        columns=tuple(columns),
        numeric=those(lambda seen: seen.point and seen.filled),
        commas=those(lambda seen: seen.comma and seen.filled),
        dates={name: seen.dates for name, seen in columns.items() if seen.dates and seen.filled},
        gaps=those(lambda seen: seen.gap),
        classes={
            name: tuple(sorted(seen.classes))
            for name, seen in columns.items()
            if 2 <= len(seen.classes) <= _MAX_CLASSES
            and all(0 < len(text) <= 64 for text in seen.classes)
        },
        odd={name: seen.odd for name, seen in columns.items() if seen.odd is not None},
        records=count,
    )


@dataclass(slots=True)
class _Seen:
    """What was seen of one column."""

    point: bool = True
    comma: bool = True
    gap: bool = False
    filled: bool = False
    dates: tuple[str, ...] = COMMON_DATES
    classes: set[str] = field(default_factory=set)
    odd: tuple[int, str, str] | None = None

    def add(self, value: Any, record: int) -> None:
        """Take in the value of a record, counted from 1."""
        absent = isinstance(value, float) and math.isnan(value)
        if value is None or absent or (isinstance(value, str) and not value.strip()):
            self.gap = True
            return
        if len(self.classes) <= _MAX_CLASSES:
            self.classes.add(_as_class(value))
        text = value if isinstance(value, str) else None
        if text is not None and is_missing(text):
            self.gap = True
            return
        self.filled = True
        if text is None:
            number = isinstance(value, int | float) and not isinstance(value, bool)
            self.point = self.point and number
            self.comma, self.dates = False, ()
            return
        before = self.point or self.comma or bool(self.dates)
        self.point = self.point and is_number(text)
        self.comma = self.comma and is_number(text, "comma")
        self.dates = tuple(date for date in self.dates if is_date(text, date))
        if before and not (self.point or self.comma or self.dates):
            self.odd = (record, *_explain(text))


def similar_labels(labels: Sequence[str]) -> list[tuple[str, ...]]:
    """Labels that are likely one class each: they differ by case or spaces alone."""
    alike: dict[str, list[str]] = {}
    for label in labels:
        alike.setdefault(" ".join(label.casefold().split()), []).append(label)
    return [tuple(names) for names in alike.values() if len(names) > 1]


def _explain(text: str) -> tuple[str, str]:
    """What the value is that ends a column's being one of numbers or dates, and what to do."""
    if is_number(text) or is_number(text, "comma"):
        hint = "write all numbers of a column alike: 1234.5, or 1234,5"
        return "a number, where others are dates or numbers of another form", hint
    if any(is_date(text, pattern) for pattern in COMMON_DATES):
        hint = "write all dates of a column in one pattern"
        return "a date, where others are numbers or dates of another pattern", hint
    return kind_of_cell(text)


def _as_class(value: Any) -> str:
    """A class's name; no name for what is no word, whole number or boolean."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return str(int(value))
    return ""


def _csv(path: Path) -> Iterator[Mapping[str, Any]]:
    _, delimiter = header(path)
    with open_text(path) as file, io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
        rows = csv.reader(text, strict=True, delimiter=delimiter)
        number = 0
        try:
            names = next(rows)
            for number, row in enumerate(filter(None, rows), 2):
                if len(row) != len(names):
                    raise refuse_length(path.name, number, len(row), len(names))
                yield dict(zip(names, row, strict=True))
        except csv.Error:
            raise RecordInvalid(
                f"{path.name}: row {max(number, 1) + 1} has a quote that the file does not close, "
                "or one inside a field",
                check="record",
                hint='close the quote, or write it twice inside a quoted field: ""',
            ) from None


def _jsonl(path: Path) -> Iterator[Mapping[str, Any]]:
    with open_plain(path) as file:
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
