"""Another user of this machine reads this machine's Python, as on a guest's disk."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from sealtrain.base.version import own_folders
from sealtrain.guest import kernel_calls

_NEW_MOUNTS = 0x20000
_BIND, _RECURSIVELY, _PRIVATE = 1 << 12, 1 << 14, 1 << 18


def show_python(*further: Path) -> None:
    """Have other users read Python, its packages and sealtrain, in mounts of this process alone.

    A folder on the way that is closed to them, such as root's home, is covered by one in memory
    that has nothing else: pytest closes its own whenever another session begins. Only user 0 does
    this, in a process that a test forked.

    Args:
        further: Folders that stay where they are too.
    """
    kernel_calls.check_call(kernel_calls.LIBC.unshare(_NEW_MOUNTS), "unshare")
    kernel_calls.mount("none", "/", None, _RECURSIVELY | _PRIVATE)
    names = [sys.base_prefix, sys.prefix, *own_folders(["sealtrain"]).values(), *further]
    places = list(dict.fromkeys(Path(os.path.realpath(name)) for name in names))
    covers = {place: _first_closed(place) for place in places}
    opened = {place: os.open(place, os.O_PATH) for place in places if covers[place] is not None}
    for cover in dict.fromkeys(covers[place] for place in opened):
        kernel_calls.mount("tmpfs", str(cover), "tmpfs", 0, "mode=755")
    for place, descriptor in opened.items():
        with contextlib.suppress(FileExistsError):
            place.mkdir(parents=True)
        kernel_calls.mount(f"/proc/self/fd/{descriptor}", str(place), None, _BIND | _RECURSIVELY)
        os.close(descriptor)


def _first_closed(place: Path) -> Path | None:
    """The outermost folder above a place that is not open to others; ``None`` where all are."""
    ways = [folder for folder in place.parents if folder.stat().st_mode & 0o005 != 0o005]
    return ways[-1] if ways else None
