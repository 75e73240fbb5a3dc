"""The GPT of a guest's disk: written in one way only, and read back without trust.

UEFI 2.10 §5.3 has the form: a protective MBR, header and entries, the partitions, and a copy of
entries and header at the disk's end.
"""

from __future__ import annotations

import os
import shutil
import struct
import uuid
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO, Final

from sealtrain.errors import ImageRefused
from sealtrain.image.machine.disk import PartitionTable

SYSTEM_KIND: Final = uuid.UUID("c12a7328-f81f-11d2-ba4b-00a0c93ec93b")
ROOT_KIND: Final = uuid.UUID("4f68bce3-e8cd-4db1-96e7-fbcaf984b709")
SECTOR: Final = 512
_MEBIBYTE: Final = 1 << 20
_FIRST: Final = _MEBIBYTE // SECTOR
_ENTRY: Final = struct.Struct("<16s16sQQQ72s")
_HEADER: Final = struct.Struct("<8sIIIIQQQQ16sQIII")
_ENTRIES: Final = 128
_TABLE_SECTORS: Final = _ENTRIES * _ENTRY.size // SECTOR
_DISK: Final = uuid.UUID("5ea17a1d-0000-4000-8000-0000000000d0")
_NAME_BYTES: Final = 72


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition.

    Attributes:
        name: At most 36 characters.
        kind: GUID of its type.
        start: Of its first byte.
        size: In bytes.
    """

    name: str
    kind: uuid.UUID
    start: int
    size: int


def write_disk(parts: Sequence[tuple[str, uuid.UUID, BinaryIO]], out: BinaryIO) -> None:
    """Write a disk.

    Args:
        parts: Name, kind and content of each partition; each content is read from its beginning,
            and zeros fill it up to a mebibyte.
        out: An empty file that can be moved in.
    """
    entries, start = [], _FIRST
    out.seek(start * SECTOR)
    for number, (name, kind, content) in enumerate(parts, 1):
        content.seek(0)
        shutil.copyfileobj(content, out, _MEBIBYTE)
        end = -(-out.tell() // _MEBIBYTE) * _MEBIBYTE
        out.seek(end)
        own = uuid.UUID(int=_DISK.int + number)
        last = end // SECTOR - 1
        entries.append(
            _ENTRY.pack(kind.bytes_le, own.bytes_le, start, last, 0, name.encode("utf-16-le"))
        )
        start = last + 1
    table = b"".join(entries).ljust(_ENTRIES * _ENTRY.size, b"\0")
    total = start + _TABLE_SECTORS + 1
    out.write(table + _header(table, total, own=total - 1, entries=start))
    out.seek(0)
    out.write(_protective(total) + _header(table, total, own=1, entries=2) + table)


def _header(table: bytes, total: int, *, own: int, entries: int) -> bytes:
    other = total - 1 if own == 1 else 1
    fields = [
        b"EFI PART", 0x10000, _HEADER.size, 0, 0, own, other, _TABLE_SECTORS + 2,
        total - _TABLE_SECTORS - 2, _DISK.bytes_le, entries, _ENTRIES, _ENTRY.size,
        zlib.crc32(table),
    ]  # fmt: skip
    fields[3] = zlib.crc32(_HEADER.pack(*fields))
    return _HEADER.pack(*fields).ljust(SECTOR, b"\0")


def _protective(total: int) -> bytes:
    record = struct.pack("<8BII", 0, 0, 2, 0, 0xEE, 255, 255, 255, 1, min(total - 1, 0xFFFFFFFF))
    return bytes(446) + record + bytes(48) + b"\x55\xaa"


def read_partitions(disk: BinaryIO) -> tuple[Partition, ...]:
    """The partitions of a stranger's disk, in their order on it.

    Raises:
        ImageRefused: No GPT that firmware boots from; a partition outside of the disk or over
            another one; two of one name: the guest could take the other one.
    """
    size = disk.seek(0, os.SEEK_END)
    disk.seek(0)
    table = PartitionTable.of_disk(disk.read(_MEBIBYTE))
    found = sorted(
        (_partition(entry, size) for entry in table.entries), key=lambda part: part.start
    )
    if len({partition.name for partition in found}) != len(found):
        raise _refusal("has two partitions of one name")
    free = (_TABLE_SECTORS + 2) * SECTOR
    for partition in found:
        if partition.start < free:
            raise _refusal("has a partition over another one", got=partition.name)
        free = partition.start + partition.size
    return tuple(found)


def _partition(entry: bytes, disk_bytes: int) -> Partition:
    kind, _, first, last, _, name = _ENTRY.unpack(entry)
    text = name.decode("utf-16-le", "replace").split("\0", 1)[0]
    if not first <= last < disk_bytes // SECTOR:
        raise _refusal("has a partition outside of it", got=text)
    return Partition(
        name=text,
        kind=uuid.UUID(bytes_le=kind),
        start=first * SECTOR,
        size=(last - first + 1) * SECTOR,
    )


def _refusal(problem: str, *, got: object = None) -> ImageRefused:
    return ImageRefused(
        f"the disk {problem}", check="GPT", got=got, hint="name a disk that sealtrain wrote"
    )
