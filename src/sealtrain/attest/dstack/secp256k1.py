"""Recoverable secp256k1 signatures (65 bytes ``r || s || v``, low s) over Keccak-256.

Signing is the library's, deterministic (RFC 6979) and constant in time. Recovery works on public
values only, so plain integer arithmetic is enough.
"""

from __future__ import annotations

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed, decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from sealtrain.attest.dstack.keccak import keccak256
from sealtrain.base.secret import Secret
from sealtrain.errors import SignatureInvalid

__all__ = ["ORDER", "private_key", "public_key_of", "recover", "sign_recoverable"]

_FIELD = 2**256 - 2**32 - 977
ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
_BASE = (
    0x79BE667EF9DCBBAC55A06295CE870B07029BFCDB2DCE28D959F2815B16F81798,
    0x483ADA7726A3C4655DA4FBFC0E1108A8FD17B448A68554199C47D08FFB10D4B8,
)
_Point = tuple[int, int] | None


def private_key(scalar: Secret) -> ec.EllipticCurvePrivateKey:
    """Key of a 32-byte big-endian scalar.

    Raises:
        SignatureInvalid: The scalar is zero or not below the group order.
    """
    value = int.from_bytes(scalar.reveal(), "big")
    if len(scalar) != 32 or not 0 < value < ORDER:
        raise SignatureInvalid("secp256k1 key is out of range")
    return ec.derive_private_key(value, ec.SECP256K1())


def public_key_of(scalar: Secret) -> bytes:
    """Compressed public key, 33 bytes. Raises as ``private_key``."""
    return (
        private_key(scalar).public_key().public_bytes(Encoding.X962, PublicFormat.CompressedPoint)
    )


def sign_recoverable(scalar: Secret, message: bytes) -> bytes:
    """Sign Keccak-256 of ``message``: 65 bytes, low s, ``v`` 0 or 1. Raises as ``private_key``."""
    digest = keccak256(message)
    algorithm = ec.ECDSA(Prehashed(hashes.SHA256()), deterministic_signing=True)
    r, s = decode_dss_signature(private_key(scalar).sign(digest, algorithm))
    rs = r.to_bytes(32, "big") + min(s, ORDER - s).to_bytes(32, "big")
    public = public_key_of(scalar)
    for v in (0, 1):
        if recover(rs + bytes([v]), message) == public:
            return rs + bytes([v])
    raise AssertionError("a fresh signature recovers to its own key")  # r >= order: 2**-128


def recover(signature: bytes, message: bytes) -> bytes:
    """Compressed public key that signed Keccak-256 of ``message``.

    Args:
        signature: 65 bytes.
        message: The signed message, not its digest.

    Raises:
        SignatureInvalid: Wrong length, high s, ``v`` over 1, or no such point.
    """
    if len(signature) != 65:
        raise SignatureInvalid(
            "recoverable signature has the wrong length", got=len(signature), expected=65
        )
    r, s = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:64], "big")
    if not 0 < r < ORDER or not 0 < s <= ORDER // 2 or signature[64] > 1:
        raise SignatureInvalid("recoverable signature is not in its one form (low s, v 0 or 1)")
    square = (pow(r, 3, _FIELD) + 7) % _FIELD
    y = pow(square, (_FIELD + 1) // 4, _FIELD)
    if y * y % _FIELD != square:
        raise SignatureInvalid("recoverable signature names no point of the curve")
    if y & 1 != signature[64]:
        y = _FIELD - y
    e = int.from_bytes(keccak256(message), "big") % ORDER
    inverse = pow(r, -1, ORDER)
    key = _add(_multiply((r, y), s * inverse % ORDER), _multiply(_BASE, -e * inverse % ORDER))
    if key is None:
        raise SignatureInvalid("recoverable signature leads to no key")
    return bytes([2 + (key[1] & 1)]) + key[0].to_bytes(32, "big")


def _add(a: _Point, b: _Point) -> _Point:
    if a is None:
        return b
    if b is None:
        return a
    if a[0] == b[0]:
        if (a[1] + b[1]) % _FIELD == 0:
            return None
        slope = 3 * a[0] * a[0] * pow(2 * a[1], -1, _FIELD) % _FIELD
    else:
        slope = (b[1] - a[1]) * pow(b[0] - a[0], -1, _FIELD) % _FIELD
    x = (slope * slope - a[0] - b[0]) % _FIELD
    return x, (slope * (a[0] - x) - a[1]) % _FIELD


def _multiply(point: _Point, by: int) -> _Point:
    result: _Point = None
    while by:
        if by & 1:
            result = _add(result, point)
        point = _add(point, point)
        by >>= 1
    return result
