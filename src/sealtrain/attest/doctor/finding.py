"""Findings about a machine: each names one thing, its state and its remedy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sealtrain.attest.report_data import Binding

Level = Literal["ok", "note", "refused", "missing"]
"""``refused``: a policy that compares it refuses it. ``note``: no policy refuses it."""

ASKED = Binding("doctor", {})
"""Answers no conversation: every release has another purpose and a fresh challenge."""

_MAX_TEXT = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One property of the machine.

    Attributes:
        topic: ``tee``, ``agent``, ``gpu``, ``clock``, ``memory``, ``software`` or ``policy``.
        name: What was looked at.
        level: How it stands.
        found: What is there.
        refused: What would be refused for it, or leak; empty where nothing is.
        fix: What to do; empty where nothing is.
    """

    topic: str
    name: str
    level: Level
    found: str
    refused: str = ""
    fix: str = ""

    def to_dict(self) -> dict[str, str]:
        """JSON form."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def text_of(path: Path) -> str:
    """Up to a mebibyte of a file, nothing where it cannot be read; the kernel's have no length."""
    try:
        with path.open("rb", buffering=0) as file:
            return file.read(_MAX_TEXT).decode("utf-8", "replace")
    except OSError:
        return ""
