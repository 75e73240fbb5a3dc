"""Forking a process that may have threads, and ending a child with its parent."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import warnings
from typing import Final

__all__ = ["end_with_parent", "forked"]

_PR_SET_PDEATHSIG: Final = 1


def end_with_parent() -> bool:
    """Have the kernel kill this process, a child made by ``multiprocessing``, when its parent ends.

    Returns:
        ``False`` where the parent ended before the kernel was asked.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    parent = multiprocessing.parent_process()
    return parent is not None and os.getppid() == parent.pid


def forked() -> int:
    """``os.fork``: 0 in the child, the child's process id in this process.

    Python 3.12 warns of forking beside threads, because what they hold stays held in the child. A
    child made here uses none of it: what it does is bounded, and it ends by ``os._exit``.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()
