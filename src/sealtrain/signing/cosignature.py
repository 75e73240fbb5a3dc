"""Cosignatures of tree heads (C2SP tlog-cosignature v1.1, both kinds). See ``spec/ledger.md`` §7.

A cosignature is a signature line of a note whose signature is ``time ‖ signature``, the time 8
bytes big-endian. Its key id is ``SHA-256(name ‖ 0x0A ‖ kind ‖ public key)[:4]``, so it is never
taken for the log's own signature.

=========  ====  =========  ============================================================
key        kind  signature  signed
=========  ====  =========  ============================================================
Ed25519    0x04  64 bytes   lines ``cosignature/v1`` and ``time <time>``, then the text
ML-DSA-44  0x06  2420       ``subtree/v1``, names, time, 0, size and root, in binary
=========  ====  =========  ============================================================

``verify_cosignature`` demands

1. the length of its kind,
2. a time from 1 to 2**53 - 1, and
3. that the signature verifies.
"""

from __future__ import annotations

import hashlib
import struct

from sealtrain.base.encoding import from_base64
from sealtrain.errors import DataInvalid, SignatureInvalid
from sealtrain.signing import ed25519, ml_dsa
from sealtrain.signing.note import NoteSignature

CosignSigner = ed25519.Ed25519Signer | ml_dsa.MlDsa44Signer
"""What cosigns; the length of its public key tells the kind."""

_TIME_BYTES = 8
_MAX_TIME = 2**53 - 1
_KINDS = {
    ed25519.PUBLIC_KEY_BYTES: (b"\x04", ed25519.SIGNATURE_BYTES, ed25519.verify_signature),
    ml_dsa.PUBLIC_KEY_BYTES: (b"\x06", ml_dsa.SIGNATURE_BYTES, ml_dsa.verify_signature),
}


def cosignature_key_id(name: str, public: bytes) -> bytes:
    """Key id of a witness's key under ``name``, 4 bytes.

    Args:
        name: Key name: not empty, no space, no plus sign.
        public: Public key of 32 bytes (Ed25519) or 1312 (ML-DSA-44).
    """
    kind, _, _ = _KINDS[len(public)]
    return hashlib.sha256(name.encode("utf-8") + b"\n" + kind + public).digest()[:4]


def cosign(text: str, name: str, signer: CosignSigner, *, at: int) -> NoteSignature:
    """Cosign a tree head that was found to extend every one seen before.

    Args:
        text: Text of the tree head's note.
        name: The witness's key name.
        signer: The witness's key.
        at: Now, seconds since the epoch.

    Raises:
        ValueError: The time is out of range.
        SignatureInvalid: The text is not a tree head's.
    """
    if not 1 <= at <= _MAX_TIME:
        raise ValueError("a cosignature has a time from 1 to 2**53 - 1")
    signed = _write_signed_message(text, name, signer.public, at)
    return NoteSignature(
        name=name,
        key_id=cosignature_key_id(name, signer.public),
        signature=at.to_bytes(_TIME_BYTES, "big") + signer.sign(signed),
    )


def verify_cosignature(text: str, line: NoteSignature, public: bytes) -> int:
    """Return the time of a cosignature of ``text`` that passes the module's checks.

    Args:
        text: Text of the tree head's note.
        line: The signature line; the caller chose it by name and key id.
        public: The witness's raw key, 32 or 1312 bytes.

    Raises:
        SignatureInvalid: A check fails.
    """
    _, length, verify = _KINDS[len(public)]
    if len(line.signature) != _TIME_BYTES + length:
        raise SignatureInvalid(
            "a cosignature has the wrong length",
            check="cosignature",
            got=f"{len(line.signature)} bytes",
            expected=f"{_TIME_BYTES + length} bytes",
        )
    at = int.from_bytes(line.signature[:_TIME_BYTES], "big")
    if not 1 <= at <= _MAX_TIME:
        raise SignatureInvalid("a cosignature has no real time", check="cosignature", got=at)
    verify(public, line.signature[_TIME_BYTES:], _write_signed_message(text, line.name, public, at))
    return at


def _write_signed_message(text: str, name: str, public: bytes, at: int) -> bytes:
    if len(public) == ed25519.PUBLIC_KEY_BYTES:
        return f"cosignature/v1\ntime {at}\n{text}".encode()
    try:
        origin, size, root = text.removesuffix("\n").split("\n")
        return b"".join(
            (
                b"subtree/v1\n\0",
                _encode_name(name),
                struct.pack(">Q", at),
                _encode_name(origin),
                struct.pack(">QQ", 0, int(size)),
                from_base64(root, length=32),
            )
        )
    except (ValueError, struct.error, DataInvalid) as error:
        raise SignatureInvalid("what is cosigned is no tree head", check="cosignature") from error


def _encode_name(name: str) -> bytes:
    data = name.encode("utf-8")
    return struct.pack("B", len(data)) + data
