"""dstack's event log and attestation blob: from either API generation into log entries.

Nothing here is trusted; ``verify`` recomputes and replays. What no register covers (names, types
and payloads of firmware events, supplied digests of run-time events) is dropped, so equal guests
give equal logs.
"""

from __future__ import annotations

import hashlib
from typing import Any

from sealtrain.attest.dstack.msgpack import unpack
from sealtrain.attest.dstack.scale import unpack_attestation
from sealtrain.attest.statement import MAX_EVIDENCE_VALUES, MAX_LOG_ENTRIES, LogEntry
from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.base.models import load_model
from sealtrain.errors import DataInvalid, EvidenceMalformed, PlatformMismatch

__all__ = [
    "RUNTIME_EVENT",
    "log_entries",
    "parse_attestation",
    "parse_event_log",
    "runtime_digest",
]

RUNTIME_EVENT = 0x08000001
"""Event type of every dstack run-time event."""


def runtime_digest(name: str, payload: bytes, version: int) -> bytes:
    """SHA-384 a run-time event extends register 3 with.

    Version 1 hashes ``le32(type) ":" name ":" payload``; version 2 the canonical JSON of name,
    payload (hex) and type.
    """
    if version == 2:
        preimage = canonical_json({"name": name, "payload": payload.hex(), "type": RUNTIME_EVENT})
    else:
        preimage = b":".join((RUNTIME_EVENT.to_bytes(4, "little"), name.encode("utf-8"), payload))
    return hashlib.sha384(preimage).digest()


def parse_event_log(text: str) -> tuple[LogEntry, ...]:
    """Event log of API v0: a JSON array.

    Raises:
        EvidenceMalformed: Not such an array, or over the limits of evidence.
    """
    try:
        value = parse_json(
            text.encode("utf-8"), max_bytes=8 << 20, max_depth=8, max_values=MAX_EVIDENCE_VALUES
        )
    except (DataInvalid, UnicodeEncodeError) as error:
        raise EvidenceMalformed("event log is not JSON", check="event log") from error
    return log_entries(value)


def log_entries(value: Any) -> tuple[LogEntry, ...]:
    """Entries of a parsed log; bytes may be lower-case hex text or raw.

    Raises:
        EvidenceMalformed: Not a list of entries, or over the limits of evidence.
    """
    if not isinstance(value, list) or not 0 < len(value) <= MAX_LOG_ENTRIES:
        raise EvidenceMalformed(
            "event log is not a list of entries",
            check="event log",
            expected=f"1 to {MAX_LOG_ENTRIES} entries",
        )
    return tuple(_entry(item) for item in value)


def parse_attestation(blob: bytes) -> tuple[bytes, tuple[LogEntry, ...], str, bytes]:
    """Quote, run-time log, host configuration and report data of a versioned attestation.

    Version 0 is SCALE and begins with a zero byte, version 1 is MessagePack. Firmware events are
    dropped: guests strip most of them, and the quote itself carries the registers they led to.

    Raises:
        EvidenceMalformed: Not such a blob.
        PlatformMismatch: Of a platform that is not TDX.
    """
    if blob.startswith(b"\0"):
        parts = unpack_attestation(blob)
        runtime = [entry for entry in parts["event_log"] if entry["imr"] == 3]
        return parts["quote"], log_entries(runtime), parts["config"], parts["report_data"]
    document = unpack(blob)
    if not isinstance(document, dict) or document.get("version") != 1:
        raise EvidenceMalformed("attestation blob is not of version 1", check="attestation blob")
    platform, stack = _variant(document, "platform"), _variant(document, "stack")
    if platform[0] not in ("tdx", "gcp-tdx"):
        raise PlatformMismatch(
            "attestation is not of a TDX guest",
            check="platform",
            got=platform[0][:64],
            expected="tdx",
            hint="take the platform's own report out of it",
        )
    log = platform[1].get("event_log")
    entries = [entry for entry in log if _imr(entry) == 3] if isinstance(log, list) else log
    config = stack[1].get("config")
    if not isinstance(config, str):
        raise EvidenceMalformed("attestation blob has no configuration", check="attestation blob")
    return (
        _octets(platform[1].get("quote")),
        log_entries(entries),
        config,
        _octets(stack[1].get("report_data")),
    )


def _variant(document: dict[str, Any], name: str) -> tuple[str, dict[str, Any]]:
    part = document.get(name)
    if isinstance(part, dict):
        kind, data = part.get("kind"), part.get("data")
        if isinstance(kind, str) and isinstance(data, dict):
            return kind, data
    raise EvidenceMalformed(f"attestation blob has no {name}", check="attestation blob")


def _imr(entry: Any) -> Any:
    return entry.get("imr") if isinstance(entry, dict) else None


def _entry(item: Any) -> LogEntry:
    if not isinstance(item, dict):
        raise EvidenceMalformed("event log entry is not an object", check="event log")
    imr = item.get("imr")
    fields: dict[str, Any] = {"imr": imr, "event_type": 0, "digest": "", "event": ""}
    fields |= {"event_payload": "", "version": 1}
    if imr == 3:
        fields["event_type"] = item.get("event_type")
        fields["event"] = item.get("event")
        fields["event_payload"] = _octets(item.get("event_payload", "")).hex()
        fields["version"] = item.get("version", 1)
    else:
        fields["digest"] = _octets(item.get("digest", "")).hex()
    return load_model(LogEntry, fields, EvidenceMalformed, "event log entry")


def _octets(value: Any) -> bytes:
    """Bytes from hex text, raw bytes, or a list of integers as some encoders write them."""
    try:
        if isinstance(value, str):
            return bytes.fromhex(value)
        if isinstance(value, list):
            return bytes(value)
    except (ValueError, TypeError) as error:
        raise EvidenceMalformed("evidence holds malformed bytes", check="event log") from error
    if isinstance(value, bytes):
        return value
    raise EvidenceMalformed("a field of bytes is missing", check="event log")
