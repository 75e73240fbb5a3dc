"""What a demo of several acts is made of."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

__all__ = ["CLINICS", "DATASETS", "Act", "Played", "Say", "made_up"]

CLINICS: Final = ("clinic-a", "clinic-b")
"""Whose records every act learns from."""
DATASETS: Final = [
    *({"owner": clinic, "name": "notes", "role": "train"} for clinic in CLINICS),
    {"owner": CLINICS[0], "name": "check", "role": "test"},
]
"""In the recipe of every act."""

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


def made_up(
    folder: Path, record: Callable[[Random], dict[str, str]], *, learned: int, checked: int
) -> dict[str, Path]:
    """Records that nobody ever wrote, by ``owner.name`` of ``DATASETS``.

    Args:
        folder: New folder for them.
        record: Draws one.
        learned: How many each clinic learns from.
        checked: How many the model is tried on.
    """
    folder.mkdir()
    files = {}
    for one in DATASETS:
        key = f"{one['owner']}.{one['name']}"
        drawn = Random(key)  # noqa: S311  # nothing secret
        count = learned if one["role"] == "train" else checked
        files[key] = folder / f"{key}.jsonl"
        files[key].write_text("".join(json.dumps(record(drawn)) + "\n" for _ in range(count)))
    return files
