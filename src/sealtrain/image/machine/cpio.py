"""Archives in cpio's newc form, which Linux unpacks as a ramdisk, written in one way only.

The form is Linux's (early-userspace/buffer-format.rst), the one way that of spec/images.md §12.
Nothing is compressed, so the bytes depend on the content alone and on no version of a compressor.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import BinaryIO, Final

from sealtrain.errors import ImageRefused
from sealtrain.image.cpio_member import TRAILER, member_head

MAX_FILE_BYTES: Final = (1 << 32) - 1
"""A size has eight hex digits."""
_READ_BYTES: Final = 1 << 20


class CpioWriter:
    """Writes entries in the order in which they come; every one is owned by root and of 1970.

    Args:
        write: Gets the bytes.
    """

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._number = 0
        self._left = 0

    def folder(self, name: str, mode: int = 0o755) -> None:
        """Add a folder."""
        self._begin(name, stat.S_IFDIR | mode, 0)

    def link(self, name: str, target: str) -> None:
        """Add a symbolic link."""
        data = os.fsencode(target)
        self._begin(name, stat.S_IFLNK | 0o777, len(data))
        self.add(data)
        self.finish()

    def character_device(self, name: str, mode: int, numbers: tuple[int, int]) -> None:
        """Add a character device with its major and minor number."""
        self._begin(name, stat.S_IFCHR | mode, 0, numbers)

    def file(self, name: str, mode: int, data: bytes) -> None:
        """Add a file of which all bytes are at hand."""
        self.begin_file(name, mode, len(data))
        self.add(data)
        self.finish()

    def begin_file(self, name: str, mode: int, size: int) -> None:
        """Begin a file; ``add`` takes its bytes, and ``finish`` ends it."""
        self._begin(name, stat.S_IFREG | mode, size)

    def add(self, data: bytes) -> None:
        """Add bytes to the file that was begun."""
        self._left -= len(data)
        self._write(data)

    def copy(self, file: BinaryIO) -> None:
        """Add all bytes of an open file to the file that was begun."""
        while data := file.read(_READ_BYTES):
            self.add(data)

    def finish(self) -> None:
        """End the file that was begun.

        Raises:
            ImageRefused: It has another length than was said.
        """
        if self._left:
            raise _refusal("a file has another length than its entry says")
        self._write(bytes(-self._size % 4))

    def close(self) -> None:
        """Write the entry that ends an archive."""
        self._begin(TRAILER, 0, 0)

    def _begin(self, name: str, mode: int, size: int, device: tuple[int, int] = (0, 0)) -> None:
        if size > MAX_FILE_BYTES:
            raise _refusal("a file is too large for a ramdisk", got=f"{size} bytes")
        self._number += 1
        self._left = self._size = size
        self._write(member_head(os.fsencode(name), mode, size, number=self._number, device=device))


def _refusal(problem: str, *, got: object = None) -> ImageRefused:
    return ImageRefused(problem, check="ramdisk", got=got, hint="make the image from its source")
