"""dstack's event log and attestation blob: from either API generation into log entries.

Nothing here is trusted; ``verify`` recomputes and replays. What no register covers (names, types
and payloads of firmware events, supplied digests of run-time events) is dropped, so equal guests
give equal logs.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Literal

from sealtrain.attest.dstack.msgpack import unpack
from sealtrain.attest.dstack.scale import kind_of, unpack_attestation
from sealtrain.attest.errors import EvidenceMalformed, PlatformMismatch
from sealtrain.attest.statement import MAX_EVIDENCE_VALUES, MAX_LOG_ENTRIES, LogEntry
from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.base.models import load_model
from sealtrain.errors import DataInvalid

Kind = Literal["tdx", "gcp-tdx", "aws-nitro-tpm", "nitro-enclave", "amd-sev-snp"]
_MAX_CERTIFICATES = 8
RUNTIME_EVENT = 0x08000001
"""Event type of every dstack run-time event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStatement:
    """What dstack's agent hands out; nothing of it is trusted.

    Attributes:
        kind: dstack's word for the machine.
        statement: TDX quote, report of SEV-SNP, or document of a NitroTPM or Nitro enclave.
        log: Run-time events.
        config: The host's statement about the machine.
        report_data: What the agent says it asked the machine to sign.
        tpm_quote: The vTPM's quote with what came along, on Google Cloud.
        certificates: Beside a report: one table of the kernel, or single ones; perhaps none.
        mr_config: Beside a report: the text that HOST_DATA commits to.
    """

    kind: Kind
    statement: bytes
    log: tuple[LogEntry, ...]
    config: str
    report_data: bytes
    tpm_quote: dict[str, Any] | None
    certificates: tuple[bytes, ...] = ()
    mr_config: str = ""


def runtime_digest(name: str, payload: bytes, version: int) -> bytes:
    """SHA-384 a run-time event extends register 3 with.

    The same bytes are hashed for registers of other banks.
    """
    return hashlib.sha384(runtime_preimage(name, payload, version)).digest()


def runtime_preimage(name: str, payload: bytes, version: int) -> bytes:
    """What is hashed of a run-time event.

    Version 1 is ``le32(type) ":" name ":" payload``; version 2 the canonical JSON of name, payload
    (hex) and type.
    """
    if version == 2:
        return canonical_json({"name": name, "payload": payload.hex(), "type": RUNTIME_EVENT})
    return b":".join((RUNTIME_EVENT.to_bytes(4, "little"), name.encode("utf-8"), payload))


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
    """Quote, run-time log, host configuration and report data of a TDX guest's attestation.

    Raises:
        EvidenceMalformed: Not such a blob.
        PlatformMismatch: Of a platform that is not TDX.
    """
    if blob.startswith(b"\0") and (kind := kind_of(blob)) not in ("tdx", "gcp-tdx"):
        raise _other_platform(kind)
    found = parse_statement(blob)
    if found.kind not in ("tdx", "gcp-tdx"):
        raise _other_platform(found.kind)
    return found.statement, found.log, found.config, found.report_data


