"""Files that the kernel has mapped executable in this process, and pages that are not theirs.

Linux answers both questions by request (``PROCMAP_QUERY`` since 6.11, ``PAGEMAP_SCAN`` since 6.7:
include/uapi/linux/fs.h) in a fifth of the time that it takes to write ``/proc/self/maps`` and
``pagemap`` out and to read them. An older kernel is asked by reading those files.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_PRESENT, _SWAPPED, _OF_FILE = 1 << 63, 1 << 62, 1 << 61
"""Bits of an entry of ``/proc/PID/pagemap``."""
_MAX_MAPS_BYTES = 64 << 20
_MAX_MAPPINGS = 1 << 20
_PATH_BYTES = 4096
_QUERY = struct.Struct("=9Q4I2Q")
"""``struct procmap_query``."""
_ASK_QUERY = 3 << 30 | _QUERY.size << 16 | ord("f") << 8 | 17
_EXECUTABLE_FILE_OR_NEXT = 0x04 | 0x20 | 0x10
_SCAN = struct.Struct("=12Q")
"""``struct pm_scan_arg``."""
_ASK_SCAN = 3 << 30 | _SCAN.size << 16 | ord("f") << 8 | 16
_SCAN_FILE, _SCAN_PRESENT, _SCAN_SWAPPED = 1 << 2, 1 << 3, 1 << 4
_DONTNEED: Final = 4
_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_UNKNOWN_REQUEST = (errno.ENOTTY, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


class Mapping(NamedTuple):
    """A part of a file that is mapped executable.

    Attributes:
        start, end: Its addresses.
        path: As the kernel says it, with ``" (deleted)"`` behind that of a lost file.
    """

    start: int
    end: int
    path: str


class AddressSpace:
    """This process's memory as the kernel lists it. Use as a context.

    Args:
        asks: Whether to ask by request where the kernel answers; otherwise the files are read.
    """

    def __init__(self, *, asks: bool = True) -> None:
        self._maps = self._pages = -1
        self._queries = self._scans = asks
        self._path = ctypes.create_string_buffer(_PATH_BYTES)
        self._found = (ctypes.c_uint64 * 3)()

    def __enter__(self) -> AddressSpace:
        self._maps = os.open("/proc/self/maps", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._pages = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        except BaseException:
            os.close(self._maps)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._pages)
        os.close(self._maps)

    def executable(self) -> list[Mapping]:
        """Every mapping of a file that may be executed.

        Raises:
            OSError: The kernel does not answer.
        """
        if self._queries:
            try:
                return list(self._iterate_mappings())
            except OSError as error:
                if error.errno not in _UNKNOWN_REQUEST:
                    raise
                self._queries = False
        return list(self._read())

    def is_patched(self, mapping: Mapping) -> bool:
        """Whether a page of a mapping is no longer its file's.

        Raises:
            OSError: The kernel does not answer.
        """
        if self._scans:
            wanted = _SCAN.pack(
                _SCAN.size, 0, mapping.start, mapping.end, 0, ctypes.addressof(self._found), 1, 1,
                _SCAN_FILE, _SCAN_FILE, _SCAN_PRESENT | _SCAN_SWAPPED, _SCAN_PRESENT,
            )  # fmt: skip
            try:
                return bool(fcntl.ioctl(self._pages, _ASK_SCAN, bytearray(wanted)) > 0)
            except OSError as error:
                if error.errno not in _UNKNOWN_REQUEST:
                    raise
                self._scans = False
        return self._is_written(mapping)

    def release(self, mapping: Mapping) -> None:
        """Let go of a mapping's pages: those that are run again come back from the file.

        A page that was written to would be lost, so ask ``is_patched`` before. A kernel that keeps
        them, as those that are locked, says nothing here: they are looked at as before.
        """
        _madvise(mapping.start, mapping.end - mapping.start, _DONTNEED)

    def _iterate_mappings(self) -> Iterator[Mapping]:
        answer, address = bytearray(_QUERY.size), 0
        for _ in range(_MAX_MAPPINGS):
            _QUERY.pack_into(
                answer, 0, _QUERY.size, _EXECUTABLE_FILE_OR_NEXT, address, 0, 0, 0, 0, 0, 0, 0, 0,
                _PATH_BYTES, 0, ctypes.addressof(self._path), 0,
            )  # fmt: skip
            try:
                fcntl.ioctl(self._maps, _ASK_QUERY, answer)
            except FileNotFoundError:
                return
            found = _QUERY.unpack(answer)
            start, address, length = found[3], found[4], found[11]
            path = os.fsdecode(ctypes.string_at(self._path, max(length - 1, 0)))
            if path.startswith("/"):
                yield Mapping(start, address, path)
        raise OSError(errno.EOVERFLOW, "more mappings than any process has")

    def _read(self) -> Iterator[Mapping]:
        lines = Path("/proc/self/maps").read_bytes()[:_MAX_MAPS_BYTES]
        for line in os.fsdecode(lines).splitlines():
            span, rights, _offset, _device, _inode, *path = line.split(maxsplit=5)
            if "x" in rights and path and path[0].startswith("/"):
                start, end = (int(bound, 16) for bound in span.split("-"))
                yield Mapping(start, end, path[0])

    def _is_written(self, mapping: Mapping) -> bool:
        import numpy as np

        count = (mapping.end - mapping.start) // _PAGE
        read = os.pread(self._pages, 8 * count, mapping.start // _PAGE * 8)
        entries = np.frombuffer(read, dtype="<u8")
        held = entries & np.uint64(_PRESENT | _SWAPPED) != 0
        return bool((held & (entries & np.uint64(_OF_FILE) == 0)).any())
