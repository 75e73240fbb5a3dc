"""HPKE (RFC 9180) with the hybrid KEM ML-KEM-768 + X25519, HKDF-SHA256 and AES-256-GCM.

One suite everywhere. Base mode only, single shot: whatever must be bound goes into ``info``.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, hpke
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sealtrain.base.secret import Secret
from sealtrain.errors import DataInvalid
from sealtrain.sealing.errors import WrongKey

PUBLIC_KEY_BYTES = 1184 + 32
_SUITE = hpke.Suite(hpke.KEM.MLKEM768_X25519, hpke.KDF.HKDF_SHA256, hpke.AEAD.AES_256_GCM)


class HpkePublicKey:
    """Public half: ML-KEM-768 key (1184 bytes) followed by an X25519 key (32 bytes)."""

    __slots__ = ("_key", "raw")

    def __init__(self, raw: bytes) -> None:
        """Parse a public key.

        Args:
            raw: 1216 bytes.

        Raises:
            DataInvalid: Wrong length or not a valid key.
        """
        if len(raw) != PUBLIC_KEY_BYTES:
            raise DataInvalid(
                "HPKE public key has the wrong length", got=len(raw), expected=PUBLIC_KEY_BYTES
            )
        try:
            self._key = hpke.MLKEM768X25519PublicKey(
                MLKEM768PublicKey.from_public_bytes(raw[:1184]),
                X25519PublicKey.from_public_bytes(raw[1184:]),
            )
        except ValueError as error:
            raise DataInvalid("HPKE public key is malformed") from error
        self.raw = bytes(raw)

    def seal(self, plaintext: bytes, *, info: bytes) -> bytes:
        """Encrypt to this key; only the same ``info`` opens it. Output is 1136 bytes longer.

        Raises:
            DataInvalid: The X25519 half is a point of low order, which is no valid key.
        """
        try:
            return _SUITE.encrypt(plaintext, self._key, info=info)
        except ValueError as error:
            raise DataInvalid("HPKE public key agrees on no secret") from error


class HpkePrivateKey:
    """Private half, derived from a 32-byte seed (HKDF-SHA256 to 64 + 32 bytes)."""

    __slots__ = ("_key", "public")

    def __init__(self, seed: Secret) -> None:
        """Derive the pair.

        Args:
            seed: 32 uniformly random or HKDF-derived bytes.

        Raises:
            DataInvalid: The seed is not 32 bytes long.
        """
        if len(seed) != 32:
            raise DataInvalid("HPKE seed has the wrong length", got=len(seed), expected=32)
        okm = HKDF(hashes.SHA256(), 96, None, b"sealtrain/hpke-key/v1").derive(seed.reveal())
        self._hold(
            MLKEM768PrivateKey.from_seed_bytes(okm[:64]),
            X25519PrivateKey.from_private_bytes(okm[64:]),
        )

    @classmethod
    def of(cls, mlkem: MLKEM768PrivateKey, x25519: X25519PrivateKey) -> HpkePrivateKey:
        """The pair of two private keys that are not derived from a seed."""
        made = cls.__new__(cls)
        made._hold(mlkem, x25519)
        return made

    def _hold(self, mlkem: MLKEM768PrivateKey, x25519: X25519PrivateKey) -> None:
        self._key = hpke.MLKEM768X25519PrivateKey(mlkem, x25519)
        self.public = HpkePublicKey(
            mlkem.public_key().public_bytes_raw() + x25519.public_key().public_bytes_raw()
        )

    def open(self, ciphertext: bytes, *, info: bytes) -> Secret:
        """Decrypt what was sealed to this key under ``info``.

        Raises:
            WrongKey: Another key, another ``info``, or altered bytes.
        """
        try:
            return Secret(_SUITE.decrypt(ciphertext, self._key, info=info))
        except (InvalidTag, ValueError) as error:
            raise WrongKey(
                "HPKE message does not open with this key and context",
                hint="it was sealed to another key, for another purpose, or altered",
            ) from error
