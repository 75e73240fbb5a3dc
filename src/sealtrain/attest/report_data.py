"""What evidence commits to: one binding per conversation (spec/evidence.md §2).

The CPU's quote carries 64 bytes that commit to purpose, transcript and the accelerators' evidence;
each accelerator's report carries 32 bytes made for the same purpose and transcript. Evidence made
for one purpose, or accelerators of another conversation, therefore never answer.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from sealtrain.base.canonical import JsonValue, canonical_json
from sealtrain.errors import DataInvalid

REPORT_DATA_BYTES = 64
_PURPOSE = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Binding:
    """One conversation: what evidence must be made for.

    Attributes:
        purpose: Lower-case word such as ``"release"``, 1 to 63 characters.
        transcript: Every field that must not be exchanged; a JSON value.
    """

    purpose: str
    transcript: JsonValue

    def gpu_nonce(self) -> bytes:
        """As the function of that name."""
        return gpu_nonce(self.purpose, self.transcript)

    def report_data(self, gpu_digest: bytes = b"") -> bytes:
        """As the function of that name."""
        return report_data(self.purpose, self.transcript, gpu_digest)


def report_data(purpose: str, transcript: JsonValue, gpu_digest: bytes = b"") -> bytes:
    """``SHA-512("sealtrain/<purpose>/v1:" || canonical_json(transcript) || gpu_digest)``.

    Args:
        purpose: Lower-case word such as ``"release"``, 1 to 63 characters.
        transcript: JSON value, at most what RFC 8785 can carry.
        gpu_digest: SHA-256 of the accelerators' evidence, empty where the guest shows none.

    Returns:
        64 bytes.

    Raises:
        DataInvalid: The purpose is no such word, the transcript has no canonical form, or the
            digest has another length.
    """
    if len(gpu_digest) not in (0, _DIGEST_BYTES):
        raise DataInvalid(
            "digest of accelerator evidence has the wrong length",
            got=len(gpu_digest),
            expected=f"0 or {_DIGEST_BYTES}",
        )
    # A JSON text ends itself, so the digest behind it cannot be taken for a part of it.
    body = canonical_json(transcript) + gpu_digest
    return hashlib.sha512(_prefix(purpose, "v1") + body).digest()


def gpu_nonce(purpose: str, transcript: JsonValue) -> bytes:
    """``SHA-256("sealtrain/<purpose>/gpu-nonce/v1:" || canonical_json(transcript))``.

    Returns:
        32 bytes, the nonce of every accelerator's report in this conversation.

    Raises:
        DataInvalid: As ``report_data``.
    """
    prefix = _prefix(purpose, "gpu-nonce/v1")
    return hashlib.sha256(prefix + canonical_json(transcript)).digest()


def _prefix(purpose: str, what: str) -> bytes:
    if not _PURPOSE.fullmatch(purpose):
        raise DataInvalid(
            "purpose of report data is malformed", got=purpose, expected="[a-z0-9-], 1 to 63 long"
        )
    return f"sealtrain/{purpose}/{what}:".encode("ascii")
