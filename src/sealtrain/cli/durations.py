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


class Duration(click.ParamType[int | float]):
    """A duration with a unit; the value is a number of the option's own unit.

    Args:
        unit: Of the value, and of a number without one.
        least: Shortest that is taken, in that unit.
        most: Longest.
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
            self.fail(f"{value[:40]!r} is no duration such as 90s, 15m, 2h or 3d", param, ctx)
        number, unit = found.groups()
        amount = Fraction(number) * _SECONDS[unit or self.unit] / _SECONDS[self.unit]
        if self.whole and amount.denominator != 1:
            self.fail(f"{value!r} is no whole number of {_NAMES[self.unit]}", param, ctx)
        if amount < self.least or (self.most is not None and amount > self.most):
            longest = "" if self.most is None else f" and at most {self.most:g}{self.unit}"
            self.fail(f"{value!r} is not at least {self.least:g}{self.unit}{longest}", param, ctx)
        return int(amount) if self.whole else float(amount)
