"""The EFI system partition: FAT32 with one file, ``EFI/BOOT/BOOTX64.EFI``, and no byte of chance.

Microsoft's *FAT32 File System Specification* (1.03) has the form. Each cluster is one sector, since
FAT32 is what has at least 65,525 clusters; the file's clusters follow each other.
"""

from __future__ import annotations

import struct
from typing import Final

from sealtrain.errors import ImageRefused

_SECTOR: Final = 512
_RESERVED: Final = 32
_LEAST_CLUSTERS: Final = 65_536
_FOLDERS: Final = 3
"""Root, EFI and BOOT have a cluster each, from number 2 on."""
_END: Final = 0x0FFFFFFF
_FIRST_DAY: Final = 0x0021
_FOLDER, _ARCHIVE = 0x10, 0x20
_MEBIBYTE_SECTORS: Final = 2048
MAX_FILE_BYTES: Final = 1 << 30
VOLUME_ID: Final = 0x5EA17A1D


def write_system_partition(program: bytes) -> bytes:
    """The partition's bytes, a multiple of a mebibyte.

    Args:
        program: What UEFI starts.

    Raises:
        ImageRefused: It has no byte, or more than a gibibyte.
    """
    if not 0 < len(program) <= MAX_FILE_BYTES:
        raise ImageRefused("the boot program is empty or too large", check="FAT", got=len(program))
    used = _FOLDERS + -(-len(program) // _SECTOR)
    total, table_sectors, clusters = _sizes(max(used, _LEAST_CLUSTERS))
    first = 2 + _FOLDERS
    chain = [0x0FFFFFF8, _END, *[_END] * _FOLDERS]
    chain += [*range(first + 1, 2 + used), _END]
    table = struct.pack(f"<{len(chain)}I", *chain).ljust(table_sectors * _SECTOR, b"\0")
    boot, information = _boot_sector(total, table_sectors), _information(clusters - used, 2 + used)
    reserved = bytearray(_RESERVED * _SECTOR)
    for at in (0, 6):  # and the copy that the first names
        reserved[at * _SECTOR : (at + 2) * _SECTOR] = boot + information
    folders = (
        _pack_name("EFI", 3, _FOLDER),
        _pack_name(".", 3, _FOLDER) + _pack_name("..", 0, _FOLDER) + _pack_name("BOOT", 4, _FOLDER),
        _pack_name(".", 4, _FOLDER) + _pack_name("..", 3, _FOLDER)
        + _pack_name("BOOTX64", first, _ARCHIVE, extension="EFI", size=len(program)),
    )  # fmt: skip
    data = b"".join(folder.ljust(_SECTOR, b"\0") for folder in folders) + program
    return (bytes(reserved) + 2 * table + data).ljust(total * _SECTOR, b"\0")


def _sizes(clusters: int) -> tuple[int, int, int]:
    """Sectors in all and of one table, and the clusters that there are."""
    table = -(-(clusters + 2) // (_SECTOR // 4))
    total = -(-(_RESERVED + 2 * table + clusters) // _MEBIBYTE_SECTORS) * _MEBIBYTE_SECTORS
    table = -(-(total - _RESERVED + 2) // (_SECTOR // 4 + 2))
    return total, table, total - _RESERVED - 2 * table


def _boot_sector(total: int, table_sectors: int) -> bytes:
    fields = struct.pack(
        "<3s8sHBHBHHBHHHIIIHHIHH12xBBBI11s8s",
        b"\xeb\x58\x90", b"SEALTRAI", _SECTOR, 1, _RESERVED, 2, 0, 0, 0xF8, 0, 32, 2, 0, total,
        table_sectors, 0, 0, 2, 1, 6, 0x80, 0, 0x29, VOLUME_ID, b"NO NAME    ", b"FAT32   ",
    )  # fmt: skip
    return fields.ljust(_SECTOR - 2, b"\0") + b"\x55\xaa"


def _information(free: int, following: int) -> bytes:
    return struct.pack("<I480xIII12x", 0x41615252, 0x61417272, free, following) + b"\0\0\x55\xaa"


def _pack_name(name: str, cluster: int, kind: int, *, extension: str = "", size: int = 0) -> bytes:
    text = name.ljust(8).encode("ascii") + extension.ljust(3).encode("ascii")
    high, low = cluster >> 16, cluster & 0xFFFF
    day = _FIRST_DAY
    return struct.pack("<11sBBBHHHHHHHI", text, kind, 0, 0, 0, day, day, high, 0, day, low, size)
