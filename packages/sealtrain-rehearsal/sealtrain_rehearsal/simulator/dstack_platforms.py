"""What dstack's agent attests where it is not on TDX: SEV-SNP, Nitro enclaves, EC2 instances.

Blobs of either version (``spec/evidence-tdx.md``), around the statements of ``snp`` and ``nitro``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Literal

from sealtrain.attest.dstack.msgpack import pack
from sealtrain.attest.dstacksnp.launch import launch_commitment
from sealtrain.attest.nitro.collect import attestation
from sealtrain.base.canonical import JsonValue, canonical_json
from sealtrain.base.encoding import from_base64
from sealtrain.errors import DataInvalid
from sealtrain_rehearsal.simulator.snp import SimulatedSnp

Version = Literal[0, 1]
_Value = bytes | list[bytes] | str
_Own = dict[str, _Value]
LAUNCH_FAULT_MEANINGS = {
    "other-launch-config": "another configuration than the launched one (compose-hash-mismatch)",
    "other-compose": "another deployment document was launched (compose-hash-mismatch)",
    "malformed-launch-config": "a configuration of another version (evidence-malformed)",
}
"""What a guest on SEV-SNP can be told to get wrong, besides the lies of its platform."""
HOSTED_FAULT_MEANINGS = {
    **LAUNCH_FAULT_MEANINGS,
    "other-report-data": "shows report data that were not signed (report-data-mismatch)",
}
"""What a wrapper can be told to get wrong, besides the lies of the platform in it."""

_HOST_STATEMENT = '{"image":"SIMULATED"}'
_VARIANTS = {"nitro-enclave": 2, "sev-snp": 3}


def launch_config(app_compose: bytes) -> str:
    """What dstack's host sets at the launch of a guest with this document, as canonical JSON."""
    digest = hashlib.sha256(app_compose).digest()
    document = {
        "app_id": digest[:20].hex(),
        "compose_hash": digest.hex(),
        "instance_id": hashlib.sha256(b"SIMULATED instance" + digest).digest()[:20].hex(),
        "key_provider": "none",
        "version": 3,
    }
    return canonical_json(document).decode("ascii")


def snp_attestation(
    guest: SimulatedSnp,
    report_data: bytes,
    app_compose: bytes,
    *,
    version: Version = 1,
    chain: tuple[bytes, ...] | None = None,
    fault: str | None = None,
) -> bytes:
    """The blob of a SEV-SNP guest over 64 bytes.

    Args:
        guest: Whose report it is.
        report_data: 64 bytes.
        app_compose: The deployment document.
        version: 0 for SCALE, 1 for MessagePack.
        chain: What stands for its certificates; ``None`` for leaf, issuer and root.
        fault: One of the platform's or of ``HOSTED_FAULT_MEANINGS``.

    Raises:
        DataInvalid: Not 64 bytes, or an unknown fault.
    """
    inner = None if fault in HOSTED_FAULT_MEANINGS else fault
    launched, shown = _texts(app_compose, fault)
    report = guest.report(
        report_data, app_compose, host_data=launch_commitment(launched), fault=inner
    )
    own: _Own = {
        "report": report,
        "cert_chain": list(guest.certificates(fault=inner) if chain is None else chain),
        "mr_config": shown,
    }
    return _blob("sev-snp", own, _show_report(report_data, fault), version)


def snp_evidence(
    guest: SimulatedSnp, report_data: bytes, app_compose: bytes, *, now: int, fault: str | None
) -> dict[str, JsonValue]:
    """The same as an evidence document carries it, with a revocation list made at ``now``.

    Raises as ``snp_attestation``.
    """
    inner = None if fault in HOSTED_FAULT_MEANINGS else fault
    launched, shown = _texts(app_compose, fault)
    found = guest.show(
        report_data, app_compose, now=now, host_data=launch_commitment(launched), fault=inner
    )
    return {**found, "tee": "dstack-amd-sev-snp", "mr_config": shown}


def _texts(app_compose: bytes, fault: str | None) -> tuple[str, str]:
    """The launch configuration that HOST_DATA commits to, and the one that is shown."""
    launched = launch_config(app_compose + (b"\n" if fault == "other-compose" else b""))
    if fault == "malformed-launch-config":
        launched = launched.replace('"version":3', '"version":4')
    return launched, launched + (" " if fault == "other-launch-config" else "")


def enclave_attestation(
    nsm: Callable[[bytes], bytes],
    report_data: bytes,
    *,
    version: Version = 1,
    fault: str | None = None,
) -> bytes:
    """The blob of an enclave over 64 bytes; lies of its module are the module's own.

    Raises:
        DataInvalid: Not 64 bytes.
    """
    if len(report_data) != 64:
        raise DataInvalid("report_data is not 64 bytes long")
    own: _Own = {"nsm_quote": attestation(nsm, user_data=report_data)}
    return _blob("nitro-enclave", own, _show_report(report_data, fault), version)


def nitro_tpm_attestation(
    attest: Callable[[bytes], dict[str, JsonValue]], report_data: bytes
) -> bytes:
    """The blob of an EC2 instance with a NitroTPM over 64 bytes, in version 1.

    Args:
        attest: Its evidence over 64 bytes, as a broker of ours gets it.
        report_data: Those bytes.
    """
    shown: Any = attest(report_data)
    data = {"attestation_doc": list(from_base64(shown["document"]))}
    events = [
        {"event": entry["event"], "payload": bytes.fromhex(entry["event_payload"])}
        for entry in shown["event_log"]
    ]
    config = shown["vm_config"] or ""
    stack = {"report_data": list(report_data), "runtime_events": events, "config": config}
    return pack(
        {
            "version": 1,
            "platform": {"kind": "aws-nitro-tpm", "data": data},
            "stack": {"kind": "dstack", "data": stack},
        }
    )


def _show_report(report_data: bytes, fault: str | None) -> bytes:
    if fault == "other-report-data":
        return hashlib.sha512(report_data).digest()
    return report_data


def _blob(platform: str, own: _Own, shown: bytes, version: Version) -> bytes:
    if version == 1:
        # dstack's encoder writes plain byte vectors as arrays of integers.
        data = {name: _integers(value) for name, value in own.items()}
        stack = {"report_data": list(shown), "runtime_events": [], "config": _HOST_STATEMENT}
        return pack(
            {
                "version": 1,
                "platform": {"kind": platform, "data": data},
                "stack": {"kind": "dstack", "data": stack},
            }
        )
    inner = b"".join(_scale(value) for value in own.values())
    head = bytes([0, _VARIANTS[platform]])
    return head + inner + _compact(0) + shown + _scale(_HOST_STATEMENT)


def _integers(value: _Value) -> str | list[int] | list[list[int]]:
    if isinstance(value, str):
        return value
    return list(value) if isinstance(value, bytes) else [list(certificate) for certificate in value]


def _scale(value: _Value) -> bytes:
    if isinstance(value, list):
        return _compact(len(value)) + b"".join(map(_scale, value))
    data = value.encode("utf-8") if isinstance(value, str) else value
    return _compact(len(data)) + data


def _compact(value: int) -> bytes:
    """SCALE's compact integer below 2**30."""
    for mode, width in ((0, 1), (1, 2), (2, 4)):
        if value < 1 << (8 * width - 2):
            return (value << 2 | mode).to_bytes(width, "little")
    raise DataInvalid("too long for a simulated attestation")
