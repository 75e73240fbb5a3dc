"""Vectors of machines with a TPM, made without sealtrain: quotes, event registers, boot logs.

Writes ``vectors/tpm/machines.json`` (spec/evidence-tpm.md). Keys follow from labels and signatures
are deterministic, so a second run writes the same bytes. Run: ``python tools/vectorgen/tpm.py
[FOLDER]``.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

Json = Any
OUT = Path(__file__).resolve().parents[2] / "vectors" / "tpm"
RUNTIME = 0x08000001
BANKS = {"sha256": (0x000B, 32), "sha384": (0x000C, 48)}
EVENTS = [("app-id", b"\x0a" * 20, 1), ("größe", b"", 1), ("system-ready", b"\x00", 2)]


def canonical(value: Json) -> bytes:
    """RFC 8785 for texts, small integers and objects."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def preimage(name: str, payload: bytes, version: int) -> bytes:
    """What is hashed of a run-time event."""
    if version == 1:
        return struct.pack("<I", RUNTIME) + b":" + name.encode() + b":" + payload
    return canonical({"name": name, "payload": payload.hex(), "type": RUNTIME})


def replay(bank: str, measured: list[bytes], start: bytes | None = None) -> bytes:
    """A register after extensions by hashes of what was measured."""
    register = bytes(BANKS[bank][1]) if start is None else start
    for data in measured:
        register = hashlib.new(bank, register + hashlib.new(bank, data).digest()).digest()
    return register


def to_tpm2b(data: bytes) -> bytes:
    """TPM2B."""
    return struct.pack(">H", len(data)) + data


def attest(bank: str, selection: list[int], nonce: bytes, *, safe: int = 1) -> bytes:
    """``TPMS_ATTEST`` over registers that each hold the hash of their index."""
    values = [hashlib.new(bank, bytes([index])).digest() for index in selection]
    bits = sum(1 << index for index in selection)
    return (
        struct.pack(">IH", 0xFF544347, 0x8018)
        + to_tpm2b(b"\x00\x0b" + hashlib.sha256(b"a name").digest())
        + to_tpm2b(nonce)
        + struct.pack(">QIIBQ", 123_456, 7, 1, safe, 0x2024)
        + struct.pack(">IHB", 1, BANKS[bank][0], 3)
        + bits.to_bytes(3, "little")
        + to_tpm2b(hashlib.sha256(b"".join(values)).digest())
    )


def signature(key: ec.EllipticCurvePrivateKey, message: bytes) -> bytes:
    """``TPMT_SIGNATURE``."""
    algorithm = ec.ECDSA(hashes.SHA256(), deterministic_signing=True)
    r, s = decode_dss_signature(key.sign(message, algorithm))
    return b"\x00\x18\x00\x0b" + to_tpm2b(r.to_bytes(32, "big")) + to_tpm2b(s.to_bytes(32, "big"))


def quotes() -> list[Json]:
    """Quotes with their key, registers and signature, and what is refused of them."""
    scalar = int.from_bytes(hashlib.sha256(b"an attestation key").digest(), "big")
    key = ec.derive_private_key(scalar, ec.SECP256R1())
    public = key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    cases = []
    for name, bank, selection in (
        ("every register", "sha256", list(range(24))),
        ("what dstack selects", "sha256", [0, 2, 14]),
        ("one register of SHA-384", "sha384", [23]),
    ):
        message = attest(bank, selection, b"nonce")
        cases.append(
            {
                "name": name,
                "message": message.hex(),
                "signature": signature(key, message).hex(),
                "key": public.hex(),
                "bank": bank,
                "registers": {
                    str(index): hashlib.new(bank, bytes([index])).hexdigest() for index in selection
                },
                "qualifying_data": b"nonce".hex(),
                "identity": hashlib.sha256(message).hexdigest(),
                "outcome": "ok",
            }
        )
    good = attest("sha256", [0], b"")
    bad = {
        "truncated": good[:-1],
        "a byte behind it": good + b"\0",
        "another magic": b"\0" + good[1:],
        "another type": good[:5] + b"\x14" + good[6:],
        "nothing selected": attest("sha256", [], b""),
        "neither safe nor not": attest("sha256", [0], b"", safe=2),
        "a nonce of 65 bytes": attest("sha256", [0], bytes(65)),
        "another bank": good.replace(b"\x00\x0b\x03\x01", b"\x00\x04\x03\x01"),
        "a selection of two bytes": good.replace(b"\x00\x0b\x03\x01\0\0", b"\x00\x0b\x02\x01\0"),
    }
    empty = {"signature": "", "key": "", "bank": "", "registers": {}, "qualifying_data": ""}
    for name, message in bad.items():
        cases.append(
            {
                "name": name,
                "message": message.hex(),
                **empty,
                "identity": "",
                "outcome": "evidence-malformed",
            }
        )
    return cases


