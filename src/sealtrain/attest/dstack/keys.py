"""Keys of a dstack guest: derivation, the claims that are signed about them, and their chain.

All derivations are HKDF-SHA256. The inputs are the app id and a path or domain, never the
deployment document: every allowed version of an app has the same keys. Binding to one recipe is
the broker's work, not this module's.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Literal

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sealtrain.attest.dstack.secp256k1 import public_key_of, recover
from sealtrain.base.secret import Secret
from sealtrain.errors import KeyProviderMismatch

Algorithm = Literal["secp256k1", "ed25519"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChain:
    """Whom a verified signature chain names. Compressed secp256k1 keys, 33 bytes each."""

    app_key: bytes
    root_key: bytes


def derive_app_key(root: Secret, app_id: bytes) -> Secret:
    """Secp256k1 scalar of an app, as the key provider derives it from its root scalar."""
    return _hkdf(root, b"RATLS", app_id + b"app-key")


def derive_v0(app_key: Secret, path: str) -> Secret:
    """Key of guest API v0 ``GetKey``: 32 bytes that serve both algorithms."""
    return _hkdf(app_key, b"RATLS", path.encode("utf-8"))


def derive_v1(app_key: Secret, domain: str, algorithm: Algorithm) -> Secret:
    """Key of guest API v1 ``GetKey``: 32 bytes for one algorithm."""
    info = _frame_parts(b"dstack-guest-v1-key", algorithm.encode("ascii"), domain.encode("utf-8"))
    return _hkdf(app_key, b"dstack-guest-v1", info)


def public_half(key: Secret, algorithm: Algorithm) -> bytes:
    """Public key: 33 bytes compressed (secp256k1) or 32 bytes (ed25519)."""
    if algorithm == "ed25519":
        return Ed25519PrivateKey.from_private_bytes(key.reveal()).public_key().public_bytes_raw()
    return public_key_of(key)


def claim_v0(purpose: str, public_key: bytes) -> bytes:
    """Message the app key signs about a v0 key."""
    return f"{purpose}:{public_key.hex()}".encode()


def claim_v1(domain: str, algorithm: Algorithm, public_key: bytes) -> bytes:
    """Message the app key signs about a v1 key."""
    return _frame_parts(
        b"dstack-guest-v1-key-claim", algorithm.encode("ascii"), domain.encode("utf-8"), public_key
    )


def write_app_key_claim(app_id: bytes, app_public_key: bytes) -> bytes:
    """Message the key provider's root signs about an app key."""
    return b"dstack-kms-issued:" + app_id + app_public_key


def verify_chain(
    chain: tuple[bytes, ...], *, claim: bytes, app_id: bytes, root_key: bytes
) -> KeyChain:
    """Verify that a pinned root vouches for the key a claim names.

    Args:
        chain: Two recoverable signatures: app key over ``claim``, root over the app key.
        claim: ``claim_v0(...)`` or ``claim_v1(...)`` of the key in question.
        app_id: 20 bytes, from attested evidence.
        root_key: Pinned root, 33 bytes compressed.

    Raises:
        SignatureInvalid: A signature is malformed or leads to no key.
        KeyProviderMismatch: The chain ends in another root.
    """
    if len(chain) != 2:
        raise KeyProviderMismatch(
            "key has no signature chain of two links", check="key chain", got=len(chain), expected=2
        )
    app_key = recover(chain[0], claim)
    found = recover(chain[1], write_app_key_claim(app_id, app_key))
    if found != root_key:
        raise KeyProviderMismatch(
            "key was issued by another key provider",
            check="key chain",
            got=found.hex(),
            expected=root_key.hex(),
        )
    return KeyChain(app_key=app_key, root_key=found)


def _frame_parts(*parts: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(part)) + part for part in parts)


def _hkdf(key: Secret, salt: bytes, info: bytes) -> Secret:
    return Secret(HKDF(hashes.SHA256(), 32, salt, info).derive(key.reveal()))
