"""What the text of a CSV means, by what its recipe reads and its owner declares.

Source: spec/sealed-file.md §7, Tables. A CSV has no types. Each rule here turns the text of a cell
into other text, of which the reader then makes values:

1. In a column that the recipe reads as numbers, spaces around a value are dropped, and an empty
   cell or a word for a missing value (``NA``, ``n/a``, ``-`` and the like) is a missing value.
2. With ``decimals: comma`` a comma there is a decimal point, and a point is refused.
3. In a column of dates, a date of the declared pattern becomes days since 1970-01-01 where the
   recipe reads numbers, with the time of day as their fraction, and ISO 8601 elsewhere.

Nothing is guessed: a cell that the rules do not cover is refused by its column and record.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from sealtrain.errors import UsageError
from sealtrain.sealing.errors import RecordInvalid

if TYPE_CHECKING:
    import pyarrow as pa

DECIMALS: Final = ("point", "comma")
MISSING: Final = frozenset(
    {"", "#n/a", "-", "--", ".", "?", "n/a", "na", "nan", "none", "null", "nil"}
)
"""Words for a missing number, in small letters."""
_TOKENS: Final = {
    "YYYY": r"(?P<year>[0-9]{4})",
    "MM": r"(?P<month>[0-9]{1,2})",
    "DD": r"(?P<day>[0-9]{1,2})",
    "hh": r"(?P<hour>[0-9]{1,2})",
    "mm": r"(?P<minute>[0-9]{2})",
    "ss": r"(?P<second>[0-9]{2})",
}
_PARTS: Final = re.compile("|".join(_TOKENS))
_EPOCH: Final = datetime.datetime(1970, 1, 1)  # local days, as they were written
_DAY: Final = datetime.timedelta(days=1)
_NUMBER: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_COMMA: Final = re.compile(r"[+-]?([0-9]+,?[0-9]*|,[0-9]+)([eE][+-]?[0-9]+)?")
_BOOLEANS: Final = ("true", "false")


def is_missing(text: str) -> bool:
    """Whether a cell of a column of numbers holds none."""
    return text.strip().lower() in MISSING


def is_number(text: str, decimals: str = "point") -> bool:
    """Whether a cell is a number, as rule 1 and 2 read it."""
    form = _COMMA if decimals == "comma" else _NUMBER
    return form.fullmatch(text.strip()) is not None


COMMON_DATES: Final = (
    *("YYYY-MM-DD", "YYYY/MM/DD", "DD/MM/YYYY", "MM/DD/YYYY", "DD.MM.YYYY", "DD-MM-YYYY"),
    *("YYYY-MM-DD hh:mm:ss", "YYYY-MM-DDThh:mm:ss", "YYYY-MM-DD hh:mm", "YYYY-MM-DDThh:mm"),
    *("DD/MM/YYYY hh:mm", "MM/DD/YYYY hh:mm", "DD.MM.YYYY hh:mm"),
    *("DD/MM/YYYY hh:mm:ss", "MM/DD/YYYY hh:mm:ss", "DD.MM.YYYY hh:mm:ss"),
)
"""Patterns of dates that a sample is tried with."""
_PERCENT: Final = re.compile(r"[+-]?[0-9]+([.,][0-9]+)?\s*%")
_THOUSANDS: Final = re.compile(r"[+-]?[0-9]{1,3}([.,' \u00a0\u202f\u2019][0-9]{3})+([.,][0-9]+)?")
_OTHER_DATE: Final = re.compile(
    r"[0-9]{1,2}([./-])[0-9]{1,2}\1([0-9]{2}|[0-9]{4})\b.{0,20}"  # a year of two digits, AM, PM
    r"|[0-9]{4}([./-])[0-9]{1,2}\3[0-9]{1,2}[T ].{4,32}"  # a zone, a fraction of a second
    r"|[0-9]{1,2}[. -]{1,2}[^\W\d]{3,12}\.?[. -]{1,2}[0-9]{2,4}\b.{0,20}"  # a month's name
    r"|[^\W\d]{3,12}\.? [0-9]{1,2},? [0-9]{4}\b.{0,20}"
)
_TIME: Final = re.compile(r"[0-9]{1,3}:[0-9]{2}(:[0-9]{2}([.,][0-9]+)?)?( ?[AaPp]\.?[Mm]\.?)?")
_LIMIT: Final = re.compile(r"([<>=~\u2264\u2265\u2248]{1,2})\s*[+-]?[0-9]+([.,][0-9]+)?")
_YES_NO: Final = frozenset(
    {
        *("yes", "no", "y", "n", "true", "false", "t", "f", "ja", "nein", "j"),
        *("oui", "non", "si", "s\u00ed", "vrai", "faux", "wahr", "falsch"),
    }
)
_SIGNS: Final = {0x2212: "-", 0x2013: "-", 0xFF0B: "+", 0x066B: ".", 0xFF0E: "."}
"""Signs of numbers that other programs write, and the ordinary ones."""
_UNIT: Final = re.compile(r"[^0-9]{0,8}[+-]?[0-9]+([.,][0-9]+)?[^0-9]{1,16}|[^0-9+-]{1,8}[0-9.,]+")


def kind_of_cell(text: str) -> tuple[str, str]:
    """What stands where a number is read, and what its owner can do: never the cell's own words.

    Args:
        text: Of a cell that is no number.
    """
    text = text.strip()
    if any(is_date(text, pattern) for pattern in COMMON_DATES):
        return (
            "a date",
            "declare the pattern of its dates: sealtrain seal --dates 'COLUMN=DD/MM/YYYY'",
        )
    if _OTHER_DATE.fullmatch(text):
        return (
            "a date of a form that no pattern declares",
            "write it as YYYY-MM-DD, or YYYY-MM-DD hh:mm:ss: the year with four digits, the month "
            "as a number, no zone and no fraction of a second",
        )
    if _TIME.fullmatch(text):
        return "a time of day", "write it as a number, such as minutes since midnight"
    if text.lower() in _YES_NO:
        return "a word for yes or no", "write 1 and 0, or true and false, in the whole column"
    if _LIMIT.fullmatch(text):
        return (
            "a limit in place of a number",
            "write the number that stands for such a value, or leave the cell empty",
        )
    if _in_ordinary_signs(text) != text and is_number(_in_ordinary_signs(text)):
        return "a number in other signs", "write it with the digits 0-9 and the signs + - ."
    if _PERCENT.fullmatch(text):
        return "a percentage", "write the number alone, without the percent sign"
    if _THOUSANDS.fullmatch(text):
        hint = "leave separators of thousands out: 1234.5, or 1234,5 with --decimals comma"
        return "a number with separators of thousands", hint
    if _UNIT.fullmatch(text):
        hint = "write the number alone; its unit belongs into the name of the column"
        return "a number with a unit or other words", hint
    return (
        "no number",
        "correct the record, or leave the cell empty; a line of totals or notes is no record",
    )


def _in_ordinary_signs(text: str) -> str:
    """A number of another script in ASCII."""
    told = text.translate(_SIGNS)
    return "".join(str(int(char)) if char.isdecimal() else char for char in told)


def read_dates(declared: Iterable[str]) -> dict[str, str]:
    """Column → pattern of its dates, of words ``COLUMN=PATTERN``.

    Raises:
        UsageError: A word is of another form, or names a column again.
    """
    found: dict[str, str] = {}
    for word in declared:
        column, mark, pattern = word.rpartition("=")
        if not mark or not column or column in found:
            raise UsageError(
                "dates are declared once for each column",
                check="--dates",
                got=word[:80],
                expected="COLUMN=PATTERN, such as Admission=DD/MM/YYYY",
            )
        found[column] = pattern
    return found


@dataclass(frozen=True, slots=True)
class _Pattern:
    """A declared form of dates, such as ``DD/MM/YYYY``."""

    text: str
    form: re.Pattern[str]
    timed: bool

    @classmethod
    def of(cls, text: str) -> _Pattern:
        """Read the pattern.

        Raises:
            UsageError: It does not name year, month and day once each, or is of other letters.
        """
        found = _PARTS.findall(text)
        rest = _PARTS.sub("", text)
        whole = {"YYYY", "MM", "DD"} <= set(found) and len(set(found)) == len(found)
        timed = "hh" in found
        if (
            not whole
            or ("mm" in found or "ss" in found) != timed
            or not re.fullmatch(r"[-/. :,T]{0,16}", rest)
        ):
            raise UsageError(
                "no pattern of dates", check="--dates", got=text[:40],
                expected="YYYY, MM and DD once each, and hh, mm, ss for a time of day",
                hint="such as 'Admission=DD/MM/YYYY' or 'Admission=YYYY-MM-DD hh:mm:ss'; a year "
                "of two digits has no century: write it with four",
            )  # fmt: skip
        parts = re.split(f"({_PARTS.pattern})", text)
        form = "".join(_TOKENS.get(part, re.escape(part)) for part in parts)
        if "" in parts[2:-1]:  # without a mark between two numbers, 2024111 could be two days
            form = form.replace("{1,2}", "{2}")
        return cls(text, re.compile(form), timed)

    def read(self, text: str, *, as_number: bool) -> str | None:
        """The date in other words; ``None`` where it is no date of this pattern."""
        found = self.form.fullmatch(text)
        if found is None:
            return None
        try:
            parts = {name: int(value) for name, value in found.groupdict().items()}
            when = datetime.datetime(
                parts["year"],
                parts["month"],
                parts["day"],
                parts.get("hour", 0),
                parts.get("minute", 0),
                parts.get("second", 0),
            )
        except ValueError:
            return None
        if as_number:
            days = (when - _EPOCH) / _DAY
            return repr(days) if self.timed else str(int(days))
        return when.isoformat() if self.timed else when.date().isoformat()


@cache
def _pattern(text: str) -> _Pattern:
    return _Pattern.of(text)


def is_date(text: str, pattern: str) -> bool:
    """Whether a cell is a date, as rule 3 reads it."""
    return _pattern(pattern).read(text.strip(), as_number=False) is not None


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """How the text of a CSV is read.

    Attributes:
        text: Columns that the recipe reads as text; they stay as they are.
        numbers: Columns that it reads as numbers.
        decimals: One of ``DECIMALS``: the mark before the fraction of a number there.
        dates: Column → pattern of its dates, as ``DD/MM/YYYY``.
    """

    text: frozenset[str] = frozenset()
    numbers: frozenset[str] = frozenset()
    decimals: str = "point"
    dates: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        """Refuse what cannot be declared.

        Raises:
            UsageError: Other decimals, or a pattern that is none.
        """
        if self.decimals not in DECIMALS:
            raise UsageError(
                "unknown decimals", check="--decimals", got=self.decimals[:40],
                expected=" or ".join(DECIMALS),
            )  # fmt: skip
        _ = self._patterns

    @cached_property
    def _patterns(self) -> dict[str, _Pattern]:
        return {column: _Pattern.of(text) for column, text in self.dates.items()}

    @property
    def declared(self) -> bool:
        """Whether the owner said anything about the file."""
        return self.decimals != "point" or bool(self.dates)

    def convert(self, name: str, first: int, column: str, values: pa.Array) -> pa.Array:
        """The text of a column, as the rules read it.

        Args:
            name: Of the file.
            first: Records before these.
            column: Its name in the file.
            values: Text, none null.

        Raises:
            RecordInvalid: A cell is no date, or a number with another mark than declared.
        """
        pattern = self._patterns.get(column)
        if column not in self.numbers and pattern is None:
            return values
        import pyarrow as pa

        if pattern is None and (plain := self._plain(values)) is not None:
            return plain

        def read(text: str) -> str | None:
            stripped = text.strip()
            if stripped.lower() in MISSING:
                return ""
            if pattern is not None:
                return pattern.read(stripped, as_number=column in self.numbers)
            if stripped.lower() in _BOOLEANS:
                return stripped
            if self.decimals == "comma":
                comma = _COMMA.fullmatch(stripped) is not None
                return stripped.replace(",", ".") if comma else None
            return stripped if _NUMBER.fullmatch(stripped) else None

        # A value that comes often is read once.
        coded = values.dictionary_encode()
        told = [read(text) for text in coded.dictionary.to_pylist()]
        if None in told:
            bad = {place for place, text in enumerate(told) if text is None}
            row = next(row for row, code in enumerate(coded.indices.to_pylist()) if code in bad)
            raise self._unreadable(name, first + row + 1, column, values[row].as_py())
        return pa.array(told, pa.string()).take(coded.indices)

    def _plain(self, values: pa.Array) -> pa.Array | None:
        """The values, where each is a finite number or empty; ``None`` for any other column."""
        import pyarrow as pa
        import pyarrow.compute as pc

        told = values
        if self.decimals == "comma":
            if pc.any(pc.match_substring(values, ".")).as_py():
                return None
            told = pc.replace_substring(values, ",", ".")
        try:
            numbers = pc.replace_substring_regex(told, "^$", "0").cast(pa.float64())
        except pa.ArrowInvalid:
            return None
        return told if pc.all(pc.is_finite(numbers)).as_py() else None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "text": sorted(self.text),
            "numbers": sorted(self.numbers),
            "decimals": self.decimals,
            "dates": dict(self.dates),
        }

    def _unreadable(self, name: str, number: int, column: str, text: str) -> RecordInvalid:
        """The refusal of a cell, which says what is declared and never what the cell holds."""
        pattern = self._patterns.get(column)
        if pattern is not None:
            what, expected = "no date", pattern.text
            hint = "correct the record, or declare another pattern: --dates 'COLUMN=PATTERN'"
            if any(is_date(text, other) for other in COMMON_DATES):
                what = "a date of another pattern"
                hint = "write the dates of a column in one pattern, and declare that one"
        elif self.decimals == "comma" and is_number(text):
            what, expected = "a number with a decimal point", "a number such as 1234,5"
            hint = "correct the record, or leave --decimals comma out"
        elif self.decimals == "comma":
            what, hint = kind_of_cell(text)
            expected = "a number such as 1234,5, or an empty cell"
        elif is_number(text, "comma"):
            what, expected = "a number with a decimal comma", "a number such as 1234.5"
            hint = "declare it: sealtrain seal --decimals comma"
        else:
            what, hint = kind_of_cell(text)
            expected = "a number such as 1234.5, or an empty cell"
        return RecordInvalid(
            f"{name}: record {number} holds {what} in column {column[:128]}",
            check="record",
            column=column,
            got=f"record {number}",
            expected=expected,
            hint=hint,
        )


AS_IT_STANDS: Final = Conversion()
"""Nothing is read by a recipe, and nothing declared."""
