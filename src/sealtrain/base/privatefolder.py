"""A folder that only this process fills: each file is written once and stays as it was written.

A file is anonymous memory that the kernel seals once it is complete, so no process alters it, and
it is gone when the last process that inherited it ends, however it ends. The folder holds links to
these files, because libraries open files by name. Children that are forked see the same files. A
process that was killed, or is confined, leaves these links behind; the next one removes them
(``base.privatefolder``).

Where the system has no such memory, the files are ordinary ones in a folder of this user alone.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from sealtrain.errors import LimitExceeded

_NO_ROOM: Final = (errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)
_PREFIX: Final = "sealtrain-copies-"
_NEVER_EXECUTED: Final = 8  # MFD_NOEXEC_SEAL, Linux 6.3
_LONGEST_NAME: Final = 80
_SEALED: Final = ("F_SEAL_SEAL", "F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_WRITE")


class PrivateFolder:
    """See the module. Removed with ``close``, or when the process that made it ends, if it can.

    Attributes:
        path: The folder.
    """

    def __init__(self) -> None:
        self.path, self._descriptors = _make_folder(Path(tempfile.gettempdir()))
        self._finalizer = weakref.finalize(self, _remove, os.getpid(), self.path, self._descriptors)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Open descriptors that a process needs to read the files by their names."""
        return tuple(self._descriptors[1:])  # without the one that holds the folder

    @contextmanager
    def writer(self, name: str) -> Iterator[BinaryIO]:
        """Open a new file for writing; it can be read by its name once the block ends well.

        Args:
            name: Relative POSIX path, without ``..``.

        Raises:
            FileExistsError: The folder has a file of this name.
            LimitExceeded: There is no memory for it, or too many files are open.
        """
        place = self.path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            if hasattr(os, "memfd_create"):
                with self._in_memory(place) as file:
                    yield file
            else:
                with place.open("xb") as file:
                    yield file
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            raise LimitExceeded(
                f"no room to take a copy of {place.name}",
                check="memory",
                got=error.strerror,
                hint="give this machine more memory, or raise its limit of open files",
            ) from error

    @contextmanager
    def _in_memory(self, place: Path) -> Iterator[BinaryIO]:
        import fcntl

        descriptor = _memory(place.name)
        self._descriptors.append(descriptor)
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            yield file
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, sum(getattr(fcntl, name) for name in _SEALED))
        place.symlink_to(f"/proc/self/fd/{descriptor}")

    def show_to_others(self) -> None:
        """Let other users look names up here; a file itself takes a descriptor of its memory."""
        for folder in (self.path, *self.path.rglob("*")):
            if folder.is_dir() and not folder.is_symlink():
                folder.chmod(0o755)

    def close(self) -> None:
        """Remove the folder. Files that are open or mapped stay readable there."""
        self._finalizer()


def _make_folder(where: Path) -> tuple[Path, list[int]]:
    """The folder, and what holds it."""
    if importlib.util.find_spec("fcntl") is None:
        return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=where)), []
    remove_left_behind(where, _PREFIX)
    folder, held = hold_folder(where, _PREFIX)
    return folder, [held]


def _memory(name: str) -> int:
    """A descriptor of new anonymous memory, which is never executed where the kernel knows that."""
    flags = os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC
    try:
        return os.memfd_create(name[:_LONGEST_NAME], flags | _NEVER_EXECUTED)
    except OSError:
        return os.memfd_create(name[:_LONGEST_NAME], flags)


def _remove(maker: int, path: Path, descriptors: list[int]) -> None:
    if os.getpid() != maker:  # a forked child: the folder is its parent's
        return
    shutil.rmtree(path, ignore_errors=True)
    while descriptors:
        os.close(descriptors.pop())


_UNNAMED = ".sealtrain-"


def hold_folder(where: Path, prefix: str) -> tuple[Path, int]:
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
    """Remove the folders of ``hold_folder`` that no living process of this user holds.

    Args:
        where: As for ``hold_folder``.
        prefix: As for ``hold_folder``.
    """
    import fcntl

    for folder in where.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # it is another user's, or another run is removing it
            if folder.lstat().st_uid != os.geteuid():
                continue
            held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(held)
