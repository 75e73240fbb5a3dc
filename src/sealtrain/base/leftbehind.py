"""Folders that end with their process, also where it could not remove them itself.

A process that was killed, or confined, leaves its folder behind. A living one holds a lock on its
own, and its forked children hold it with it, so the next process of the same user removes what
nobody holds. POSIX only.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from pathlib import Path

__all__ = ["held_folder", "remove_left_behind"]

_UNNAMED = ".sealtrain-"


def held_folder(where: Path, prefix: str) -> tuple[Path, int]:
    """Make a folder for this user only; it has its name only once it is locked.

    Args:
        where: The folder to make it in.
        prefix: Its name begins so.

    Returns:
        The folder, and the descriptor that holds it.
    """
    import fcntl

    folder = Path(tempfile.mkdtemp(prefix=_UNNAMED, dir=where))
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return folder.rename(where / f"{prefix}{secrets.token_hex(8)}"), held


def remove_left_behind(where: Path, prefix: str) -> None:
    """Remove the folders of ``held_folder`` that no living process of this user holds.

    Args:
        where: As for ``held_folder``.
        prefix: As for ``held_folder``.
    """
    import fcntl

    for folder in where.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # another user's, or another run removes it, too
            if folder.lstat().st_uid != os.geteuid():
                continue
            held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(held)
