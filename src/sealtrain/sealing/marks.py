"""Marks of verified ciphertext, by which a reader recognises the same bytes.

A group of chunks is hashed against its file's root when it is first read. A store may answer
the next read with other bytes, and an owner that runs it and knows the data key can give them tags
that authenticate. So a reader marks what it hashed: each *stripe* of four chunks gets a MAC under a
key that the reader drew for this file and that never leaves its memory. Bytes with another mark are
other bytes.

The MAC is GMAC, AES-GCM over associated data alone (spec/sealed-file.md §3). Each stripe has its
own nonce, marks stay in memory, and an attacker learns of a forgery only that it was refused. One
attempt passes with probability 2**-115 at most. A mark takes a third of the time of BLAKE3, and
only the stripes that are wanted are read.
"""

from __future__ import annotations

import hmac
import os
from typing import Any, Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sealtrain.base.secret import Random
from sealtrain.sealing.chunked import SEALED_CHUNK_BYTES
from sealtrain.sealing.hashtree import GROUP_CHUNKS

STRIPE_CHUNKS: Final = 4
_STRIPE_BYTES: Final = STRIPE_CHUNKS * SEALED_CHUNK_BYTES
_STRIPES: Final = GROUP_CHUNKS // STRIPE_CHUNKS
_MARK_BYTES: Final = 16


class GroupMarks:
    """Marks of the groups of one open file. Thread-safe: a race makes the same marks twice."""

    __slots__ = ("_mac", "_marks")

    def __init__(self, groups: int, random: Random = os.urandom) -> None:
        """Draw the key; nothing is marked yet.

        Args:
            groups: Groups of the file.
            random: Source of the key.
        """
        self._mac = AESGCM(random(32))
        self._marks: list[bytes | None] = [None] * groups

    def has(self, group: int) -> bool:
        """Whether the group was marked."""
        return self._marks[group] is not None

    def keep(self, group: int, sealed: memoryview[Any]) -> None:
        """Mark a whole group.

        Args:
            group: Its number in the file.
            sealed: Its ciphertext, whose hash was found to be the right one.
        """
        self._marks[group] = self._make(group * _STRIPES, sealed)

    def match(self, group: int, stripe: int, sealed: memoryview[Any]) -> bool:
        """Whether these are the bytes that were marked.

        Args:
            group: A marked group.
            stripe: Which stripe of the group ``sealed`` begins with.
            sealed: Ciphertext of whole stripes.
        """
        marks = self._marks[group] or b""
        found = self._make(group * _STRIPES + stripe, sealed)
        start = stripe * _MARK_BYTES
        return hmac.compare_digest(found, marks[start : start + len(found)])

    def _make(self, first: int, sealed: memoryview[Any]) -> bytes:
        mac = self._mac.encrypt
        return b"".join(
            mac(number.to_bytes(12, "big"), b"", sealed[start : start + _STRIPE_BYTES])
            for number, start in enumerate(range(0, len(sealed), _STRIPE_BYTES), first)
        )
