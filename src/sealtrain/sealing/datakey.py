"""The data key of a sealed dataset and everything derived from it.

One derivation everywhere (spec/sealed-file.md §2)::

    derive(K, purpose, p1, …) = HKDF-Expand-SHA256(K, lp("sealtrain/<purpose>/v1") ‖ lp(p1) ‖ …, 32)
    lp(s) = u32 big-endian length of UTF-8(s) ‖ UTF-8(s)

A data key is uniformly random or itself derived, so HKDF's extract step is not needed.

A key may be lent: then its lender is asked before each use of the key, of every key derived
from it and of every cipher made of those (spec/key-release.md §5).
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable
from typing import Self

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from sealtrain.base.secret import Random, Secret
from sealtrain.errors import DataInvalid

KEY_BYTES = 32

Permit = Callable[[], None]
"""Returns while a key may be used and raises when it may not."""


class DataKey(Secret):
    """32 secret bytes that open one dataset, one store or whatever was derived from them."""

    __slots__ = ("permit",)

    def __init__(self, value: bytes, permit: Permit | None = None) -> None:
        """Take 32 secret bytes.

        Args:
            value: 32 uniformly random or derived bytes.
            permit: Asked before each use; ``None`` for a key that was not lent.

        Raises:
            DataInvalid: Not 32 bytes.
        """
        if len(value) != KEY_BYTES:
            raise DataInvalid("data key has the wrong length", got=len(value), expected=KEY_BYTES)
        super().__init__(value)
        self.permit = permit

    def reveal(self) -> bytes:
        """The raw bytes, for a cryptographic primitive only.

        Raises:
            SealtrainError: What the permit raises.
        """
        if self.permit is not None:
            self.permit()
        return super().reveal()

    def with_permit(self, permit: Permit) -> DataKey:
        """The same key, which asks ``permit`` before each use."""
        return DataKey(self.reveal(), permit)

    @classmethod
    def generate(cls, random: Random = os.urandom) -> Self:
        """A fresh key."""
        return cls(random(KEY_BYTES))

    def derive(self, purpose: str, *parts: str) -> DataKey:
        """Derive an independent key for one purpose.

        Args:
            purpose: Lower-case words with hyphens or slashes; becomes ``sealtrain/<purpose>/v1``.
            parts: Values the derived key is bound to, in order.
        """
        expand = HKDFExpand(hashes.SHA256(), KEY_BYTES, derivation_info(purpose, *parts))
        return DataKey(expand.derive(self.reveal()), self.permit)

    def mac(self, message: bytes) -> bytes:
        """HMAC-SHA256 of ``message``, 32 bytes. Use on a derived key, never on two purposes."""
        return hmac.digest(self.reveal(), message, hashlib.sha256)


def derivation_info(purpose: str, *parts: str) -> bytes:
    """HKDF's ``info`` of one purpose: ``lp("sealtrain/<purpose>/v1") ‖ lp(p1) ‖ …``."""
    texts = (text.encode() for text in (f"sealtrain/{purpose}/v1", *parts))
    return b"".join(len(text).to_bytes(4, "big") + text for text in texts)
