"""Keys worth trusting, and signatures against RFC 8032's first test vector."""

from __future__ import annotations

import hashlib

import pytest
from carrying import carries
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sealtrain.errors import DataInvalid, SignatureInvalid
from sealtrain.signing.ed25519 import (
    Ed25519Signer,
    check_public_key,
    key_id,
    verify_signature,
)

PRIME = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, PRIME) % PRIME

# RFC 8032 §7.1, TEST 1
SECRET = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
PUBLIC = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
SIGNATURE = bytes.fromhex(
    "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555"
    "fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
)


def test_signatures_are_those_of_the_rfc() -> None:
    signer = Ed25519Signer(Ed25519PrivateKey.from_private_bytes(SECRET))
    assert signer.public == PUBLIC
    assert signer.sign(b"") == SIGNATURE
    assert verify_signature(PUBLIC, SIGNATURE, b"") == b""
    assert signer.key_id == key_id(PUBLIC) == "ed25519:" + hashlib.sha256(PUBLIC).hexdigest()


@pytest.mark.parametrize("position", [0, 31, 32, 63])
def test_a_changed_signature_is_refused(position: int) -> None:
    changed = bytearray(SIGNATURE)
    changed[position] ^= 1
    with pytest.raises(SignatureInvalid):
        verify_signature(PUBLIC, bytes(changed), b"")


def test_a_signature_with_the_group_order_added_is_refused() -> None:
    scalar = int.from_bytes(SIGNATURE[32:], "little") + ORDER
    malleable = SIGNATURE[:32] + scalar.to_bytes(32, "little")
    with pytest.raises(SignatureInvalid):
        verify_signature(PUBLIC, malleable, b"")


@pytest.mark.parametrize("length", [0, 63, 65])
def test_a_signature_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(SignatureInvalid):
        verify_signature(PUBLIC, (SIGNATURE * 2)[:length], b"")


def add(p: tuple[int, int], q: tuple[int, int]) -> tuple[int, int]:
    """Affine addition on edwards25519."""
    (x1, y1), (x2, y2) = p, q
    k = D * x1 * x2 * y1 * y2
    x = (x1 * y2 + x2 * y1) * pow(1 + k, -1, PRIME) % PRIME
    y = (y1 * y2 + x1 * x2) * pow(1 - k, -1, PRIME) % PRIME
    return x, y


def small_order_points() -> set[tuple[int, int]]:
    """The eight points whose order divides 8, found from the curve's equation."""
    root_of_minus_one = pow(2, (PRIME - 1) // 4, PRIME)
    points = {(0, 1), (0, PRIME - 1), (root_of_minus_one, 0), (PRIME - root_of_minus_one, 0)}
    # A point of order 8 doubles to (±sqrt(-1), 0): y² = -x² and d·x⁴ - ... solved for y².
    # From y² = -x² and -x² + y² = 1 + d·x²·y²:  d·y⁴ + 2·y² - 1 = 0.
    half = pow(1 + D, (PRIME + 3) // 8, PRIME)
    for root in (half, half * root_of_minus_one % PRIME):
        if root * root % PRIME == (1 + D) % PRIME:
            for sign in (root, -root):
                square = (sign - 1) * pow(D, -1, PRIME) % PRIME
                y = pow(square, (PRIME + 3) // 8, PRIME)
                for candidate in (y, y * root_of_minus_one % PRIME):
                    if candidate * candidate % PRIME == square:
                        x = candidate * root_of_minus_one % PRIME
                        points |= {(x, candidate), (PRIME - x, candidate)}
                        points |= {(x, PRIME - candidate), (PRIME - x, PRIME - candidate)}
    return points


def test_every_point_of_small_order_is_refused_as_a_key() -> None:
    points = small_order_points()
    assert len(points) == 8
    for point in points:
        eighth = (0, 1)
        for _ in range(8):
            eighth = add(eighth, point)
        assert eighth == (0, 1)
        encoded = (point[1] | (point[0] & 1) << 255).to_bytes(32, "little")
        with pytest.raises(DataInvalid, check=carries(check="key order")):
            check_public_key(encoded)


@pytest.mark.parametrize("y", [PRIME, PRIME + 1, 2**255 - 1])
def test_a_key_with_a_second_encoding_is_refused(y: int) -> None:
    with pytest.raises(DataInvalid, check=carries(check="key encoding")):
        check_public_key(y.to_bytes(32, "little"))


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_key_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(DataInvalid, check=carries(expected="32 bytes")):
        check_public_key(bytes(length))
    with pytest.raises(SignatureInvalid):
        verify_signature(bytes(length), SIGNATURE, b"")


def test_a_forgery_under_a_small_order_key_is_refused() -> None:
    # With the neutral element as key, R = S·B verifies for every message: here R = 0·B, S = 0.
    neutral = (1).to_bytes(32, "little")
    with pytest.raises(SignatureInvalid):
        verify_signature(neutral, neutral + bytes(32), b"any message")
