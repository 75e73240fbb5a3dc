"""The public half of an owner: a name, a signing key and a sealing key.

An identity is accepted when

1. its name is ``[a-z0-9][a-z0-9-]{0,62}``,
2. its signing key is a canonical Ed25519 key that is not of small order, and
3. its sealing key has the length of the HPKE suite's public key (1216 bytes), and
4. its witness key, where it has one, the length of an ML-DSA-44 public key (1312 bytes).

``owner_id`` commits to the first two keys, so an owner who changes either is another owner.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import Annotated, Self

from pydantic import Field, field_validator

from sealtrain.base.digests import sha256_hex
from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.base.models import Base64, Document, OwnerName, holding
from sealtrain.errors import DataInvalid, KeyFileInvalid
from sealtrain.signing import ml_dsa
from sealtrain.signing.ed25519 import check_public_key, key_id

MAX_IDENTITY_BYTES = 8192
SEALING_KEY_BYTES = 1216
"""ML-KEM-768 (1184) and X25519 (32), as ``sealing.hpke`` concatenates them."""


class PublicIdentity(Document):
    """What an owner hands to the others."""

    what = "public identity"
    refusal = KeyFileInvalid
    max_bytes = MAX_IDENTITY_BYTES
    any_spelling = True

    name: OwnerName
    signing_key: Annotated[Base64, holding(lambda key: check_public_key(from_base64(key)))]
    sealing_key: Annotated[Base64, holding(partial(from_base64, length=SEALING_KEY_BYTES))]
    witness_key: Base64 | None = Field(default=None, exclude_if=lambda key: key is None)
    """Cosigns ledgers in place of the signing key, where there is one."""

    @field_validator("witness_key")
    @classmethod
    def _witness_key_is_one(cls, text: str | None) -> str:
        if text is None:
            raise ValueError("leave it out where there is none")
        try:
            ml_dsa.check_public_key(from_base64(text))
        except DataInvalid as error:
            raise ValueError(str(error)) from error
        return text

    @classmethod
    def of(
        cls,
        name: str,
        *,
        signing_key: bytes,
        sealing_key: bytes,
        witness_key: bytes | None = None,
    ) -> Self:
        """Build an identity from raw keys.

        Args:
            name: Owner's name.
            signing_key: 32-byte Ed25519 public key.
            sealing_key: 1216-byte HPKE public key.
            witness_key: 1312-byte ML-DSA-44 public key, if any.

        Raises:
            KeyFileInvalid: A check of the module's list fails.
        """
        return cls.from_dict(
            {
                "name": name,
                "signing_key": to_base64(signing_key),
                "sealing_key": to_base64(sealing_key),
                **({} if witness_key is None else {"witness_key": to_base64(witness_key)}),
            }
        )

    @cached_property
    def signing_bytes(self) -> bytes:
        """Raw Ed25519 public key, 32 bytes."""
        return from_base64(self.signing_key)

    @cached_property
    def sealing_bytes(self) -> bytes:
        """Raw HPKE public key, 1216 bytes."""
        return from_base64(self.sealing_key)

    @cached_property
    def witness_bytes(self) -> bytes:
        """Raw key that cosigns ledgers: ML-DSA-44 where there is one, else the signing key."""
        return self.signing_bytes if self.witness_key is None else from_base64(self.witness_key)

    @cached_property
    def owner_id(self) -> str:
        """SHA-256 over the purpose and the raw signing and sealing keys, 64 hex digits."""
        return sha256_hex(b"sealtrain/owner/v1:" + self.signing_bytes + self.sealing_bytes)

    @property
    def key_id(self) -> str:
        """Name of the signing key: ``ed25519:<hex>``."""
        return key_id(self.signing_bytes)


def broker_id(signing_key: bytes) -> str:
    """Id of the broker with this signing key, 64 hex digits.

    Args:
        signing_key: Raw Ed25519 public key, 32 bytes.
    """
    return sha256_hex(b"sealtrain/broker/v1:" + signing_key)
