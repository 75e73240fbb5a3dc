"""An empty ext4 file system, written without a tool: a guest's scratch disk begins with it.

Linux's *Documentation/filesystems/ext4* has the form. It has no journal, since nothing of the disk
outlives the guest, and no copy of its superblock: with ``sparse_super2`` none is looked for. What
the kernel reads later is what was written here, whatever the disk held before.
"""

from __future__ import annotations

import struct
from typing import BinaryIO, Final

from sealtrain.errors import ImageRefused

BLOCK: Final = 4096
_GROUP_BLOCKS: Final = 8 * BLOCK
_GROUP_INODES: Final = 256
_INODE_BYTES: Final = 256
_TABLE_BLOCKS: Final = _GROUP_INODES * _INODE_BYTES // BLOCK
_OWN_BLOCKS: Final = 2 + _TABLE_BLOCKS
"""Of each group: bitmaps of its blocks and inodes, and its table of inodes."""
_RESERVED_INODES: Final = 10
_ROOT: Final = 2
_DESCRIPTOR: Final = struct.Struct("<IIIHHHH12x")
_FEATURES: Final = (0x200, 0x2 | 0x40, 0x2)
"""``sparse_super2``; ``filetype`` and ``extents``; ``large_file``."""
_ON_ERROR_PANIC: Final = 3
LEAST_BLOCKS: Final = 16384
MOST_BLOCKS: Final = 1 << 31


def write_empty_files(device: BinaryIO, blocks: int, user: int) -> None:
    """Write a file system whose root folder is one user's alone.

    Args:
        device: Is written from its beginning.
        blocks: Of 4096 bytes, of the device; what is beyond 8 TiB is left alone.
        user: Number of the user and its group, below 65536.

    Raises:
        ImageRefused: The device has less than 64 MiB.
    """
    if blocks < LEAST_BLOCKS:
        raise ImageRefused(
            "the scratch disk is too small",
            check="scratch disk",
            got=f"{blocks * BLOCK} bytes",
            expected=f"{LEAST_BLOCKS * BLOCK} bytes or more",
        )
    blocks = min(blocks, MOST_BLOCKS)
    if blocks % _GROUP_BLOCKS and blocks % _GROUP_BLOCKS <= 2 * _OWN_BLOCKS:
        blocks -= blocks % _GROUP_BLOCKS  # a last group that would hold little but itself
    groups = -(-blocks // _GROUP_BLOCKS)
    table_blocks = -(-groups * _DESCRIPTOR.size // BLOCK)
    descriptors, free = b"", 0
    for group in range(groups):
        start = group * _GROUP_BLOCKS
        own = start + (1 + table_blocks if group == 0 else 0)
        length = min(_GROUP_BLOCKS, blocks - start)
        used = own - start + _OWN_BLOCKS + (group == 0)
        taken = _RESERVED_INODES if group == 0 else 0
        descriptors += _DESCRIPTOR.pack(
            own, own + 1, own + 2, length - used, _GROUP_INODES - taken, group == 0, 0
        )
        free += length - used
        first = _root_inode(own + _OWN_BLOCKS, user) if group == 0 else b""
        device.seek(own * BLOCK)
        device.write(
            _bitmap(used, length) + _bitmap(taken, _GROUP_INODES)
            + first.ljust(_TABLE_BLOCKS * BLOCK, b"\0")
            + (_root_folder() if group == 0 else b"")
        )  # fmt: skip
    head = bytes(1024) + _superblock(blocks, groups, free)
    device.seek(0)
    device.write(head.ljust(BLOCK, b"\0") + descriptors.ljust(table_blocks * BLOCK, b"\0"))


def _bitmap(used: int, length: int) -> bytes:
    """A block of bits: those in use, those that are free, and those behind the end as in use."""
    bits = (1 << used) - 1 | ((1 << 8 * BLOCK) - 1) >> length << length
    return bits.to_bytes(BLOCK, "little")


def _superblock(blocks: int, groups: int, free: int) -> bytes:
    inodes = groups * _GROUP_INODES
    head = struct.pack(
        "<11I", inodes, blocks, 0, free, inodes - _RESERVED_INODES, 0, 2, 2,
        _GROUP_BLOCKS, _GROUP_BLOCKS, _GROUP_INODES,
    )  # fmt: skip
    head += struct.pack("<IIHHHHHHIIII", 0, 0, 0, 0xFFFF, 0xEF53, 1, _ON_ERROR_PANIC, 0, 0, 0, 0, 1)
    head += struct.pack("<HHIHH", 0, 0, _RESERVED_INODES + 1, _INODE_BYTES, 0)
    return (head + struct.pack("<III", *_FEATURES)).ljust(1024, b"\0")


def _root_inode(block: int, user: int) -> bytes:
    inode = struct.pack(
        "<HHIIIIIHHIII", 0o40700, user, BLOCK, 0, 0, 0, 0, user, 2, BLOCK // 512, 0, 0
    )
    return bytes((_ROOT - 1) * _INODE_BYTES) + (inode + struct.pack("<I", block))


def _root_folder() -> bytes:
    own = struct.pack("<IHBB4s", _ROOT, 12, 1, 2, b".")
    above = struct.pack("<IHBB4s", _ROOT, BLOCK - 12, 2, 2, b"..")
    return (own + above).ljust(BLOCK, b"\0")
