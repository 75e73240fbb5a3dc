"""Where the contracts keep what is read of them (spec/chain.md §3)."""

from __future__ import annotations

from typing import Literal

from sealtrain.attest.dstack.keccak import keccak256

__all__ = ["COMPOSE", "DEVICE", "IMPLEMENTATION", "compose_slot", "nonce_slot"]

COMPOSE, DEVICE = 0, 1
"""What an OwnersAppAuth decides on."""
IMPLEMENTATION = bytes.fromhex("360894a13ba1a3210667c828492db98dca3e2076cc3735a920a3ca505d382bbc")
"""Of an ERC-1967 proxy: Keccak-256 of ``eip1967.proxy.implementation``, less one."""

_APPROVED_UNTIL, _NONCES = 0, 1


def compose_slot(kind: Literal["owners", "dstack-app"], compose_hash: str) -> bytes:
    """Slot that says whether a compose hash counts, by the kind of contract."""
    if kind == "dstack-app":
        return _mapped(bytes.fromhex(compose_hash), _word(0))
    return _by_kind(COMPOSE, compose_hash, _APPROVED_UNTIL)


def nonce_slot(subject_kind: int, subject: str) -> bytes:
    """Slot with the nonce of the next decision of an OwnersAppAuth on a subject."""
    return _by_kind(subject_kind, subject, _NONCES)


def _by_kind(kind: int, subject: str, mapping: int) -> bytes:
    return _mapped(bytes.fromhex(subject), _mapped(_word(kind), _word(mapping)))


def _mapped(key: bytes, slot: bytes) -> bytes:
    return keccak256(key + slot)


def _word(value: int) -> bytes:
    return value.to_bytes(32, "big")
