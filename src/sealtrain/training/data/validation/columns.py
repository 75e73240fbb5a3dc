"""Counts over one column of one dataset: what is missing, outside its range, too long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

    from sealtrain.recipe.validation import ColumnRule

CountTokens = Callable[[str], int]


def family(kind: pa.DataType) -> str:
    """Name of a type as a rule writes it; ``other`` for what no rule names."""
    import pyarrow as pa

    tests: dict[str, tuple[Callable[[Any], bool], ...]] = {
        "text": (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
        "boolean": (pa.types.is_boolean,),
        "integer": (pa.types.is_integer,),
        "number": (pa.types.is_floating, pa.types.is_decimal),
        "bytes": (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary),
        "list": (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list),
        "struct": (pa.types.is_struct,),
    }
    for name, checks in tests.items():
        if any(check(kind) for check in checks):
            return name
    return "other"


@dataclass(slots=True)
class ColumnTally:
    """What was counted. Counts only: no value is kept, lengths to two digits.

    Attributes:
        rule: Checked.
        records: Records seen.
        broken: Part of the rule → records that break it.
        lengths: Length to two digits → values that long.
        tokens: Number of tokens to two digits → texts that long.
    """

    rule: ColumnRule
    records: int = 0
    broken: Counter[str] = field(default_factory=Counter)
    lengths: Counter[int] = field(default_factory=Counter)
    tokens: Counter[int] = field(default_factory=Counter)

    def add(self, array: pa.Array, count_tokens: CountTokens | None) -> None:
        """Count a column of a record batch."""
        self.records += len(array)
        self.broken["max_nulls"] += array.null_count
        kind = family(array.type)
        wanted = self.rule.type
        if wanted is not None and kind != wanted and (wanted, kind) != ("number", "integer"):
            self.broken["type"] += len(array)
        present = array.drop_null()
        self._ranges(present, kind)
        self._lengths(present, kind)
        self._values(present, kind)
        if self.rule.max_tokens is not None and count_tokens is not None and kind == "text":
            for text in present.to_pylist():
                count = count_tokens(text)
                self.tokens[_two_digits(count)] += 1
                self.broken["max_tokens"] += count > self.rule.max_tokens

    def _ranges(self, present: pa.Array, kind: str) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        for name, limit, outside in (
            ("min", self.rule.min, pc.less),
            ("max", self.rule.max, pc.greater),
        ):
            if limit is None:
                continue
            if kind not in ("integer", "number"):
                self.broken[name] += len(present)
                continue
            numbers = present.cast(pa.float64(), safe=False)
            # What is no number is within no range.
            wrong = pc.or_(outside(numbers, limit), pc.is_nan(numbers))
            self.broken[name] += pc.sum(wrong).as_py() or 0

    def _lengths(self, present: pa.Array, kind: str) -> None:
        import pyarrow.compute as pc

        measures = {"text": pc.utf8_length, "bytes": pc.binary_length, "list": pc.list_value_length}
        low, high = self.rule.min_length, self.rule.max_length
        if kind not in measures:
            if (low, high) != (None, None):
                self.broken["min_length" if low is not None else "max_length"] += len(present)
            return
        lengths = measures[kind](present)
        for pair in pc.value_counts(lengths):
            self.lengths[_two_digits(pair["values"].as_py())] += pair["counts"].as_py()
        if low is not None:
            self.broken["min_length"] += pc.sum(pc.less(lengths, low)).as_py() or 0
        if high is not None:
            self.broken["max_length"] += pc.sum(pc.greater(lengths, high)).as_py() or 0

    def _values(self, present: pa.Array, kind: str) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.rule.values is None:
            return
        if kind not in ("text", "integer", "boolean"):
            self.broken["values"] += len(present)
            return
        known = pc.is_in(present.cast(pa.string()), pa.array(self.rule.values, pa.string()))
        self.broken["values"] += len(present) - (pc.sum(known).as_py() or 0)


def _two_digits(length: int) -> int:
    """A length to two digits, rounded up."""
    unit: int = 10 ** max(len(str(length)) - 2, 0)
    return -(-length // unit) * unit
