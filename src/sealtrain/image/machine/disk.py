"""PCR 5 and 14 and RTMR3 of a machine that boots a disk: its partition table, its document.

UEFI measures the GPT before it loads a program from the disk (EV_EFI_GPT_EVENT of the *TCG PC
Client Platform Firmware Profile Specification*, ``UEFI_GPT_DATA``): its header, the number of
partitions as u64, and the entries that name one.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Final

from sealtrain.errors import ImageRefused
from sealtrain.image.machine.registers import (
    EXIT_EVENTS,
    SEPARATOR,
    Algorithm,
    digest_of,
    extend,
)

GPT_BYTES: Final = 1 << 20
"""Of the beginning of a disk: more than any table of the usual size takes."""
_SECTORS: Final = (512, 4096)
_HEADER: Final = struct.Struct("<8sIIIIQQQQ16sQIII")
_HEADER_BYTES: Final = 92
_MAX_ENTRIES: Final = 1024


@dataclass(frozen=True, slots=True)
class PartitionTable:
    """A GPT as it is measured.

    Attributes:
        header: 92 bytes.
        entries: Of the partitions that there are, in their order.
    """

    header: bytes
    entries: tuple[bytes, ...]

    @classmethod
    def of_disk(cls, start: bytes) -> PartitionTable:
        """The table at the beginning of a disk.

        Args:
            start: The disk's first bytes, ``GPT_BYTES`` of them or all.

        Raises:
            ImageRefused: No GPT in sectors of 512 or 4096 bytes, or a checksum is wrong: UEFI would
                boot from another one.
        """
        for sector in _SECTORS:
            if start[sector : sector + 8] == b"EFI PART":
                return cls._at(start, sector)
        raise _refusal("has no partition table (GPT)")

    @classmethod
    def _at(cls, start: bytes, sector: int) -> PartitionTable:
        header = start[sector : sector + _HEADER_BYTES]
        if len(header) < _HEADER_BYTES:
            raise _refusal("ends within its partition table")
        fields = _HEADER.unpack(header)
        size, crc, own = fields[2], fields[3], fields[5]
        first, count, length, entries_crc = fields[10:14]
        if size != _HEADER_BYTES or own != 1 or not 0 < count <= _MAX_ENTRIES or length != 128:
            raise _refusal("has a partition table of another form")
        if zlib.crc32(header[:16] + bytes(4) + header[20:]) != crc:
            raise _refusal("has a partition table with a wrong checksum")
        table = start[first * sector : first * sector + count * length]
        if len(table) < count * length or zlib.crc32(table) != entries_crc:
            raise _refusal("has partition entries with a wrong checksum")
        found = [table[at : at + length] for at in range(0, len(table), length)]
        # A type of zeros is an unused entry.
        return cls(header, tuple(entry for entry in found if any(entry[:16])))

    @property
    def measured(self) -> bytes:
        """What UEFI hashes: ``UEFI_GPT_DATA``."""
        return self.header + struct.pack("<Q", len(self.entries)) + b"".join(self.entries)


def partition_register(table: PartitionTable, algorithm: Algorithm) -> str:
    """PCR 5, hex: the separator, the table, and the two texts at the end of boot services."""
    events = (SEPARATOR, table.measured, *EXIT_EVENTS)
    return extend([digest_of(event, algorithm) for event in events], algorithm).hex()


def document_register(document: bytes, algorithm: Algorithm) -> str:
    """PCR 14, hex, of an image whose init extends it once by its deployment document."""
    return extend([digest_of(document, algorithm)], algorithm).hex()


def document_rtmr3(document: bytes) -> str:
    """RTMR3, hex, of an image whose init extends it once by its deployment document."""
    return extend([digest_of(document, "sha384")], "sha384").hex()


def _refusal(problem: str) -> ImageRefused:
    return ImageRefused(
        f"the disk {problem}", check="GPT", hint="name the disk image that the machine boots"
    )
