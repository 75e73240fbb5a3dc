"""The 64 bytes a quote commits to: one hash per purpose over one canonical transcript.

``report_data = SHA-512("sealtrain/<purpose>/v1:" || canonical_json(transcript))`` (spec/evidence.md
§2). A quote made for one purpose therefore never answers another.
"""

from __future__ import annotations

import hashlib
import re

from sealtrain.base.canonical import JsonValue, canonical_json
from sealtrain.errors import DataInvalid

__all__ = ["REPORT_DATA_BYTES", "report_data"]

REPORT_DATA_BYTES = 64
_PURPOSE = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


def report_data(purpose: str, transcript: JsonValue) -> bytes:
    """Commitment to ``transcript`` for ``purpose``.

    Args:
        purpose: Lower-case word such as ``"release"``, 1 to 63 characters.
        transcript: JSON value, at most what RFC 8785 can carry.

    Returns:
        64 bytes.

    Raises:
        DataInvalid: The purpose is no such word, or the transcript has no canonical form.
    """
    if not _PURPOSE.fullmatch(purpose):
        raise DataInvalid(
            "purpose of report data is malformed", got=purpose, expected="[a-z0-9-], 1 to 63 long"
        )
    prefix = f"sealtrain/{purpose}/v1:".encode("ascii")
    return hashlib.sha512(prefix + canonical_json(transcript)).digest()
