"""Members of an uncompressed tar that may come from elsewhere, in bounded memory.

Python's ``tarfile`` reads a header of PAX or GNU whole, however long it says it is, and calls
itself for each header that another follows. Here it reads headers through a window of few bytes.
"""

from __future__ import annotations

import errno
import io
import tarfile
from collections.abc import Iterator
from typing import IO, Any, BinaryIO, Final, cast

from sealtrain.errors import LimitExceeded

MAX_HEADER_BYTES: Final = 16 << 10
"""All headers of one member together."""
PLAIN: Final = (tarfile.REGTYPE, tarfile.AREGTYPE)
"""Types of plain files."""
_READ_BYTES: Final = 1 << 20
_OF_A_HEADER: Final = (None, errno.EINVAL, errno.EOVERFLOW)
"""Of a seek to where a header says that the next one begins; any other is the disk's."""


def headers(file: BinaryIO, name: str) -> Iterator[tarfile.TarInfo]:
    """Each member of a tar, in order; what a member says of itself is unchecked.

    Args:
        file: Seekable, at its start; its position may be moved between two members.
        name: What messages call it.

    Raises:
        tarfile.TarError: It is no tar.
        LimitExceeded: A member's headers are larger than ``MAX_HEADER_BYTES``.
        OSError: The file cannot be read, which says nothing about what is in it.
    """
    window = _Window(file, name)
    try:
        with tarfile.open(fileobj=cast("IO[bytes]", window), mode="r:", encoding="utf-8") as opened:
            while (found := opened.next()) is not None:
                window.left = MAX_HEADER_BYTES
                vars(opened)["members"].clear()  # tarfile keeps every member it has read
                yield found
    except (ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in _OF_A_HEADER:
            raise
        raise tarfile.ReadError("unreadable header") from error


def content(file: BinaryIO, found: tarfile.TarInfo) -> BinaryIO:
    """The bytes of a plain file of a tar, as a file that is read from its start to its end."""
    return cast("BinaryIO", io.BufferedReader(_Content(file, found), _READ_BYTES))


class _Window:
    """Reads a few bytes for each member."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file, self._name = file, name
        self.left = MAX_HEADER_BYTES
        self.tell, self.seek = file.tell, file.seek

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= self.left:
            raise LimitExceeded(
                f"{self._name}: the headers of a member are too long",
                expected=f"at most {MAX_HEADER_BYTES} bytes",
                hint="write the tar file without extended attributes",
            )
        self.left -= size
        return self._file.read(size)


class _Content(io.RawIOBase):
    """Reads one member."""

    def __init__(self, file: BinaryIO, found: tarfile.TarInfo) -> None:
        self._file, self._at = file, found.offset_data
        self._end = found.offset_data + found.size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._file.seek(self._at)
        data = self._file.read(min(len(buffer), self._end - self._at))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
