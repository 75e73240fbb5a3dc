"""The hash tree of dm-verity, format 1, SHA-256, blocks of 4 KiB (spec/guest-image.md §4).

Linux's *Documentation/admin-guide/device-mapper/verity.rst* has the format. Data, superblock and
tree follow each other in one partition, as ``veritysetup format --hash-offset`` lays them out.
"""

from __future__ import annotations

import hashlib
import struct
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

BLOCK: Final = 4096
SALT: Final = bytes(32)
"""Fixed: a salt would hide which files a disk has, and the disk is public."""
_UUID: Final = uuid.UUID("5ea17a1d-0000-4000-8000-000000000001")
_SUPERBLOCK: Final = struct.Struct("<8sII16s32sIIQH6x256s168x")


@dataclass(frozen=True, slots=True, kw_only=True)
class HashTree:
    """What is appended to a file system.

    Attributes:
        root: Its hash, which the command line names.
        blocks: Number of blocks of data.
        appended: Superblock, then the levels of the tree, the top one first.
    """

    root: bytes
    blocks: int
    appended: bytes


def hash_tree(data: BinaryIO) -> HashTree:
    """The tree over a file system, read from where the file stands.

    Raises:
        ValueError: It has no block, or its last one is not whole.
    """
    level, blocks = b"".join(_hashes(_blocks(data))), 0
    blocks = len(level) // 32
    if not blocks:
        raise ValueError("a file system has at least one block")
    levels: list[bytes] = []
    while True:
        level += bytes(-len(level) % BLOCK)
        levels.insert(0, level)
        if len(level) == BLOCK:
            break
        level = b"".join(_hashes(level[at : at + BLOCK] for at in range(0, len(level), BLOCK)))
    return HashTree(
        root=_digest(levels[0]), blocks=blocks, appended=superblock(blocks) + b"".join(levels)
    )


def superblock(blocks: int) -> bytes:
    """The block between data and tree."""
    fields = (b"verity", 1, 1, _UUID.bytes, b"sha256", BLOCK, BLOCK, blocks, len(SALT), SALT)
    return _SUPERBLOCK.pack(*fields).ljust(BLOCK, b"\0")


def _blocks(data: BinaryIO) -> Iterator[bytes]:
    while block := data.read(BLOCK):
        if len(block) != BLOCK:
            raise ValueError("the last block of a file system is not whole")
        yield block


def _hashes(blocks: Iterable[bytes]) -> Iterator[bytes]:
    return map(_digest, blocks)


def _digest(block: bytes) -> bytes:
    return hashlib.sha256(SALT + block).digest()
