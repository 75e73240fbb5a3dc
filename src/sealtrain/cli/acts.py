"""What a demo of several acts is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Act", "Played", "Say"]

Say = Callable[[str], None]
"""Told of each step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What an act showed.

    Attributes:
        data: For ``--json``.
        lines: The same for people.
    """

    data: dict[str, Any]
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One way to split, shown by a run.

    Attributes:
        name: Of its folder, and for ``--act``.
        title: What happens in it.
        play: Does it, in a folder that is new.
    """

    name: str
    title: str
    play: Callable[[Path, Say], Played]
