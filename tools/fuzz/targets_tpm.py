"""Fuzz targets of machines with a TPM: the parsers of quotes, logs, names and reports."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable

_SEED = b"sealtrain fuzz, simulated"
Made = tuple[Callable[[bytes], object], list[bytes]]


def _tpm_quote() -> Made:
    from sealtrain.attest.tpm.quote import parse_quote
    from sealtrain_rehearsal.simulator.tpm import tpms_attest

    def act(data: bytes) -> None:
        found = parse_quote(data)
        values = [bytes(32)] * len(found.selection)
        again = tpms_attest(found.qualifying_data, values, found.bank, found.selection)
        assert parse_quote(again).selection == found.selection
        assert found.raw == data

    values = [bytes(32)] * 24
    return act, [
        tpms_attest(b"nonce", values, "sha256", range(24)),
        tpms_attest(b"", values[:3], "sha384", (0, 2, 14)),
    ]


def _tpm_signature() -> Made:
    from sealtrain.attest.tpm.quote import check_key, check_signature, parse_quote
    from sealtrain_rehearsal.simulator.pki import SimulatedPki
    from sealtrain_rehearsal.simulator.tpm import SimulatedTpm

    tpm = SimulatedTpm(SimulatedPki(_SEED))
    message, signature = tpm.quote(b"nonce", bank="sha256", selection=range(24))
    quote, key = parse_quote(message), check_key(tpm.key.public_key())
    rsassa = struct.pack(">HHH", 0x14, 0x0B, 256) + bytes(256)
    return lambda data: check_signature(quote, data, key), [signature, rsassa]


def _tpm_machine() -> Made:
    from sealtrain.attest.tpm.chain import parse_machine
    from sealtrain_rehearsal.simulator.tpm import SimulatedMachine

    return parse_machine, [SimulatedMachine().der(), SimulatedMachine(production=False).der()]


def _boot_log() -> Made:
    from sealtrain.attest.tpm.log import parse_log

    spec = b"Spec ID Event03\0" + struct.pack("<IBBBBI", 0, 0, 2, 0, 2, 1)
    spec += struct.pack("<HH", 0x0B, 32) + b"\0"
    first = struct.pack("<II20sI", 0, 3, bytes(20), len(spec)) + spec
    event = struct.pack("<IIIH", 4, 4, 1, 0x0B) + bytes(32) + struct.pack("<I", 4) + bytes(4)
    started = b"StartupLocality\0\3"
    locality = struct.pack("<IIIH", 0, 3, 1, 0x0B) + bytes(32)
    locality += struct.pack("<I", len(started)) + started

    def act(data: bytes) -> None:
        log = parse_log(data)
        if "sha256" in log.banks:
            for register in range(24):
                log.replay(register, "sha256")

    return act, [first, first + event, first + locality + event + b"\xff" * 8]


def _hcl_report() -> Made:
    from sealtrain.attest.tpm.hcl import check_runtime, parse_hcl

    number = "w" + "A" * 341
    key = {"kid": "HCLAkPub", "kty": "RSA", "e": "AQAB", "n": number}
    runtime = json.dumps(
        {"keys": [key], "vm-configuration": {"secure-boot": True, "vmUniqueId": "SIMULATED"}}
    ).encode("ascii")
    report = bytearray(1184)
    struct.pack_into("<IIQ", report, 0, 2, 0, 1 << 17)
    struct.pack_into("<II", report, 0x30, 0, 1)
    report[0x50:0x70] = hashlib.sha256(runtime).digest()
    size = 20 + len(runtime)
    seed = struct.pack("<4sIIII12x", b"HCLA", 1, 32 + 1184 + size, 2, 0) + bytes(report)
    seed += struct.pack("<5I", size, 1, 2, 1, len(runtime)) + runtime + bytes(16)

    def act(data: bytes) -> None:
        found = parse_hcl(data)
        check_runtime(found.runtime, found.report_data)

    return act, [seed]


def _runtime_data() -> Made:
    from sealtrain.attest.tpm.hcl import parse_runtime

    key = {"kid": "HCLAkPub", "kty": "RSA", "e": "AQAB", "n": "w" + "A" * 341}
    configuration = {"secure-boot": True, "vmUniqueId": "SIMULATED"}
    seed = json.dumps({"keys": [key], "vm-configuration": configuration}).encode("ascii")
    return parse_runtime, [seed]


def _azure_file() -> Made:
    from sealtrain.attest.exhibits import recognise

    (report,) = _hcl_report()[1]
    quote = {"message": [255, 84], "signature": "00" * 256, "pcrs": [[0] * 32] * 24}
    files: list[dict[str, object]] = [
        {"hcl_report": list(report), "tpm_quote": quote, "vcek": "AA"},
        {"report": list(report), "quote": quote, "vcek": "-----BEGIN"},
        {"version": 1, "hcl_report": report.hex(), "tpm_quote": quote, "td_quote": "BAACAIEA"},
    ]
    return recognise, [json.dumps(file).encode("ascii") for file in files]


def _rented_attestation() -> Made:
    from sealtrain.attest.dstack.msgpack import pack
    from sealtrain.attest.dstack.parse import parse_statement
    from sealtrain.attest.gcp.collect import show_tpm

    event = {"imr": 3, "event_type": 1, "digest": b"", "event": "a", "event_payload": b""}
    stack = {
        "kind": "dstack",
        "data": {
            "report_data": b"",
            "runtime_events": [{"event": "a", "payload": b""}],
            "config": "{}",
        },
    }
    quote = {
        "message": b"message",
        "signature": b"signature",
        "pcr_values": [{"index": 0, "algorithm": "sha256", "value": bytes(32)}],
        "ak_cert": b"certificate",
        "platform": "gcp",
        "event_log": [{"pcr_index": 0, "digest": bytes(32)}],
    }
    google = {"quote": b"quote", "event_log": [event], "tpm_quote": quote}
    platforms = (
        {"kind": "gcp-tdx", "data": google},
        {"kind": "aws-nitro-tpm", "data": {"attestation_doc": b"document"}},
    )

    def act(data: bytes) -> None:
        found = parse_statement(data)
        if found.tpm_quote is not None:
            show_tpm(found.tpm_quote, ())

    short = b"\x04\x04a\x04x" + bytes(64) + b"\x08{}"  # one event, report data, configuration
    seeds = [pack({"version": 1, "platform": platform, "stack": stack}) for platform in platforms]
    register = b"\x04" + bytes(4) + b"\x18sha256" + b"\x80" + bytes(32)
    logged = b"\x04" + struct.pack("<II", 3, 1) + b"\0\x04a\0"
    google_scale = b"\0\1\x04q" + logged + b"\x04m\x04s" + register + b"\x04c\1\0" + short
    return act, [*seeds, b"\0\4\x04d" + short, google_scale]


def _nitro_tpm_document() -> Made:
    from sealtrain.attest.nitro.parse import NITRO_TPM, parse_document
    from sealtrain_rehearsal.simulator.nitro import SimulatedNitroPki, sign_document

    module = "i-00000000000000002-tpm0000000000000000"
    registers = dict.fromkeys(range(24), bytes(48))
    fields = {"module_id": module, "digest": "SHA384", "timestamp": 1, "nitrotpm_pcrs": registers}
    seed = sign_document(
        SimulatedNitroPki(_SEED).issue(module, 1_800_000_000), fields, {"user_data": bytes(64)}
    )
    return lambda data: parse_document(data, NITRO_TPM), [seed]


TPM_TARGETS: dict[str, Callable[[], Made]] = {
    "tpm-quote": _tpm_quote,
    "tpm-signature": _tpm_signature,
    "tpm-machine": _tpm_machine,
    "boot-log": _boot_log,
    "hcl-report": _hcl_report,
    "runtime-data": _runtime_data,
    "azure-file": _azure_file,
    "rented-attestation": _rented_attestation,
    "nitro-tpm-document": _nitro_tpm_document,
}
"""By name: makes the function and its examples."""
