"""Vectors of report data, event logs, evidence documents and tiers, made without sealtrain.

Writes ``vectors/evidence/{report-data,event-log,documents,tiers}.json``. A small software PKI of
its own signs the quotes; every key follows from a label and every signature is deterministic, so a
second run writes the same bytes. Run: ``python tools/vectorgen/evidence.py [FOLDER]``.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import struct
import sys
from pathlib import Path
from typing import Any

from Crypto.Hash import keccak
from cryptography.hazmat.primitives import serialization
from evidence_pki import NOW, Pki

Json = Any
OUT = Path(__file__).resolve().parents[2] / "vectors" / "evidence"
RUNTIME = 0x08000001
COMPOSE = '{"name":"vectors","note":"größe — raw bytes count","key_provider":"kms"}\n'


def canonical(value: Json) -> bytes:
    """RFC 8785 for what occurs here: texts, small integers, null, arrays and objects."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def report_data(purpose: str, transcript: Json, gpu_digest: bytes = b"") -> bytes:
    """The 64 bytes of spec/evidence.md §2."""
    prefix = f"sealtrain/{purpose}/v1:".encode()
    return hashlib.sha512(prefix + canonical(transcript) + gpu_digest).digest()


def gpu_nonce(purpose: str, transcript: Json) -> bytes:
    """The 32 bytes of spec/evidence.md §2."""
    prefix = f"sealtrain/{purpose}/gpu-nonce/v1:".encode()
    return hashlib.sha256(prefix + canonical(transcript)).digest()


def event_digest(name: str, payload: bytes, version: int) -> bytes:
    """SHA-384 of a run-time event."""
    if version == 1:
        text = struct.pack("<I", RUNTIME) + b":" + name.encode() + b":" + payload
    else:
        text = canonical({"name": name, "payload": payload.hex(), "type": RUNTIME})
    return hashlib.sha384(text).digest()


def replay(digests: list[bytes]) -> bytes:
    """A register after a list of extensions."""
    register = bytes(48)
    for digest in digests:
        register = hashlib.sha384(register + digest).digest()
    return register


def b64(data: bytes) -> str:
    """Standard base64 with padding."""
    return base64.b64encode(data).decode()


def runtime(name: str, payload: bytes, version: int = 1) -> dict[str, Json]:
    """A run-time entry of an evidence document."""
    return {
        "imr": 3, "event_type": RUNTIME, "digest": "", "event": name,
        "event_payload": payload.hex(), "version": version,
    }  # fmt: skip


def firmware(imr: int, label: str) -> dict[str, Json]:
    """A firmware entry of an evidence document."""
    return {
        "imr": imr, "event_type": 0, "digest": hashlib.sha384(label.encode()).hexdigest(),
        "event": "", "event_payload": "", "version": 1,
    }  # fmt: skip


def registers_of(log: list[dict[str, Json]]) -> list[bytes]:
    """RTMR0 to RTMR3 of a log."""
    result = []
    for imr in range(4):
        digests = [
            bytes.fromhex(entry["digest"])
            if imr < 3
            else event_digest(
                entry["event"], bytes.fromhex(entry["event_payload"]), entry["version"]
            )
            for entry in log
            if entry["imr"] == imr
        ]
        result.append(replay(digests))
    return result


def report_data_vectors() -> list[Json]:
    """Purposes and transcripts with their 64 bytes."""
    pairs: list[tuple[str, Json]] = [
        ("release", {}),
        ("renewal", {}),
        ("release", {"b": [1, 2, None, True], "a": "é — €", "A": {"z": "", "y": -7}}),
        ("broker-keys", {"nonce": "00" * 32, "keys": {"hospital-a": "AA=="}}),
        ("manifest", {"statement_digest": "ab" * 32}),
    ]
    digest = hashlib.sha256(b"evidence of accelerators").digest()
    return [
        {
            "purpose": p,
            "transcript": t,
            "report_data": report_data(p, t).hex(),
            "gpu_nonce": gpu_nonce(p, t).hex(),
            "gpu_digest": digest.hex(),
            "report_data_with_gpus": report_data(p, t, digest).hex(),
        }
        for p, t in pairs
    ]


