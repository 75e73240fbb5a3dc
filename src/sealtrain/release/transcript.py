"""What both sides compute alike: transcript digest, HPKE info, origin (spec §2, §4)."""

from __future__ import annotations

from sealtrain.base.canonical import JsonValue, canonical_json
from sealtrain.base.digests import sha256_hex

__all__ = [
    "IDENTITY_PURPOSE",
    "KEYS_PURPOSE",
    "RELEASE_PURPOSE",
    "RENEWAL_PURPOSE",
    "answer_info",
    "ledger_origin",
    "transcript_digest",
]

RELEASE_PURPOSE = "release"
RENEWAL_PURPOSE = "renewal"
KEYS_PURPOSE = "broker-keys"
IDENTITY_PURPOSE = "broker-identity"
"""Purposes of ``attest.report_data``: evidence for one cannot serve another."""


def transcript_digest(transcript: JsonValue) -> str:
    """SHA-256 of the canonical transcript, 64 hex digits."""
    return sha256_hex(canonical_json(transcript))


def answer_info(digest: str) -> bytes:
    """HPKE ``info`` of the answer to the request with this transcript digest."""
    return canonical_json({"purpose": "sealtrain/release/v2", "transcript_digest": digest})


def ledger_origin(consortium_id: str) -> str:
    """Origin line of the checkpoints of a consortium's ledger."""
    return f"sealtrain/ledger/{consortium_id}"
