"""Two names that change places in one step, where the file system can."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from pathlib import Path
from typing import Final

__all__ = ["exchanged"]

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_RENAME_SWAP: Final = 2
_UNSUPPORTED: Final = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM}


def exchanged(one: Path, other: Path) -> bool:
    """Exchange two names of one file system, both of which exist.

    Returns:
        Whether it was done. Not every system and file system can; then nothing was changed.

    Raises:
        OSError: The names cannot be exchanged for another reason.
    """
    if sys.platform == "linux":
        names = (_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
        return _called("renameat2", *names)
    if sys.platform == "darwin":
        return _called("renamex_np", os.fsencode(one), os.fsencode(other), _RENAME_SWAP)
    return False


def _called(name: str, *arguments: int | bytes) -> bool:
    function = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if function is None:
        return False
    if function(*arguments) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number))
