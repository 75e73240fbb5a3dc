"""Calls of Linux that Python has none of, for first programs of guests and enclaves (x86-64)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Collection
from pathlib import Path
from typing import Final

EXISTS, NO_DEVICE = 17, 19
"""``EEXIST``, ``ENODEV``: a module is there, or the machine has nothing for it."""
LIBC: Final = ctypes.CDLL(None, use_errno=True)
_FINIT_MODULE: Final = 313


def mount(source: str, target: str, kind: str | None, flags: int = 0, options: str = "") -> None:
    """Mount a file system, or move one.

    Raises:
        OSError: The kernel refused.
    """
    name = None if kind is None else kind.encode()
    done = LIBC.mount(
        source.encode(), target.encode(), name, ctypes.c_ulong(flags), options.encode() or None
    )
    check_call(done, target)


def load_module(path: Path, parameters: str = "", *, unless: Collection[int]) -> None:
    """Load a module of the kernel.

    Args:
        path: Of the module.
        parameters: Words for it, as ``finit_module`` takes them.
        unless: Errors that are none, such as ``EXISTS``.

    Raises:
        OSError: The kernel refused.
    """
    with path.open("rb") as file:
        done = LIBC.syscall(_FINIT_MODULE, file.fileno(), parameters.encode(), 0)
    if done and ctypes.get_errno() not in unless:
        check_call(done, str(path))


def check_call(done: int, what: str) -> None:
    """Refuse the result of a call that failed.

    Raises:
        OSError: It is not 0.
    """
    if done:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
