"""Where the contracts keep what is read of them (spec/chain.md §3).

The slot that a release depends on stands in ``sealtrain.consortium.chainword``.
"""

from __future__ import annotations

from sealtrain.attest.dstack.keccak import keccak256

COMPOSE, DEVICE = 0, 1
"""What an OwnersAppAuth decides on."""

_NONCES = 1


def nonce_slot(subject_kind: int, subject: str) -> bytes:
    """Slot with the nonce of the next decision of an OwnersAppAuth on a subject."""
    return _by_kind(subject_kind, subject, _NONCES)


def _by_kind(kind: int, subject: str, mapping: int) -> bytes:
    return _map_slot(bytes.fromhex(subject), _map_slot(_word(kind), _word(mapping)))


def _map_slot(key: bytes, slot: bytes) -> bytes:
    return keccak256(key + slot)


def _word(value: int) -> bytes:
    return value.to_bytes(32, "big")
