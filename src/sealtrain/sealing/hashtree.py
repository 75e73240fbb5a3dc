"""Hash tree over ciphertext: one root names every byte that will ever be decrypted.

Leaves are groups of 64 chunks (about 1 MiB). The tree has the shape of RFC 9162; leaf, node and
root preimages start with different bytes, and the root binds the payload's length, its C2SP header
and the file's core (spec/sealed-file.md §5). No key is needed to compute or to verify it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Final

from blake3 import blake3

from sealtrain.errors import DataInvalid
from sealtrain.sealing.chunked import SEALED_CHUNK_BYTES

GROUP_CHUNKS: Final = 64
GROUP_BYTES: Final = GROUP_CHUNKS * SEALED_CHUNK_BYTES
HASH_BYTES: Final = 32
LEAF, NODE, ROOT = b"\x00", b"\x01", b"\x02"


class Suite(IntEnum):
    """Hash of the tree; encryption is the same in both."""

    BLAKE3 = 1
    SHA256 = 2

    @classmethod
    def of(cls, number: object) -> Suite:
        """The suite with this number.

        Raises:
            DataInvalid: No suite has this number.
        """
        if number not in (1, 2) or isinstance(number, bool):
            raise DataInvalid("unknown sealing suite", got=number, expected="1 or 2")
        return cls(number)


def group_hash(suite: Suite, group: memoryview | bytes) -> bytes:
    """Leaf of one group: H(0x00 ‖ ciphertext of its chunks)."""
    hasher = blake3() if suite is Suite.BLAKE3 else hashlib.sha256()
    hasher.update(LEAF)
    hasher.update(group)
    digest: bytes = hasher.digest()
    return digest


def tree_top(hasher: Callable[[bytes], bytes], leaves: Sequence[bytes]) -> bytes:
    """Merkle tree head of at least one leaf hash, without the final root step.

    Args:
        hasher: 32-byte hash.
        leaves: Leaf hashes in order.
    """
    level = list(leaves)
    while len(level) > 1:
        # An odd node moves up unpaired: the same shape as splitting at the largest power of two.
        paired = [hasher(NODE + level[i] + level[i + 1]) for i in range(0, len(level) - 1, 2)]
        level = paired + level[len(level) & ~1 :]
    return level[0]


def file_root(
    suite: Suite, *, core: bytes, payload_header: bytes, payload_size: int, leaves: Sequence[bytes]
) -> bytes:
    """Root of one sealed file.

    Args:
        suite: Hash to use.
        core: Authenticated core of the header.
        payload_header: Salt and commitment, 56 bytes.
        payload_size: Bytes of the payload, its header included.
        leaves: Group hashes in order, at least one.

    Returns:
        32 bytes.
    """
    hasher = suite_hash(suite)
    return hasher(
        ROOT
        + b"sealtrain/file-root/v1"
        + payload_size.to_bytes(8, "big")
        + hasher(core)
        + payload_header
        + tree_top(hasher, leaves)
    )


def suite_hash(suite: Suite) -> Callable[[bytes], bytes]:
    """The suite's hash as a function from bytes to 32 bytes."""
    return _blake3 if suite is Suite.BLAKE3 else _sha256


def _blake3(data: bytes) -> bytes:
    digest: bytes = blake3(data).digest()
    return digest


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