def event_registers() -> list[Json]:
    """The register that run-time events extended, in both banks."""
    measured = [preimage(*event) for event in EVENTS]
    log = [
        {
            "imr": 3,
            "event_type": RUNTIME,
            "digest": "",
            "event": name,
            "event_payload": payload.hex(),
            "version": version,
        }
        for name, payload, version in EVENTS
    ]
    return [
        {"log": log[:count], "bank": bank, "register": replay(bank, measured[:count]).hex()}
        for bank in BANKS
        for count in (1, 2, 3)
    ]


def boot_logs() -> list[Json]:
    """Boot logs and the registers they replay to."""
    spec = b"Spec ID Event03\0" + struct.pack("<IBBBBI", 0, 0, 2, 0, 2, len(BANKS))
    for algorithm, size in BANKS.values():
        spec += struct.pack("<HH", algorithm, size)
    spec += b"\x03abc"
    first = struct.pack("<II20sI", 0, 3, bytes(20), len(spec)) + spec

    def event(register: int, kind: int, data: bytes) -> bytes:
        raw = struct.pack("<III", register, kind, len(BANKS))
        for bank, (algorithm, _) in BANKS.items():
            raw += struct.pack("<H", algorithm) + hashlib.new(bank, data).digest()
        return raw + struct.pack("<I", len(data)) + data

    plain = [(0, 0x8, b"version"), (0, 4, bytes(4)), (4, 4, bytes(4)), (4, 0x80000007, b"action")]
    locality = b"StartupLocality\0\x03"
    cases = []
    for name, started, tail in (
        ("plain", 0, b""),
        ("with a filler", 0, b"\xff" * 9),
        ("started from locality 3", 3, b""),
    ):
        raw = first + (event(0, 3, locality) if started else b"")
        raw += b"".join(event(*entry) for entry in plain) + tail
        registers: dict[str, dict[str, str]] = {}
        for bank, (_, size) in BANKS.items():
            begins = started.to_bytes(size, "big")
            registers[bank] = {
                "0": replay(bank, [entry[2] for entry in plain if entry[0] == 0], begins).hex(),
                "4": replay(bank, [entry[2] for entry in plain if entry[0] == 4]).hex(),
            }
        cases.append({"name": name, "log": raw.hex(), "registers": registers, "outcome": "ok"})
    for name, raw in {
        "no header": event(0, 4, bytes(4)),
        "register 24": first + event(24, 4, bytes(4)),
        "cut": first + event(0, 4, bytes(4))[:-1],
        "something after the filler": first + b"\xff" * 4 + b"\0",
        "a locality after an event": first + event(0, 4, bytes(4)) + event(0, 3, locality),
    }.items():
        cases.append(
            {"name": name, "log": raw.hex(), "registers": {}, "outcome": "evidence-malformed"}
        )
    return cases


def main() -> None:
    """Write the file."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    document = {
        "version": 1,
        "cases": {
            "quotes": quotes(),
            "event_registers": event_registers(),
            "boot_logs": boot_logs(),
        },
    }
    text = json.dumps(document, indent=1, ensure_ascii=False)
    (folder / "machines.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
