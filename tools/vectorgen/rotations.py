"""Vectors of rotations of a ledger's key, made without sealtrain.

Writes ``vectors/ledger/rotations.json``: bodies of ledger entries that hold, and ones that break
one rule each. Keys follow from fixed seeds and Ed25519 is deterministic, so a second run writes the
same bytes. Run: ``python tools/vectorgen/rotations.py [FOLDER]``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

Json = Any
OUT = Path(__file__).resolve().parents[2] / "vectors" / "ledger"
ORIGIN = "sealtrain/ledger/" + "5e" * 32
TYPE = "application/vnd.sealtrain.key-rotation+json"


def key(label: str) -> Ed25519PrivateKey:
    """A key that follows from its label."""
    seed = hashlib.sha256(b"sealtrain rotation vectors " + label.encode()).digest()
    return Ed25519PrivateKey.from_private_bytes(seed)


OLD, NEW, OTHER = key("old"), key("new"), key("other")


def raw(private: Ed25519PrivateKey) -> bytes:
    """Public key, 32 bytes."""
    return private.public_key().public_bytes_raw()


def b64(data: bytes) -> str:
    """Standard base64."""
    return base64.b64encode(data).decode()


def canonical(value: Json) -> bytes:
    """RFC 8785 for what occurs here: texts, small integers, arrays and objects."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def statement(**changed: Json) -> dict[str, Json]:
    """What is signed, with fields changed."""
    return {
        "version": 1,
        "origin": ORIGIN,
        "old_key": b64(raw(OLD)),
        "new_key": b64(raw(NEW)),
        "rotated_at": "2026-01-02T03:04:05Z",
    } | changed


def body(said: Json, *signers: Ed25519PrivateKey, payload_type: str = TYPE) -> dict[str, Json]:
    """Body of the ledger's entry: a DSSE envelope and its digest."""
    payload = said if isinstance(said, bytes) else canonical(said)
    message = b"DSSEv1 %d %s %d %s" % (
        len(payload_type),
        payload_type.encode(),
        len(payload),
        payload,
    )
    envelope = {
        "payload": b64(payload),
        "payloadType": payload_type,
        "signatures": [
            {
                "keyid": "ed25519:" + hashlib.sha256(raw(signer)).hexdigest(),
                "sig": b64(signer.sign(message)),
            }
            for signer in signers
        ],
    }
    return {"digest": hashlib.sha256(canonical(envelope)).hexdigest(), "envelope": envelope}


def broken(whole: dict[str, Json]) -> dict[str, Json]:
    """The same with one bit of a signature flipped, and the digest that goes with it."""
    changed: dict[str, Json] = json.loads(json.dumps(whole))
    first = changed["envelope"]["signatures"][0]
    signature = bytearray(base64.b64decode(first["sig"]))
    signature[5] ^= 1
    first["sig"] = b64(bytes(signature))
    changed["digest"] = hashlib.sha256(canonical(changed["envelope"])).hexdigest()
    return changed


def cases() -> list[dict[str, Json]]:
    """Each: a name, the body, and the code it is refused with, or null."""
    whole = body(statement(), OLD, NEW)
    signature, form = "signature-invalid", "statement-invalid"
    same = statement(new_key=b64(raw(OLD)))
    short = statement(new_key=b64(raw(NEW)[:31]))
    found: list[tuple[str, Json, str | None]] = [
        ("holds", whole, None),
        ("signed in the other order", body(statement(), NEW, OLD), None),
        ("old key alone", body(statement(), OLD), signature),
        ("new key alone", body(statement(), NEW), signature),
        ("a third key instead", body(statement(), OLD, OTHER), signature),
        ("a third key besides", body(statement(), OLD, NEW, OTHER), signature),
        ("another payload type", body(statement(), OLD, NEW, payload_type="text/plain"), signature),
        ("a signature altered", broken(whole), signature),
        ("another ledger", body(statement(origin=ORIGIN[:-2] + "5f"), OLD, NEW), form),
        ("the same key", body(same, OLD), form),
        ("a key too short", body(short, OLD, NEW), form),
        ("another version", body(statement(version=2), OLD, NEW), form),
        ("a field more", body(statement(more=1), OLD, NEW), form),
        ("no real time", body(statement(rotated_at="2026-02-30T00:00:00Z"), OLD, NEW), form),
        ("not canonical", body(b" " + canonical(statement()), OLD, NEW), form),
        ("another digest", whole | {"digest": "00" * 32}, form),
        ("no digest", {"envelope": whole["envelope"]}, form),
    ]
    return [{"name": name, "body": made, "outcome": code or "ok"} for name, made, code in found]


def main() -> None:
    """Write the file."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    document = {
        "origin": ORIGIN,
        "old_key": b64(raw(OLD)),
        "new_key": b64(raw(NEW)),
        "rotated_at": 1767323045,
        "cases": cases(),
    }
    text = json.dumps(document, indent=1, sort_keys=True) + "\n"
    (folder / "rotations.json").write_text(text)


if __name__ == "__main__":
    main()
