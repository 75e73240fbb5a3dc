"""Cosignatures of checkpoints (C2SP tlog-cosignature v1, Ed25519). See ``spec/ledger.md`` §7.

A cosignature is a signature line of a note whose signature is ``time ‖ Ed25519 signature``, the
time 8 bytes big-endian. Signed are a line ``cosignature/v1``, a line ``time <time>`` and the note's
text. Its key id is ``SHA-256(name ‖ 0x0A ‖ 0x04 ‖ public key)[:4]``, so it is never taken for the
log's own signature. ``verify_cosignature`` demands

1. 72 bytes,
2. a time from 1 to 2**53 - 1, and
3. that the signature verifies.
"""

from __future__ import annotations

import hashlib

from sealtrain.errors import SignatureInvalid
from sealtrain.records.ed25519 import SIGNATURE_BYTES, Ed25519Signer, verify_signature
from sealtrain.records.note import NoteSignature

__all__ = ["cosign", "cosignature_key_id", "verify_cosignature"]

_COSIGNATURE_V1 = b"\x04"
_TIME_BYTES = 8
_MAX_TIME = 2**53 - 1


def cosignature_key_id(name: str, public: bytes) -> bytes:
    """Key id of a witness's Ed25519 key under ``name``, 4 bytes.

    Args:
        name: Key name: not empty, no space, no plus sign.
        public: 32-byte public key.
    """
    return hashlib.sha256(name.encode("utf-8") + b"\n" + _COSIGNATURE_V1 + public).digest()[:4]


def cosign(text: str, name: str, signer: Ed25519Signer, *, at: int) -> NoteSignature:
    """Cosign a checkpoint that was found to extend every one seen before.

    Args:
        text: Text of the checkpoint's note.
        name: The witness's key name.
        signer: The witness's key.
        at: Now, seconds since the epoch.

    Raises:
        ValueError: The time is out of range.
    """
    if not 1 <= at <= _MAX_TIME:
        raise ValueError("a cosignature has a time from 1 to 2**53 - 1")
    return NoteSignature(
        name=name,
        key_id=cosignature_key_id(name, signer.public),
        signature=at.to_bytes(_TIME_BYTES, "big") + signer.sign(_signed(text, at)),
    )


def verify_cosignature(text: str, line: NoteSignature, public: bytes) -> int:
    """Return the time of a cosignature of ``text`` that passes the module's checks.

    Args:
        text: Text of the checkpoint's note.
        line: The signature line; the caller chose it by name and key id.
        public: The witness's raw Ed25519 key, 32 bytes.

    Raises:
        SignatureInvalid: A check fails.
    """
    if len(line.signature) != _TIME_BYTES + SIGNATURE_BYTES:
        raise SignatureInvalid(
            "a cosignature has the wrong length",
            check="cosignature",
            got=f"{len(line.signature)} bytes",
            expected=f"{_TIME_BYTES + SIGNATURE_BYTES} bytes",
        )
    at = int.from_bytes(line.signature[:_TIME_BYTES], "big")
    if not 1 <= at <= _MAX_TIME:
        raise SignatureInvalid("a cosignature has no real time", check="cosignature", got=at)
    verify_signature(public, line.signature[_TIME_BYTES:], _signed(text, at))
    return at


def _signed(text: str, at: int) -> bytes:
    return f"cosignature/v1\ntime {at}\n{text}".encode()
