"""ML-DSA-44 (FIPS 204): signatures that no quantum computer forges; one signer, one verifier.

A private key follows from a seed of 32 bytes. Signing is hedged: two signatures of one message
differ. The context is empty.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA44PrivateKey, MLDSA44PublicKey

from sealtrain.base.secret import Secret
from sealtrain.errors import DataInvalid, SignatureInvalid

SEED_BYTES = 32
PUBLIC_KEY_BYTES = 1312
SIGNATURE_BYTES = 2420


def check_public_key(public: bytes) -> bytes:
    """Return ``public`` when it is a public key.

    Raises:
        DataInvalid: It is not.
    """
    if len(public) != PUBLIC_KEY_BYTES:
        raise DataInvalid(
            "ML-DSA-44 public key has the wrong length",
            got=f"{len(public)} bytes",
            expected=f"{PUBLIC_KEY_BYTES} bytes",
        )
    return public


def verify_signature(public: bytes, signature: bytes, message: bytes) -> bytes:
    """Return ``message`` when ``signature`` over it is by ``public``.

    Args:
        public: 1312-byte public key.
        signature: 2420 bytes.
        message: What was signed.

    Raises:
        SignatureInvalid: The key is unusable or the signature is not by it over this message.
    """
    try:
        MLDSA44PublicKey.from_public_bytes(check_public_key(public)).verify(signature, message)
    except (InvalidSignature, DataInvalid, ValueError) as error:
        raise SignatureInvalid(
            "signature does not verify",
            check="signature",
            got="one by another key or over other bytes",
            expected="a signature by this ML-DSA-44 key",
            hint="the signed bytes were altered or signed with another key",
        ) from error
    return message


class MlDsa44Signer:
    """A private key that signs; its ``repr`` shows nothing of it.

    Args:
        seed: 32 secret bytes.

    Raises:
        DataInvalid: Not 32.
    """

    __slots__ = ("_private", "public")

    def __init__(self, seed: Secret) -> None:
        if len(seed) != SEED_BYTES:
            raise DataInvalid("ML-DSA-44 seed has the wrong length", expected=f"{SEED_BYTES} bytes")
        self._private = MLDSA44PrivateKey.from_seed_bytes(seed.reveal())
        self.public = self._private.public_key().public_bytes_raw()
        """1312-byte public key."""

    def sign(self, message: bytes) -> bytes:
        """Sign ``message``; 2420 bytes."""
        return self._private.sign(message)

    def __repr__(self) -> str:
        return "MlDsa44Signer(<private>)"
