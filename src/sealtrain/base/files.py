"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Any, BinaryIO, Final, TypeVar

from sealtrain.errors import (
    AlreadyExists,
    DataInvalid,
    LimitExceeded,
    StorageFailed,
    UsageError,
)

Parsed = TypeVar("Parsed")
_SETTLES_NS = 1_000_000_000
TEMPORARY_SUFFIX = ".tmp"
"""Ends the hidden name of a file that is not complete."""


@contextmanager
def atomic_writer(
    path: Path, *, mode: int = 0o644, overwrite: bool = False, over: Path | None = None
) -> Iterator[BinaryIO]:
    """Open a binary file that takes its name only once complete and on disk.

    Args:
        path: Final name.
        mode: Permission bits of the new file.
        overwrite: Replace an existing file instead of refusing.
        over: A file in the same folder that is no longer needed: its space is written over,
            which costs less than new space. It is gone afterwards, whatever happens. A link is
            not followed, and a file that has another name is not written over.

    Raises:
        AlreadyExists: ``path`` exists and ``overwrite`` is false.
        UsageError: Its folder does not exist, or it is a folder itself.
    """
    _check_place(path, overwrite)
    if path.is_dir():
        raise UsageError(f"{path} is a folder", hint="choose another output")
    # An absolute path stays valid when the working directory changes.
    path = path.absolute()
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}")
    descriptor = None if over is None else _open_to_overwrite(over, temporary)
    if descriptor is None:
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR, mode)
    try:
        with os.fdopen(descriptor, "r+b") as file:
            yield file
            file.flush()
            if over is not None:
                file.truncate()
            os.fsync(file.fileno())
        if overwrite:
            temporary.replace(path)
        else:
            _claim(temporary, path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _open_to_overwrite(over: Path, temporary: Path) -> int | None:
    """Open a file under another name to write over it; ``None``, and it is gone, if it is shared.

    Others may write in the folder: what they put there leads to no other file.
    """
    over.replace(temporary)
    descriptor = None
    with contextlib.suppress(OSError):
        descriptor = os.open(temporary, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
            return descriptor
    if descriptor is not None:
        os.close(descriptor)
    temporary.unlink()
    return None


def atomic_write(path: Path, data: bytes, *, mode: int = 0o644, overwrite: bool = False) -> None:
    """Write ``data`` to ``path`` at once. Raises as ``atomic_writer``."""
    with atomic_writer(path, mode=mode, overwrite=overwrite) as file:
        file.write(data)


@contextmanager
def atomic_folder(path: Path, *, mode: int = 0o700, overwrite: bool = False) -> Iterator[Path]:
    """Fill a hidden sibling folder and rename it to ``path`` when the block ends well.

    Killed at any moment, it leaves at ``path`` what was there before or what was filled. Only where
    a file system cannot exchange two names in one step, nothing may be there after a replacement
    was killed: the next call puts the folder that was there back.

    Args:
        path: Final name.
        mode: Permission bits of the folder. Only its user enters it unless the caller says so.
        overwrite: Replace an existing folder instead of refusing.

    Raises:
        AlreadyExists: ``path`` exists and ``overwrite`` is false.
        UsageError: Its folder does not exist.
    """
    replaced = path.with_name(f".{path.name}.replaced")
    if not path.exists() and replaced.is_dir():
        replaced.rename(path)
    _check_place(path, overwrite)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}")
    temporary.mkdir(mode=mode)
    try:
        yield temporary
        for folder, _, names in os.walk(temporary):
            for name in names:
                sync(Path(folder, name))
            sync(Path(folder))
        if overwrite and path.exists():
            _replace(temporary, path, replaced)
        else:
            _claim_folder(temporary, path)
        sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def make_folder(path: Path) -> Iterator[None]:
    """Make a folder and the ones above it that are missing; on failure they go, if empty.

    Args:
        path: The folder; one that is there stays.

    Raises:
        FileExistsError: Something else is there.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for folder in missing:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def private_file(path: Path) -> BinaryIO:
    """Open a new file that only its user can read. Missing folders are made with the same mode.

    Raises:
        FileExistsError: ``path`` exists.
    """
    for parent in reversed(path.parents):
        if not parent.exists():
            parent.mkdir(mode=0o700)
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0)
    return os.fdopen(os.open(path, flags, 0o600), "wb")


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """Read a whole small file, or what another program writes into a pipe.

    A pipe without a writer is empty: no writer is waited for.

    Raises:
        LimitExceeded: The file is longer than ``max_bytes``.
        DataInvalid: There is no such file.
    """
    with _readable(path), open(path, "rb", opener=_without_waiting) as file:
        return _read_bounded_file(file, path, max_bytes)


def _without_waiting(path: str, flags: int) -> int:
    now = getattr(os, "O_NONBLOCK", 0)  # absent where there are no such pipes
    descriptor = os.open(path, flags | now)
    if now:
        os.set_blocking(descriptor, True)
    return descriptor


def open_regular(path: Path, *, changed: bool = False) -> int:
    """Descriptor of a file that may come from elsewhere, open for reading.

    A pipe is refused without waiting for it.

    Args:
        path: Of the file.
        changed: Open it for writing too; it is made where there is none, and a link is refused.

    Raises:
        DataInvalid: There is no such file, or it is a pipe, a device or a folder.
    """
    # Systems without a flag have nothing that it would protect from.
    names = ("O_BINARY", "O_CLOEXEC", "O_NONBLOCK", *(("O_NOFOLLOW",) if changed else ()))
    flags = sum(getattr(os, name, 0) for name in names)
    try:
        mode = os.O_RDWR | os.O_CREAT if changed else os.O_RDONLY
        descriptor = os.open(path, mode | flags, 0o644)
    except OSError as error:
        raise DataInvalid(f"cannot read {path}: {error.strerror}", hint="check the path") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise DataInvalid(f"{path} is not a regular file", hint="check the path")
    return descriptor


def open_inside(folder: Path, name: PurePosixPath) -> int:
    """Open a regular file below a folder that another process writes into, for reading.

    No link is followed below the folder, and no pipe waited for.

    Args:
        folder: Itself trusted.
        name: Relative; no part of it is ``..``.

    Raises:
        DataInvalid: There is no such file, or a part of its name is a link, or it is a pipe, a
            device or a folder.
    """
    path = folder / name
    if name.is_absolute() or ".." in name.parts or not name.parts:
        raise DataInvalid(f"{name} is no name inside a folder", hint="name a file below it")
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    kinds = [os.O_DIRECTORY] * (len(name.parts) - 1) + [os.O_NONBLOCK]
    try:
        for part, kind in zip(name.parts, kinds, strict=True):
            inner = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | kind, dir_fd=held)
            os.close(held)
            held = inner
        if stat.S_ISREG(os.fstat(held).st_mode):
            return held
    except OSError as error:
        os.close(held)
        raise DataInvalid(f"cannot read {path}: {error.strerror}", hint="check the path") from error
    os.close(held)
    raise DataInvalid(f"{path} is not a regular file", hint="check the path")


def read_regular(path: Path, max_bytes: int) -> bytes:
    """Read a whole small file as ``open_regular`` opens it.

    Raises:
        LimitExceeded: The file is longer than ``max_bytes``.
        DataInvalid: As ``open_regular``.
    """
    with os.fdopen(open_regular(path), "rb") as file:
        return _read_bounded_file(file, path, max_bytes)


def try_lock(descriptor: int) -> bool:
    """Have a file for this process alone, without waiting; whether no other one has it."""
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def system_failure(fault: OSError) -> StorageFailed | None:
    """What the system refused, such as a full disk, without names; ``None`` for a bug of ours."""
    if fault.errno is None:
        return None
    return StorageFailed(
        f"the system refused a file or a connection: {os.strerror(fault.errno)}",
        check="system",
        hint="mend that, then run the command again",
    )


def stamp_of(path: Path, *, clock: Callable[[], int] = time.time_ns) -> tuple[int, ...]:
    """Stamp of a file: at least one number changes when the file is written or replaced.

    A file system tells two moments apart only if they are some milliseconds apart: a file that has
    just changed has another stamp each time it is asked for.

    Args:
        path: Of the file.
        clock: Nanoseconds since 1970.

    Raises:
        DataInvalid: There is no such file.
    """
    with _readable(path):
        found = path.stat()
    now = clock()
    unsettled = now if now - found.st_ctime_ns < _SETTLES_NS else 0
    return (
        found.st_dev,
        found.st_ino,
        found.st_size,
        found.st_mtime_ns,
        found.st_ctime_ns,
        unsettled,
    )


def parsing_once(parse: Callable[[bytes], Parsed], max_bytes: int) -> Callable[[Path], Parsed]:
    """A reader of small files that parses one again only when it has changed (``stamp_of``).

    Args:
        parse: Makes an immutable value of the file's bytes.
        max_bytes: Longest accepted file.

    Returns:
        Path → what is in the file. Raises as ``read_bounded`` and ``parse``.
    """

    @lru_cache(maxsize=4)
    def parse_stamped(path: Path, _stamp: tuple[int, ...]) -> Parsed:
        return parse(read_bounded(path, max_bytes))

    return lambda path: parse_stamped(path, stamp_of(path))


def sync(path: Path) -> None:
    """Have a file's bytes, or the names in a folder, on the disk when this returns.

    Windows gives no descriptor of a folder and writes names down by itself.
    """
    windows = os.name == "nt"
    if windows and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if windows else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def send_to_disk(descriptor: int, offset: int, length: int) -> None:
    """Have written bytes of a file begin their way to the disk, so that a later sync finds less.

    Only a hint: where the system takes none, everything is left to the sync.
    """
    if hasattr(os, "posix_fadvise"):
        # Starts writeback of dirty pages; they stay in the page cache until they are written.
        os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_DONTNEED)


def _read_bounded_file(file: BinaryIO, path: Path, max_bytes: int) -> bytes:
    data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise LimitExceeded(
            f"{path} is too large", got=f"over {max_bytes} bytes", expected=f"at most {max_bytes}"
        )
    return data


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise DataInvalid(f"cannot read {path}: {error.strerror}", hint="check the path") from error


def _check_place(path: Path, overwrite: bool) -> None:
    if not path.parent.is_dir():
        raise UsageError(
            f"the folder {path.parent} does not exist", hint="create it, or choose another output"
        )
    if path.exists() and not overwrite:
        raise _refuse_taken(path)
    if path.exists() and not (path.is_file() or path.is_dir()):
        # Its name would be taken from a device or a pipe that other programs use.
        raise UsageError(f"{path} is no file", hint="choose another output")


def _claim(temporary: Path, path: Path) -> None:
    try:
        # Unlike rename, link never replaces a file that appeared meanwhile.
        os.link(temporary, path)
    except FileExistsError as error:
        raise _refuse_taken(path) from error


def _claim_folder(temporary: Path, path: Path) -> None:
    try:
        # rename replaces a folder only if it is empty.
        temporary.rename(path)
    except OSError as error:
        if path.exists():
            raise _refuse_taken(path) from error
        raise


def _replace(temporary: Path, path: Path, replaced: Path) -> None:
    if exchange_names(temporary, path):  # the replaced folder is deleted with the temporary one
        return
    shutil.rmtree(replaced, ignore_errors=True)
    path.rename(replaced)
    try:
        temporary.rename(path)
    except BaseException:
        replaced.rename(path)
        raise
    shutil.rmtree(replaced)


def _refuse_taken(path: Path) -> AlreadyExists:
    return AlreadyExists(f"{path} already exists", hint="choose another output, or remove it")


_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_RENAME_SWAP: Final = 2
_UNSUPPORTED: Final = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM}


def exchange_names(one: Path, other: Path) -> bool:
    """Exchange two names of one file system, both of which exist.

    Returns:
        ``False`` where the system or file system cannot exchange names; nothing was changed then.

    Raises:
        OSError: The names cannot be exchanged for another reason.
    """
    if sys.platform == "linux":
        names = (_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
        return _is_called("renameat2", *names)
    if sys.platform == "darwin":
        return _is_called("renamex_np", os.fsencode(one), os.fsencode(other), _RENAME_SWAP)
    return False


def _is_called(name: str, *arguments: int | bytes) -> bool:
    function = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if function is None:
        return False
    if function(*arguments) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number))


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