def event_log_vectors() -> Json:
    """Digests of both versions, a mixed register, the three forms of MRCONFIGID."""
    events = [
        ("system-preparing", b"", 1), ("app-id", b"\xde\xad\xbe\xef", 1),
        ("compose-hash", b"\xab\xcd", 2), ('quo"te\\\n', b"\xff", 2), ("größe", b"\x00\x01", 2),
        ("größe", b"\x00\x01", 1),
    ]  # fmt: skip
    digests = [event_digest(*event) for event in events]
    compose, app = hashlib.sha256(COMPOSE.encode()).digest(), b"\x21" * 20
    provider, instance = bytes.fromhex("3059") + b"\x31" * 40, b"\x41" * 20
    second = keccak.new(digest_bits=256, data=compose + app + b"\x02" + provider).digest()
    document = {
        "app_id": app.hex(), "compose_hash": compose.hex(), "instance_id": instance.hex(),
        "gpu_policy_hash": hashlib.sha256(b"{}").hexdigest(), "key_provider": "kms",
        "key_provider_id": provider.hex(), "version": 3,
    }  # fmt: skip
    third = hashlib.sha256(b"dstack-mr-config-v3:\0" + canonical(document)).digest()
    return {
        "cases": [
            {"event": name, "payload": payload.hex(), "version": version, "digest": digest.hex()}
            for (name, payload, version), digest in zip(events, digests, strict=True)
        ],
        "register": replay(digests).hex(),
        "mr_config_id": {
            "app_compose": COMPOSE,
            "app_id": app.hex(),
            "instance_id": instance.hex(),
            "key_provider": {"name": "kms", "id": provider.hex()},
            "forms": [
                (bytes([form]) + value + bytes(15)).hex()
                for form, value in ((1, compose), (2, second), (3, third))
            ],
        },
    }


def boot_log() -> list[dict[str, Json]]:
    """A complete, well-formed log with app events behind ``system-ready``."""
    compose = hashlib.sha256(COMPOSE.encode()).digest()
    provider = b'{"name":"kms","id":"3059aabb"}'
    return [
        firmware(0, "firmware"),
        firmware(1, "kernel"),
        firmware(0, "acpi"),
        firmware(2, "command line"),
        runtime("system-preparing", b""),
        runtime("app-id", compose[:20]),
        runtime("compose-hash", compose, 2),
        runtime("instance-id", b"\x41" * 20),
        runtime("boot-mr-done", b""),
        runtime("os-image-hash", b"\x51" * 32),
        runtime("key-provider", provider),
        runtime("system-ready", b""),
        runtime("app-id", b"\x00" * 20),
    ]


