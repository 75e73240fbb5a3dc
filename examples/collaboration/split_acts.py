"""The parts of a demo of several acts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

CLINICS: Final = ("clinic-a", "clinic-b")
"""Owners of the records that every act trains on."""
DATASETS: Final = [
    *({"owner": clinic, "name": "notes", "role": "train"} for clinic in CLINICS),
    {"owner": CLINICS[0], "name": "check", "role": "test"},
]
"""The datasets in the recipe of every act."""

Say = Callable[[str], None]
"""Called with a line for each step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The result of an act.

    Attributes:
        data: For ``--json``.
        lines: The same for people.
    """

    data: dict[str, Any]
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """A way to split a model, shown by a run.

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
    """Write synthetic records, by ``owner.name`` of ``DATASETS``.

    Args:
        folder: New folder for them.
        record: Draws a record.
        learned: How many each clinic learns from.
        checked: How many the model is tried on.
    """
    folder.mkdir()
    files = {}
    for dataset in DATASETS:
        key = f"{dataset['owner']}.{dataset['name']}"
        drawn = Random(key)  # noqa: S311  # nothing secret
        count = learned if dataset["role"] == "train" else checked
        files[key] = folder / f"{key}.jsonl"
        files[key].write_text("".join(json.dumps(record(drawn)) + "\n" for _ in range(count)))
    return files
