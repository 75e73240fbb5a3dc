"""Durations as people write them: ``90s``, ``15m``, ``2h``, ``3d``."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any, Final, Literal

import click

Unit = Literal["s", "m", "h", "d"]

_SECONDS: Final[dict[str, int]] = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_FORM: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)([smhd]?)")
_NAMES: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_FORMS: Final = "a number and s, m, h or d without a space, such as 90s, 15m, 2.5h or 3d"
_LONGEST: Final = 3650 * 86400
"""Ten years, in seconds: no option waits longer, and no clock or socket is asked for more."""


class Duration(click.ParamType[int | float]):
    """A duration with a unit; the value is a number of the option's own unit.

    Args:
        unit: Of the value, and of a number without one.
        least: Shortest that is taken, in that unit.
        most: Longest; ten years where ``None``.
        whole: Whether the value is a whole number.
    """

    name = "duration"

    def __init__(
        self, unit: Unit, *, least: float = 0, most: float | None = None, whole: bool = True
    ) -> None:
        self.unit: Unit = unit
        self.least = least
        self.most = most
        self.whole = whole

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """As it stands in the help."""
        return f"DURATION[{self.unit}]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | float:
        """A number of the option's unit; a default is one already."""
        if isinstance(value, int | float):
            return value
        found = _FORM.fullmatch(value.strip())
        if found is None:
            self.fail(f"{value[:40]!r} is no duration: write {_FORMS}", param, ctx)
        number, unit = found.groups()
        seconds = Fraction(number) * _SECONDS[unit or self.unit]
        amount = seconds / _SECONDS[self.unit]
        shortest, longest = _spell(self.least, self.unit), _spell(self._most, self.unit)
        if not self.least <= amount <= self._most:
            self.fail(f"{value!r} is not from {shortest} to {longest}: write {_FORMS}", param, ctx)
        if self.whole and amount.denominator != 1:
            self.fail(f"{value!r} is no whole number of {_NAMES[self.unit]}", param, ctx)
        return int(amount) if self.whole else float(amount)

    @property
    def _most(self) -> float:
        return _LONGEST / _SECONDS[self.unit] if self.most is None else self.most


def _spell(amount: float, unit: Unit) -> str:
    """A duration in the largest unit of which it is a whole number."""
    seconds = round(amount * _SECONDS[unit])
    found = next(name for name in ("d", "h", "m", "s") if seconds % _SECONDS[name] == 0)
    return f"{seconds // _SECONDS[found]}{found}" if seconds else f"0{unit}"
