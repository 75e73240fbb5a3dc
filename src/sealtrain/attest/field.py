"""A field of a file with what it means, and how long values are shown to people."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sealtrain.base.clock import to_rfc3339
from sealtrain.base.visible_text import escape_hidden

CPU = "cpu0"
"""The part of a file that the processor signed."""

_LONG_HEX = re.compile(r"[0-9a-fA-F]{33,}")
_HEAD, _TAIL, _WIDTH = 16, 8, 96


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One value: what it is called, what it says, what that means in one sentence."""

    part: str
    name: str
    value: str
    meaning: str

    def to_dict(self) -> dict[str, str]:
        """JSON form."""
        return {
            "part": self.part,
            "name": self.name,
            "value": self.value,
            "meaning": self.meaning,
        }


def rows_of(rows: Iterable[tuple[str, str, str]], part: str = CPU) -> Iterator[Field]:
    """Fields of one part from names, values and meanings."""
    for name, value, meaning in rows:
        yield Field(part=part, name=name, value=value, meaning=meaning)


def on_off(state: bool) -> str:
    """A bit in words."""
    return "on" if state else "off"


def shorten(value: str) -> str:
    """A value in visible characters: the ends of long hex, the beginning of long text."""
    text = _LONG_HEX.sub(lambda found: f"{found[0][:_HEAD]}…{found[0][-_TAIL:]}", value)
    text = escape_hidden(text)
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"


def time_of(seconds: int) -> str:
    """Seconds since 1970 as a date, where it has one."""
    try:
        return to_rfc3339(seconds)
    except (ValueError, OverflowError, OSError):
        return f"{seconds} s"
