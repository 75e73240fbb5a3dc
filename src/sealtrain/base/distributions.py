"""The distributions that sealtrain consists of: the core, and the rooms beside it.

This closed table is the only place of the core that names a room's package. What the core needs of
a room it loads by a place ``module:name`` that begins with one of these names; no entry point, and
so nothing that is installed, decides what a lock pins or what a guest may import.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from sealtrain.errors import ExtraMissing

CORE: Final = "sealtrain"
CHAIN: Final = "sealtrain_chain"
"""Owners' decisions on a public chain."""
CONSOLE: Final = "sealtrain_console"
"""What owners see in a browser, and the walk through a run."""
REHEARSAL: Final = "sealtrain_rehearsal"
"""A guest in software, and whole runs on it."""
TOGETHER: Final = "sealtrain_together"
"""Roles of parties that train together, each kind a package; what guests say to each other."""
NODES: Final = "sealtrain_nodes"
"""Roles of the nodes that train one model."""

DISTRIBUTIONS: Final[Mapping[str, str]] = {
    CORE: CORE,
    "sealtrain-chain": CHAIN,
    "sealtrain-console": CONSOLE,
    "sealtrain-nodes": NODES,
    "sealtrain-rehearsal": REHEARSAL,
    "sealtrain-together": TOGETHER,
}
"""Distribution → its top-level package; what a lock pins, by the names of its ``code``."""


def code_folder(checkout: Path, distribution: str) -> Path:
    """The folder of a checkout, or of an unpacked source archive, that holds its package."""
    return checkout / "src" if distribution == CORE else checkout / "packages" / distribution


def load(place: str) -> Any:
    """What is at ``module:name``.

    Raises:
        ExtraMissing: It is of a room that is not installed.
    """
    module, _, name = place.partition(":")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        rooms = {package: room for room, package in DISTRIBUTIONS.items() if room != CORE}
        if error.name not in rooms:
            raise
        raise room_missing(rooms[error.name]) from error


def room_missing(room: str) -> ExtraMissing:
    """The error for a room that is not installed, by the name of its distribution."""
    return ExtraMissing(
        f"this needs {room}, which is not installed",
        check="code",
        got="absent",
        expected=room,
        hint=f"pip install {room}",
    )
