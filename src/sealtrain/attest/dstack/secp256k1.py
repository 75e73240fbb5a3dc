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

_FIELD = 2**256 - 2**32 - 977
ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
_BASE = (
    0x79BE667EF9DCBBAC55A06295CE870B07029BFCDB2DCE28D959F2815B16F81798,
    0x483ADA7726A3C4655DA4FBFC0E1108A8FD17B448A68554199C47D08FFB10D4B8,
)
_Affine = tuple[int, int]
_Point = tuple[int, int, int]
_INFINITY: _Point = (1, 1, 0)


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
    key = _affine(_sum_of_multiples((-e * inverse % ORDER, _BASE), (s * inverse % ORDER, (r, y))))
    if key is None:
        raise SignatureInvalid("recoverable signature leads to no key")
    return bytes([2 + (key[1] & 1)]) + key[0].to_bytes(32, "big")


# Points are (x, y, z) with affine x / z**2 and y / z**3; z = 0 is the point at infinity.


def _sum_of_multiples(first: tuple[int, _Affine], second: tuple[int, _Affine]) -> _Point:
    """``a * P + b * Q`` in one pass over the bits of both factors."""
    (a, p), (b, q) = first, second
    table = (_INFINITY, (*p, 1), (*q, 1), _add((*p, 1), (*q, 1)))
    result = _INFINITY
    for bit in range(255, -1, -1):
        result = _add(_double(result), table[(a >> bit & 1) | (b >> bit & 1) << 1])
    return result


def _double(point: _Point) -> _Point:
    x, y, z = point
    square = y * y % _FIELD
    s = 4 * x * square % _FIELD
    m = 3 * x * x % _FIELD
    new_x = (m * m - 2 * s) % _FIELD
    return new_x, (m * (s - new_x) - 8 * square * square) % _FIELD, 2 * y * z % _FIELD


def _add(a: _Point, b: _Point) -> _Point:
    if not a[2]:
        return b
    if not b[2]:
        return a
    za, zb = a[2] * a[2] % _FIELD, b[2] * b[2] % _FIELD
    ua, ub = a[0] * zb % _FIELD, b[0] * za % _FIELD
    sa, sb = a[1] * zb * b[2] % _FIELD, b[1] * za * a[2] % _FIELD
    if ua == ub:
        return _double(a) if sa == sb else _INFINITY
    h, r = ub - ua, sb - sa
    hh = h * h % _FIELD
    hhh, v = h * hh % _FIELD, ua * hh % _FIELD
    x = (r * r - hhh - 2 * v) % _FIELD
    return x, (r * (v - x) - sa * hhh) % _FIELD, h * a[2] * b[2] % _FIELD


def _affine(point: _Point) -> _Affine | None:
    x, y, z = point
    if not z:
        return None
    inverse = pow(z, -1, _FIELD)
    return x * inverse**2 % _FIELD, y * inverse**3 % _FIELD
