"""Read and write at a place in an open file, on systems with and without a call for it.

Where there is none (Windows), the place is set first, and one lock keeps threads that share a
descriptor apart. Callers do not rely on the descriptor's own place.
"""

from __future__ import annotations

import os
from threading import Lock
from typing import Any

__all__ = ["read_into", "write_from"]

_setting = Lock()


def read_into(descriptor: int, view: memoryview[Any], offset: int) -> int:
    """Fill ``view`` from ``offset``; returns how many bytes came, 0 at the end of the file."""
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [view], offset)
    with _setting:
        os.lseek(descriptor, offset, os.SEEK_SET)
        found = os.read(descriptor, len(view))
    view[: len(found)] = found
    return len(found)


def write_from(descriptor: int, view: memoryview[Any], offset: int) -> int:
    """Write ``view`` at ``offset``; returns how many bytes were taken."""
    if hasattr(os, "pwrite"):
        return os.pwrite(descriptor, view, offset)
    with _setting:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.write(descriptor, view)
