"""Read a sample of records: its columns, what kind of values they hold, and what is odd in them.

The sample is read on its owner's machine; of its values nothing but classes and stand-ins is kept.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

from sealtrain.base.canonical import parse_foreign
from sealtrain.errors import DataInvalid
from sealtrain.sealing.errors import RecordInvalid
from sealtrain.sealing.tabular.conversion import (
    COMMON_DATES,
    is_date,
    is_missing,
    is_number,
    kind_of_cell,
)
from sealtrain.sealing.tabular.delimited import (
    header,
    open_text,
    refuse_encoding,
    refuse_length,
)
from sealtrain.sealing.tabular.jsonarray import is_array, read_texts
from sealtrain.sealing.tabular.jsontypes import explain_refusal
from sealtrain.sealing.tabular.plainfile import format_of, open_plain, unreadable

_MAX_ROWS: Final = 10_000
_MAX_LINE: Final = 16 << 20
_MAX_COLUMNS: Final = 10_000
MAX_CLASSES: Final = 20
_STAND_INS: Final = frozenset(
    {-1.0, *(sign * (10.0**digits - 1) for digits in range(2, 6) for sign in (1, -1))}
)
"""Numbers that stand for a missing one in many tables: 999, -9999 and the like."""
_BOOLEANS: Final = ("true", "false")
_GROUPED: Final = re.compile(r"[+-]?[1-9][0-9]{0,2}[.,][0-9]{3}")
"""One thousand with a separator, or a decimal fraction of three digits."""


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
        grouped: Names of those of which each number could have a separator of thousands.
        stand_ins: By column, numbers far from the others that may stand for a missing one.
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
    grouped: frozenset[str]
    stand_ins: Mapping[str, tuple[str, ...]]
    records: int


def read_sample(path: Path) -> Sample:
    """Read the first records of a CSV, JSONL or Parquet file, packed or not, as sealing reads it.

    Raises:
        DataInvalid: It cannot be read, or is of another form.
        ExtraMissing: Parquet without the extra ``seal``.
    """
    readers = {
        **dict.fromkeys((".csv", ".tsv"), _csv),
        **dict.fromkeys((".jsonl", ".ndjson"), _jsonl),
        ".json": _json,
        ".parquet": _parquet,
    }
    form = format_of(path)
    reader = readers.get(form)
    if reader is None:
        kind, advice = unreadable(path) or ("of no form that columns are read of", "check its name")
        raise DataInvalid(
            f"{path} is {kind}",
            got=path.suffix or "no suffix",
            expected=", ".join(readers),
            hint=advice,
        )
    try:
        return _look_at(path, islice(reader(path), _MAX_ROWS))
    except OSError as error:
        raise DataInvalid(f"cannot read {path}: {error.strerror}", hint="check the path") from None
    except (ValueError, csv.Error) as error:
        raise DataInvalid(
            f"{path} is not what its suffix says", got=type(error).__name__, expected=form
        ) from None


def _look_at(path: Path, records: Iterable[Mapping[str, Any]]) -> Sample:
    columns: dict[str, _SeenColumn] = {}
    count = 0
    for record in records:
        count += 1
        if len(columns.keys() | record.keys()) > _MAX_COLUMNS:
            raise DataInvalid(f"{path} has too many columns", expected=f"at most {_MAX_COLUMNS}")
        for name, value in record.items():
            columns.setdefault(name, _SeenColumn()).add(value, count)
    if not count:
        raise DataInvalid(f"{path} has no records", got=0, expected="at least one")

    def those(what: Callable[[_SeenColumn], bool]) -> frozenset[str]:
        return frozenset(name for name, seen in columns.items() if what(seen))

    return Sample(
        file=path.name,
        columns=tuple(columns),
        numeric=those(lambda seen: seen.point and seen.filled and not seen.mixed),
        commas=those(lambda seen: seen.comma and seen.filled),
        dates={name: seen.dates for name, seen in columns.items() if seen.dates and seen.filled},
        gaps=those(lambda seen: seen.gap),
        classes={
            name: tuple(sorted(seen.classes))
            for name, seen in columns.items()
            if 2 <= len(seen.classes) <= MAX_CLASSES
            and all(0 < len(text) <= 64 for text in seen.classes)
        },
        odd={name: seen.odd for name, seen in columns.items() if seen.odd is not None},
        grouped=those(lambda seen: seen.grouped and seen.filled),
        stand_ins={name: told for name, seen in columns.items() if (told := seen.list_stand_ins())},
        records=count,
    )


@dataclass(slots=True)
class _SeenColumn:
    """What was seen of one column."""

    point: bool = True
    comma: bool = True
    gap: bool = False
    filled: bool = False
    dates: tuple[str, ...] = COMMON_DATES
    classes: set[str] = field(default_factory=set)
    odd: tuple[int, str, str] | None = None
    grouped: bool = True
    booleans: int = 0
    numbers: int = 0
    lowest: float = math.inf
    highest: float = -math.inf
    stand_ins: Counter[float] = field(default_factory=Counter)

    @property
    def mixed(self) -> bool:
        """Whether it has numbers and booleans, which are of no one type."""
        return bool(self.booleans and self.numbers)

    def list_stand_ins(self) -> tuple[str, ...]:
        """Numbers that come several times and lie far beyond all others."""
        if not (self.point or self.comma) or self.lowest > self.highest:
            return ()
        size = max(abs(self.lowest), abs(self.highest), 1.0)
        return tuple(
            f"{number:.0f}"
            for number, times in sorted(self.stand_ins.items())
            if times > 1
            and (
                abs(number) > 5 * size or (number < 0 <= self.lowest and (number < -1 or size > 2))
            )
        )

    def _count(self, number: float) -> None:
        self.numbers += 1
        if number in _STAND_INS:
            self.stand_ins[number] += 1
        elif math.isfinite(number):
            self.lowest, self.highest = min(self.lowest, number), max(self.highest, number)

    def add(self, value: Any, record: int) -> None:
        """Take in the value of a record, counted from 1."""
        absent = isinstance(value, float) and math.isnan(value)
        if value is None or absent or (isinstance(value, str) and not value.strip()):
            self.gap = True
            return
        if len(self.classes) <= MAX_CLASSES:
            self.classes.add(_as_class(value))
        text = value if isinstance(value, str) else None
        if text is not None and is_missing(text):
            self.gap = True
            return
        self.filled = True
        if text is None:
            self.point = self.point and isinstance(value, int | float)
            self.comma, self.dates, self.grouped = False, (), False
            if isinstance(value, bool):
                self.booleans += 1
            elif self.point:
                self._count(float(value))
            return
        before = self.point or self.comma or bool(self.dates)
        self.grouped = self.grouped and _GROUPED.fullmatch(text.strip()) is not None
        if text.strip().lower() in _BOOLEANS:
            self.booleans += 1
            self.comma, self.dates = False, ()
            if not self.point and before:
                self.odd = (record, *_explain(text))
            return
        self.point = self.point and is_number(text)
        self.comma = self.comma and is_number(text, "comma")
        self.dates = tuple(date for date in self.dates if is_date(text, date))
        if before and not (self.point or self.comma or self.dates):
            self.odd = (record, *_explain(text))
        elif self.point or self.comma:
            self._count(float(text.strip().replace(",", ".")))


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
        except UnicodeDecodeError:
            raise refuse_encoding(path) from None
        except csv.Error:
            raise RecordInvalid(
                f"{path.name}: row {max(number, 1) + 1} has a quote that the file does not close, "
                "or one inside a field",
                check="record",
                hint='close the quote, or write it twice inside a quoted field: ""',
            ) from None


def _jsonl(path: Path) -> Iterator[Mapping[str, Any]]:
    with open_plain(path) as file:
        number = 0
        while line := file.readline(_MAX_LINE):
            if not line.strip():
                continue
            number += 1
            if len(line) == _MAX_LINE:
                raise RecordInvalid(
                    f"{path.name}: record {number} is too long for a sample",
                    check="record",
                    expected=f"at most {_MAX_LINE} bytes",
                    hint="give a sample without it",
                )
            yield _parse(path, number, line)


def _json(path: Path) -> Iterator[Mapping[str, Any]]:
    if not is_array(path):
        yield from _jsonl(path)
        return
    for number, text in enumerate(read_texts(path), 1):
        yield _parse(path, number, text.encode())


def _parse(path: Path, number: int, line: bytes) -> dict[str, Any]:
    """A record.

    Raises:
        RecordInvalid: It is no JSON object.
    """
    try:
        record = parse_foreign(line)
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise explain_refusal(path.name, number - 1, [line])
    return record


def _parquet(path: Path) -> Iterator[Mapping[str, Any]]:
    from sealtrain.base.extras import require_extras

    require_extras("reading Parquet", "seal")
    import pyarrow.parquet

    from sealtrain.sealing.tabular.columnar import hide_content, parquet_schema

    path.stat()  # raises for a file that is not there
    parquet_schema(path)
    with hide_content(path, "Parquet"), pyarrow.parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(1000):
            yield from batch.to_pylist()
