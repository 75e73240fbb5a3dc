"""Where the warm processes of one play of the suite are, for all of pytest's workers.

Pytest's own process makes a folder and names it to its workers in ``SEALTRAIN_WARM``. The worker
that first needs a warm process starts it there (``warm.Warm``), and the others find it. Standard
input of each is a pipe whose writing end pytest's own process holds: the warm processes end when
that process does, however it ends.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

VARIABLE = "SEALTRAIN_WARM"
"""Names the folder to workers."""
PIPE = "held"
"""The pipe's name in the folder."""


def hold_places(config: pytest.Config) -> None:
    """Make the folder and hold its pipe until pytest ends, unless a process above does."""
    if VARIABLE not in os.environ:
        folder, release = _hold()
        os.environ[VARIABLE] = str(folder)
        config.add_cleanup(lambda: (os.environ.pop(VARIABLE), release()))


@cache
def find_places() -> Path:
    """The folder; a program that is not pytest holds one of its own until it ends."""
    if VARIABLE in os.environ:
        return Path(os.environ[VARIABLE])
    folder, release = _hold()
    atexit.register(release)
    return folder


def _hold() -> tuple[Path, Callable[[], None]]:
    folder = Path(tempfile.mkdtemp(prefix="warm-"))
    os.mkfifo(folder / PIPE)
    held = os.open(folder / PIPE, os.O_RDWR)

    def release() -> None:
        os.close(held)
        shutil.rmtree(folder, ignore_errors=True)  # a warm process may end this moment

    return folder, release
