"""Ed25519 (RFC 8032): one signer, one verifier, one name for a key.

A public key is refused when it is

1. not 32 bytes long,
2. not the canonical encoding of a point's y coordinate, or
3. of small order: such a key has signatures that verify for almost any message.

The verifier is OpenSSL's, which refuses a signature whose scalar is not reduced.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from sealtrain.base.digests import sha256_hex
from sealtrain.errors import DataInvalid, SignatureInvalid

PUBLIC_KEY_BYTES = 32
SIGNATURE_BYTES = 64

_PRIME = 2**255 - 19
_ORDER_EIGHT_Y = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
_SMALL_ORDER_Y = frozenset({0, 1, _PRIME - 1, _ORDER_EIGHT_Y, _PRIME - _ORDER_EIGHT_Y})


def key_id(public: bytes) -> str:
    """``"ed25519:"`` and the SHA-256 of the raw public key in hex.

    Args:
        public: 32 bytes.
    """
    return f"ed25519:{sha256_hex(public)}"


def check_public_key(public: bytes) -> bytes:
    """Return ``public`` when it is a key worth trusting.

    Raises:
        DataInvalid: A check of the module's list fails.
    """
    if len(public) != PUBLIC_KEY_BYTES:
        raise DataInvalid(
            "Ed25519 public key has the wrong length",
            got=f"{len(public)} bytes",
            expected=f"{PUBLIC_KEY_BYTES} bytes",
        )
    y = int.from_bytes(public, "little") & (2**255 - 1)
    if y >= _PRIME:
        raise DataInvalid("Ed25519 public key is not canonically encoded", check="key encoding")
    if y in _SMALL_ORDER_Y:
        raise DataInvalid(
            "Ed25519 public key has small order: anyone could sign with it", check="key order"
        )
    return public


def verify_signature(public: bytes, signature: bytes, message: bytes) -> bytes:
    """Return ``message`` when ``signature`` over it is by ``public``.

    Args:
        public: 32-byte public key.
        signature: 64 bytes.
        message: What was signed.

    Raises:
        SignatureInvalid: The key is unusable or the signature is not by it over this message.
    """
    try:
        Ed25519PublicKey.from_public_bytes(check_public_key(public)).verify(signature, message)
    except (InvalidSignature, DataInvalid, ValueError) as error:
        raise SignatureInvalid(
            "signature does not verify",
            check="signature",
            got="one by another key or over other bytes",
            expected=f"a signature by {key_id(public)}",
            hint="the signed bytes were altered or signed with another key",
        ) from error
    return message


class Ed25519Signer:
    """A private key that signs and names itself; its ``repr`` shows the public half only."""

    __slots__ = ("_private", "key_id", "public")

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public = private.public_key().public_bytes_raw()
        """32-byte public key."""
        self.key_id = key_id(self.public)
        """``ed25519:<sha256 hex of the public key>``."""

    def sign(self, message: bytes) -> bytes:
        """Sign ``message`` (RFC 8032 §5.1.6); 64 bytes."""
        return self._private.sign(message)

    def __repr__(self) -> str:
        return f"Ed25519Signer({self.key_id})"