def document_vectors() -> Json:
    """One good document; each case changes one thing and names the refusal it must end in."""
    pki, foreign = Pki("Vectors"), Pki("Foreign")
    asked = report_data("release", {"challenge": "cd" * 32})
    log = boot_log()
    base: dict[str, Json] = {
        "version": 2,
        "platform": "simulator",
        "cpu": {
            "tee": "dstack",
            "quote": b64(pki.quote(asked, registers_of(log))),
            "event_log": log,
            "app_compose": COMPOSE,
            "vm_config": '{"cpu_count":2}',
        },
        "gpu": None,
        "collateral": pki.collateral(),
        "gpu_collateral": None,
    }
    compose_hash = hashlib.sha256(COMPOSE.encode()).hexdigest()
    cases: list[Json] = []

    def case(name: str, outcome: str, *, now: int = NOW, **changes: Json) -> None:
        cpu = {key: changes.pop(key) for key in list(changes) if key in base["cpu"]}
        cases.append({"name": name, "outcome": outcome, "now": now, "changes": changes, "cpu": cpu})

    def sign(edited: list[dict[str, Json]], **changes: bytes) -> dict[str, Json]:
        quote = pki.quote(asked, registers_of(edited), **changes)
        return {"quote": b64(quote), "event_log": edited}

    def with_events(*extra: dict[str, Json], at: int = 11) -> list[dict[str, Json]]:
        return [*log[:at], *extra, *log[at:]]

    def without(name: str) -> list[dict[str, Json]]:
        return [entry for i, entry in enumerate(log) if entry["event"] != name or i > 11]

    good = base64.b64decode(base["cpu"]["quote"])
    case("good", "ok")
    case("other vm_config is unsigned", "ok", vm_config=None)
    case("firmware log left out as a whole", "ok", event_log=log[4:])
    case("unknown platform", "evidence-malformed", platform="cloud")
    case("platform of another TEE", "evidence-malformed", platform="nitro")
    case("version 1", "evidence-malformed", version=1)
    case("another TEE's form", "evidence-malformed", tee="nitro")
    case("accelerators' collateral alone", "evidence-malformed",
         gpu_collateral={"rims": {}, "ocsp": [], "nras": None})  # fmt: skip
    case("version true", "evidence-malformed", version=True)
    case("no collateral", "collateral-mismatch", collateral=None)
    case("hardware claimed", "platform-mismatch", platform="dstack")
    case("trailing zero", "quote-invalid", quote=b64(good + b"\0"))
    case("truncated", "quote-invalid", quote=b64(good[:-1]))
    case("header bit", "quote-invalid", quote=b64(good[:30] + b"\1" + good[31:]))
    case("body bit", "quote-invalid", quote=b64(good[:190] + b"\0" + good[191:]))
    case(
        "signature bit",
        "quote-invalid",
        quote=b64(good[:640] + bytes([good[640] ^ 1]) + good[641:]),
    )
    case("sgx", "platform-mismatch", quote=b64(good[:4] + bytes(4) + good[8:]))
    case(
        "foreign root", "quote-root-untrusted",
        quote=b64(foreign.quote(asked, registers_of(log))), collateral=foreign.collateral(),
    )  # fmt: skip
    case("foreign collateral", "collateral-mismatch", collateral=foreign.collateral())
    case("other fmspc", "collateral-mismatch", collateral=pki.collateral(fmspc="010203040506"))
    case("before collateral", "collateral-expired", now=NOW - 86401)
    case("first second of collateral", "ok", now=NOW - 86400)
    case("last second of collateral", "ok", now=NOW + 29 * 86400 - 1)
    case("after collateral", "collateral-expired", now=NOW + 29 * 86400)
    case("out of date", "tcb-status-refused", collateral=pki.collateral(status="OutOfDate"))
    case("revoked", "tcb-status-refused", collateral=pki.collateral(status="Revoked"))
    advisories = pki.collateral(advisories=["INTEL-SA-00001"])
    case("open advisory", "tcb-status-refused", collateral=advisories)
    debug = bytes.fromhex("0100001000000000")
    case("debug", "debug-guest", **sign(log, attributes=debug))
    case("page tables open", "debug-guest", **sign(log, attributes=bytes(8)))
    config = b"\1" + bytes.fromhex(compose_hash) + bytes(15)
    case("config id form 1", "ok", **sign(log, config=config))
    case("config id of others", "event-log-mismatch", **sign(log, config=b"\1" * 48))
    case("other compose", "compose-hash-mismatch", app_compose=COMPOSE.strip())
    swapped = [*log[:5], log[6], log[5], *log[7:]]
    case("events swapped", "event-log-mismatch", event_log=swapped)
    case("event dropped", "event-log-mismatch", event_log=log[:-1])
    case("firmware event dropped", "event-log-mismatch", event_log=log[1:])
    lie = copy.deepcopy(log)
    lie[5]["event_payload"] = "00" * 20
    case("payload changed", "event-log-mismatch", event_log=lie)
    claimed = copy.deepcopy(log)
    claimed[5]["digest"] = event_digest("app-id", bytes.fromhex(log[5]["event_payload"]), 1).hex()
    case("run-time digest claimed", "event-log-mismatch", event_log=claimed)
    other = copy.deepcopy(log)
    other[6]["version"] = 1
    case("digest version changed", "event-log-mismatch", event_log=other)
    twice = runtime("compose-hash", bytes(32))
    case("measured twice", "event-log-mismatch", **sign(with_events(twice)))
    case("measured late", "event-log-mismatch", **sign([*without("app-id"), log[5]]))
    case("never ready", "event-log-mismatch", **sign(without("system-ready")))
    case("no key provider", "event-log-mismatch", **sign(without("key-provider")))
    case("ambiguous name", "event-log-mismatch", **sign(with_events(runtime("a:b", b""))))
    broken = [*without("key-provider")[:10], runtime("key-provider", b"{}"), *log[11:]]
    case("malformed key provider", "key-provider-mismatch", **sign(broken))
    replayed = pki.quote(report_data("release", {"challenge": "00" * 32}), registers_of(log))
    case("another challenge", "report-data-mismatch", quote=b64(replayed))
    renewal = pki.quote(report_data("renewal", {"challenge": "cd" * 32}), registers_of(log))
    case("another purpose", "report-data-mismatch", quote=b64(renewal))
    half = pki.quote(asked[:32] + bytes(32), registers_of(log))
    case("half of the report data", "report-data-mismatch", quote=b64(half))
    return {
        "policy": {
            "version": 2,
            "platform": "simulator",
            "tier": "processor",
            "root": {
                "insecure_simulator_root": b64(pki.root.public_bytes(serialization.Encoding.DER))
            },
            "cpu": {
                "tee": "dstack",
                "tcb_status": ["UpToDate"],
                "advisories": "none",
                "debug": "refuse",
                "migration": "refuse",
                "measurements": "any",
                "platform_ids": "any",
                "min_tcb_evaluation_data_number": 7,
                "max_collateral_age_s": "any",
                "key_provider": "any",
                "os_image_hash": "any",
            },
            "gpu": "none",
        },
        "purpose": "release",
        "transcript": {"challenge": "cd" * 32},
        "report_data": asked.hex(),
        "compose_hash": compose_hash,
        "app_id": compose_hash[:40],
        "quote_identity": hashlib.sha256(good[:632]).hexdigest(),
        "evidence": base,
        "evidence_sha256": hashlib.sha256(canonical(base)).hexdigest(),
        "cases": cases,
    }


