"""What the seed of a simulator determines: bytes and keys, the same on every run."""

from __future__ import annotations

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF


def octets(seed: bytes, part: str, label: str, length: int) -> bytes:
    """Bytes for one label.

    Args:
        seed: Secret of the simulator.
        part: Part of the simulator that asks, such as ``"nitro"``.
        label: ASCII.
        length: Number of bytes.
    """
    info = f"sealtrain/simulator-{part}/v1:{label}".encode("ascii")
    return HKDF(hashes.SHA256(), length, None, info).derive(seed)


def key_of(wide: bytes, curve: ec.EllipticCurve) -> ec.EllipticCurvePrivateKey:
    """A key on ``curve``; ``wide`` are uniform bytes, more than the curve's order has."""
    scalar = int.from_bytes(wide, "big") % (curve.group_order - 1) + 1
    return ec.derive_private_key(scalar, curve)
