"""A digest of long bytes under a key, about as fast as memory (spec/travelling.md §4).

SHA-256 over the GMACs (NIST SP 800-38D) of the pieces. A holder of a fresh key sees what has
changed; a party that knows the key beforehand can make two chunks with one fingerprint.
"""

from __future__ import annotations

import hashlib
from typing import Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sealtrain.base.process_state import OneProcess

PIECE_BYTES: Final = 1 << 18
ZEROS: Final = bytes(PIECE_BYTES)
"""An all-zero piece."""


class Fingerprint:
    """Takes the pieces of a chunk in order.

    Args:
        key: 32 bytes.

    Attributes:
        size: Bytes so far.
    """

    def __init__(self, key: bytes) -> None:
        self._mac = AESGCM(key)
        self._tags = hashlib.sha256()
        self._process = OneProcess("a fingerprint")
        self.size = 0

    def take(self, piece: bytes | memoryview) -> None:
        """Take the next piece: ``PIECE_BYTES``, or what is left.

        Raises:
            ForkRefused: Another process began it.
        """
        self._process.require()
        place = self.size.to_bytes(12, "big")
        self._tags.update(self._mac.encrypt(place, b"", piece))
        self.size += len(piece)

    def digest(self) -> bytes:
        """Of what was taken, 32 bytes."""
        return self._tags.digest()


def pieces(size: int) -> list[tuple[int, int]]:
    """First byte of each piece of so many bytes, and its length."""
    return [(start, min(PIECE_BYTES, size - start)) for start in range(0, size, PIECE_BYTES)]
