"""Stateless challenges: the broker recognises its own and stores none (spec/key-release.md §3).

A challenge says when it expires and carries a code over that, under a key of its maker, the broker.
"""

from __future__ import annotations

import hmac
from typing import Final

from sealtrain.base.secret import Random, Secret

_TIME_BYTES: Final = 8
_RANDOM_BYTES: Final = 8
_TAG_BYTES: Final = 16


def make_challenge(key: Secret, *, expires_at: int, random: Random) -> str:
    """A challenge, 64 hex digits.

    Args:
        key: Of what it is for, and of nothing else.
        expires_at: First second at which it does not serve, seconds since the epoch.
        random: Source of 8 bytes.
    """
    head = expires_at.to_bytes(_TIME_BYTES, "big") + random(_RANDOM_BYTES)
    return (head + _tag(key, head)).hex()


def expiry_of(challenge: str, key: Secret) -> int | None:
    """When a challenge expires; ``None`` where it was not made with this key.

    Args:
        challenge: 64 hex digits.
        key: Of what it is used for.
    """
    data = bytes.fromhex(challenge)
    head, tag = data[:-_TAG_BYTES], data[-_TAG_BYTES:]
    if not hmac.compare_digest(_tag(key, head), tag):
        return None
    return int.from_bytes(head[:_TIME_BYTES], "big")


def _tag(key: Secret, head: bytes) -> bytes:
    return hmac.digest(key.reveal(), head, "sha256")[:_TAG_BYTES]
