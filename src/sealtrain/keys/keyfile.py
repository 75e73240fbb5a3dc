"""Files that hold secrets: made once with mode 0600, read only if no other user can read them.

Reading refuses 1. a symbolic link or anything but a regular file, 2. another user's file, 3. any
permission for group or others, 4. more than ``max_bytes``. Writing never replaces a file. Windows
has neither users nor permissions of this kind: there the folder has to be the user's own.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

from sealtrain.base.files import atomic_write
from sealtrain.errors import AlreadyExists, KeyFileInvalid

_FLAGS: Final = os.O_RDONLY | sum(
    getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY")
)
"""Windows does not have the first three, and translates line ends without the last."""


def read_secret_file(path: Path, *, max_bytes: int) -> bytes:
    """Read a secret file's bytes.

    Raises:
        KeyFileInvalid: No such file, or one of the module's checks fails.
    """
    link = KeyFileInvalid(f"key file is a symbolic link: {path}", check="key file")
    if not hasattr(os, "O_NOFOLLOW") and path.is_symlink():
        raise link
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise link from None
        raise KeyFileInvalid(
            f"cannot read key file {path}: {error.strerror}", check="key file"
        ) from None
    try:
        _check_status(os.fstat(descriptor), path)
        data = _read(descriptor, max_bytes + 1)
    finally:
        os.close(descriptor)
    if len(data) > max_bytes:
        raise KeyFileInvalid(
            f"key file is too long: {path}", check="key file", expected=f"≤ {max_bytes} bytes"
        )
    return data


def write_secret_file(path: Path, data: bytes) -> None:
    """Write a new secret file whole, mode 0600.

    Raises:
        AlreadyExists: A file (or a dangling link) has that name; it is left as it is.
        UsageError: The folder does not exist.
        OSError: The system refuses it: a full disk, a folder that may not be written to.
    """
    if path.is_symlink():
        raise AlreadyExists(f"{path} already exists", hint="choose another name")
    atomic_write(path, data, mode=0o600)


def _check_status(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise KeyFileInvalid(f"key file is not a regular file: {path}", check="key file")
    if not hasattr(os, "geteuid"):
        return
    if status.st_uid != os.geteuid():
        raise KeyFileInvalid(
            f"key file belongs to another user: {path}",
            check="key file",
            got=f"uid {status.st_uid}",
            expected=f"uid {os.geteuid()}",
        )
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise KeyFileInvalid(
            f"key file is readable by others: {path}",
            check="key file",
            got=f"mode {mode:04o}",
            expected="mode 0600",
            hint=f"chmod 600 {path}",
        )


def _read(descriptor: int, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := os.read(descriptor, size - len(data))):
        data += more
    return data
