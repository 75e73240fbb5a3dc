"""Forking a process that may have threads."""

from __future__ import annotations

import os
import warnings

__all__ = ["forked"]


def forked() -> int:
    """``os.fork``: 0 in the child, the child's process id in this process.

    Python 3.12 warns of forking beside threads, because what they hold stays held in the child. A
    child made here uses none of it: what it does is bounded, and it ends by ``os._exit``.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()