def parse_statement(blob: bytes) -> AgentStatement:
    """The statement of a versioned attestation, of whichever kind of machine.

    Version 0 is SCALE and begins with a zero byte, version 1 is MessagePack. Firmware events are
    dropped: guests strip most of them, and the quote itself carries the registers they led to.

    Raises:
        EvidenceMalformed: Not such a blob.
        PlatformMismatch: Of a platform whose statement is not read here.
    """
    if blob.startswith(b"\0"):
        parts = unpack_attestation(blob)
        if parts["kind"] == "aws-nitro-tpm":
            return AgentStatement(
                kind="aws-nitro-tpm",
                statement=parts["document"],
                log=_runtime_log(parts["runtime_events"]),
                config=parts["config"],
                report_data=parts["report_data"],
                tpm_quote=None,
            )
        if parts["kind"] in ("nitro-enclave", "amd-sev-snp"):
            return _without_events(parts["kind"], parts, parts)
        runtime = [entry for entry in parts["event_log"] if entry["imr"] == 3]
        return AgentStatement(
            kind=parts["kind"],
            statement=parts["quote"],
            log=log_entries(runtime),
            config=parts["config"],
            report_data=parts["report_data"],
            tpm_quote=parts.get("tpm_quote"),
        )
    document = unpack(blob)
    if not isinstance(document, dict) or document.get("version") != 1:
        raise EvidenceMalformed("attestation blob is not of version 1", check="attestation blob")
    (kind, data), stack = _variant(document, "platform"), _variant(document, "stack")
    config = stack[1].get("config")
    if not isinstance(config, str):
        raise EvidenceMalformed("attestation blob has no configuration", check="attestation blob")
    report_data = octets_of(stack[1].get("report_data"))
    if kind == "aws-nitro-tpm":
        return AgentStatement(
            kind="aws-nitro-tpm",
            statement=octets_of(data.get("attestation_doc")),
            log=_runtime_log(stack[1].get("runtime_events")),
            config=config,
            report_data=report_data,
            tpm_quote=None,
        )
    if kind == "nitro-enclave":
        return _without_events("nitro-enclave", {"document": data.get("nsm_quote")}, stack[1])
    if kind == "sev-snp":
        return _without_events("amd-sev-snp", data, stack[1])
    if kind not in ("tdx", "gcp-tdx"):
        raise _other_platform(kind)
    tpm_quote = data.get("tpm_quote")
    if kind == "gcp-tdx" and not isinstance(tpm_quote, dict):
        raise EvidenceMalformed("attestation blob has no TPM quote", check="attestation blob")
    log = data.get("event_log")
    entries = [entry for entry in log if _imr(entry) == 3] if isinstance(log, list) else log
    return AgentStatement(
        kind="tdx" if kind == "tdx" else "gcp-tdx",
        statement=octets_of(data.get("quote")),
        log=log_entries(entries),
        config=config,
        report_data=report_data,
        tpm_quote=tpm_quote if kind == "gcp-tdx" else None,
    )


def _without_events(kind: Kind, own: dict[str, Any], stack: dict[str, Any]) -> AgentStatement:
    """Of a machine whose registers hold no run-time events."""
    chain: Any = own.get("cert_chain", [])
    config, mr_config = stack.get("config"), own.get("mr_config", "")
    if not isinstance(config, str) or not isinstance(mr_config, str):
        raise EvidenceMalformed("attestation blob has no configuration", check="attestation blob")
    if not isinstance(chain, list) or len(chain) > _MAX_CERTIFICATES:
        raise EvidenceMalformed("attestation blob has no chain", check="attestation blob")
    return AgentStatement(
        kind=kind,
        statement=octets_of(own.get("report" if kind == "amd-sev-snp" else "document")),
        log=(),
        config=config,
        report_data=octets_of(stack.get("report_data")),
        tpm_quote=None,
        certificates=tuple(octets_of(certificate) for certificate in chain),
        mr_config=mr_config,
    )


def _other_platform(kind: str) -> PlatformMismatch:
    return PlatformMismatch(
        "attestation is of another platform",
        check="platform",
        got=kind[:64],
        expected="tdx",
        hint="take the platform's own report out of it",
    )


def _runtime_log(events: Any) -> tuple[LogEntry, ...]:
    """Run-time events as the agent lists them, where no register of TDX has them."""
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise EvidenceMalformed("attestation blob has no run-time events", check="event log")
    return log_entries(
        [
            {
                "imr": 3,
                "event_type": RUNTIME_EVENT,
                "event": event.get("event"),
                "event_payload": event.get("payload", ""),
                "version": {"V2": 2, 2: 2}.get(event.get("version"), 1),
            }
            for event in events
        ]
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
        fields["event_payload"] = octets_of(item.get("event_payload", "")).hex()
        fields["version"] = item.get("version", 1)
    else:
        fields["digest"] = octets_of(item.get("digest", "")).hex()
    return load_model(LogEntry, fields, EvidenceMalformed, "event log entry")


def octets_of(value: Any) -> bytes:
    """Bytes from hex text, raw bytes, or a list of integers as some encoders write them.

    Raises:
        EvidenceMalformed: Something else.
    """
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
