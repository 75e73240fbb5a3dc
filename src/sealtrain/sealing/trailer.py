"""Trailer of a sealed file: its group hashes, its length, and the proof of both.

::

    group hashes 32 each | u64 payload size | MAC 32 | "SEALEND" 0x01

The hashes let a reader check a group the first time it is touched and let anyone verify the file
without a key. The MAC, under a key of this file, covers the file root, hence every hash, the
length, the payload header and the core.

Checks, in order:
 1. The file ends with the end mark and its parts add up to its size (``FileTruncated``).
 2. The root computed from the hashes is the expected one, where one is given (``RootMismatch``).
 3. The MAC verifies, where the keys are given (``HeaderDamaged``).
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sealtrain.sealing.chunked import HEADER_BYTES, PayloadShape
from sealtrain.sealing.errors import FileTruncated, HeaderDamaged, RootMismatch
from sealtrain.sealing.hashtree import GROUP_CHUNKS, HASH_BYTES, file_root
from sealtrain.sealing.header import FileKeys, Header

END_MARK: Final = b"SEALEND\x01"
FOOTER_BYTES: Final = 8 + 32 + len(END_MARK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trailer:
    """Group hashes of a file, checked against its root or its key.

    Attributes:
        shape: Chunks of the payload.
        payload_header: Salt and commitment.
        leaves: Group hashes in order.
        root: File root, 32 bytes.
    """

    shape: PayloadShape
    payload_header: bytes
    leaves: tuple[bytes, ...]
    root: bytes


def group_count(chunks: int) -> int:
    """Groups that this many chunks form."""
    return -(-chunks // GROUP_CHUNKS)


def encode_trailer(leaves: list[bytes], payload_size: int, root: bytes, keys: FileKeys) -> bytes:
    """Bytes of a trailer."""
    mac = keys.trailer.mac(root)
    return b"".join(leaves) + payload_size.to_bytes(8, "big") + mac + END_MARK


def read_trailer(
    read_at: Callable[[int, int], bytes],
    file_size: int,
    header: Header,
    *,
    keys: FileKeys | None,
    root: bytes | None,
) -> Trailer:
    """Read and check the trailer.

    Args:
        read_at: Returns up to that many bytes at an offset of the file.
        file_size: Bytes of the file.
        header: The file's header.
        keys: Keys of the file, or ``None`` to verify without a key.
        root: Expected file root, 32 bytes, or ``None``.

    Raises:
        FileTruncated, RootMismatch, HeaderDamaged: See the checks above.
    """
    footer = read_at(file_size - FOOTER_BYTES, FOOTER_BYTES) if file_size > FOOTER_BYTES else b""
    if len(footer) != FOOTER_BYTES or footer[-len(END_MARK) :] != END_MARK:
        raise _refuse_truncated()
    payload_size = int.from_bytes(footer[:8], "big")
    room = file_size - FOOTER_BYTES - header.size
    if payload_size > room:
        raise _refuse_truncated()
    shape = PayloadShape(payload_size)
    if room - payload_size != group_count(shape.chunks) * HASH_BYTES:
        raise _refuse_truncated()
    hashes = read_at(header.size + payload_size, room - payload_size)
    payload_header = read_at(header.size, HEADER_BYTES)
    if len(hashes) != room - payload_size or len(payload_header) != HEADER_BYTES:
        raise _refuse_truncated()
    leaves = tuple(hashes[i : i + HASH_BYTES] for i in range(0, len(hashes), HASH_BYTES))
    computed = file_root(
        header.context.suite,
        core=header.core,
        payload_header=payload_header,
        payload_size=payload_size,
        leaves=leaves,
    )
    if root is not None and not hmac.compare_digest(computed, root):
        raise RootMismatch(
            "sealed file differs from the root that was signed",
            check="file root",
            got=computed.hex(),
            expected=root.hex(),
            hint="the file is another version or was altered; fetch it again from its owner",
        )
    if keys and not hmac.compare_digest(keys.trailer.mac(computed), footer[8:40]):
        raise HeaderDamaged(
            "trailer does not authenticate",
            check="trailer MAC",
            hint="the file was altered; fetch it again from its owner",
        )
    return Trailer(shape=shape, payload_header=payload_header, leaves=leaves, root=computed)


def _refuse_truncated() -> FileTruncated:
    return FileTruncated(
        "file does not end where it should",
        check="file length",
        hint="it was cut off or bytes were appended; fetch it again from its owner",
    )