ORDER = ("processor", "processor-and-paravisor", "cloud-tpm", "cloud")
"""Tiers of spec/evidence.md §6.1, strongest first."""
KINDS = {
    "dstack": "processor",
    "tdx": "processor",
    "nitro": "cloud",
    "snp": "processor",
    "dstack-gcp-tdx": "processor",
    "dstack-aws-nitro-tpm": "cloud",
    "dstack-amd-sev-snp": "processor",
    "azure-snp": "processor-and-paravisor",
    "azure-tdx": "processor-and-paravisor",
    "gcp-snp": "cloud-tpm",
    "test-vtpm": "cloud",
    "test-nitro": "cloud",
}


def tier_vectors() -> Json:
    """Each kind of evidence under each lowest tier that a policy can name."""
    cases = []
    for kind, proven in KINDS.items():
        for lowest in ORDER:
            held = ORDER.index(proven) <= ORDER.index(lowest)
            outcome = "ok" if held else "tier-refused"
            name = f"{kind} where {lowest} is asked for"
            cases.append({"name": name, "kind": kind, "lowest": lowest, "outcome": outcome})
    return {"order": ORDER, "kinds": KINDS, "cases": cases}


def main() -> None:
    """Write the four files."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in (
        ("report-data", {"cases": report_data_vectors()}),
        ("event-log", event_log_vectors()),
        ("documents", document_vectors()),
        ("tiers", tier_vectors()),
    ):
        text_ = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
        (folder / f"{name}.json").write_text(text_)


if __name__ == "__main__":
    main()
