"""How the holder of a lease shows, in a request's head, that a request is its own (§5, §6).

A release hands out a key for its lease, inside the sealed answer. The head of a renewal names the
lease, the digest of the body and a code over that digest under the key. It decides nothing, the
evidence in the body does; it lets a broker tell guests that it released keys to from everybody
else before it reads a body.

A run's manifest is shown under a key of its own, which follows from the lease's: the lead of
several parties holds no lease, and gets this key from them. It renews and ends no lease.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import Final

from sealtrain.base.secret import Secret

LEASE_HEADER: Final = "sealtrain-lease"
_CONTEXT: Final = b"sealtrain/renewal/v1:"
_MANIFEST_CONTEXT: Final = b"sealtrain/manifest/v1:"
_MANIFEST_KEY: Final = b"sealtrain/manifest-key/v1"
_SHOWN: Final = re.compile(r"([0-9a-f]{64}) ([0-9a-f]{64}) ([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class LeaseShown:
    """What a head says.

    Attributes:
        lease_id: 64 hex digits.
        digest: SHA-256 of the body.
        code: Of the digest, under the lease's key.
    """

    lease_id: str
    digest: bytes
    code: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """Shows one broker that a guest which it released keys to hands in the manifest.

    Attributes:
        broker_id: Of the broker, 64 hex digits.
        lease_id: 64 hex digits.
        key: From ``manifest_key``.
    """

    broker_id: str
    lease_id: str
    key: Secret


def lease_code(key: Secret, digest: bytes) -> bytes:
    """The code of a body under a lease's key.

    Args:
        key: Of the lease.
        digest: SHA-256 of the body.
    """
    return hmac.digest(key.reveal(), _CONTEXT + digest, "sha256")


def show_lease(lease_id: str, key: Secret, body: bytes) -> dict[str, str]:
    """The header that shows a lease.

    Args:
        lease_id: 64 hex digits.
        key: Of the lease.
        body: What is sent.
    """
    digest = hashlib.sha256(body).digest()
    return {LEASE_HEADER: f"{lease_id} {digest.hex()} {lease_code(key, digest).hex()}"}


def manifest_key(lease_key: Secret) -> Secret:
    """The key that shows manifests, of a lease's key."""
    return Secret(hmac.digest(lease_key.reveal(), _MANIFEST_KEY, "sha256"))


def manifest_code(key: Secret, digest: bytes) -> bytes:
    """The code of a manifest under ``manifest_key``.

    Args:
        key: From ``manifest_key``.
        digest: SHA-256 of the manifest.
    """
    return hmac.digest(key.reveal(), _MANIFEST_CONTEXT + digest, "sha256")


def show_manifest(closing: Closing, manifest: bytes) -> dict[str, str]:
    """The header that shows whose run a manifest is of."""
    digest = hashlib.sha256(manifest).digest()
    code = manifest_code(closing.key, digest)
    return {LEASE_HEADER: f"{closing.lease_id} {digest.hex()} {code.hex()}"}


def read_lease_header(header: str) -> LeaseShown | None:
    """What a header says; ``None`` where it says nothing of a lease."""
    found = _SHOWN.fullmatch(header)
    if found is None:
        return None
    return LeaseShown(found[1], bytes.fromhex(found[2]), bytes.fromhex(found[3]))
