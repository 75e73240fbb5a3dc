"""Vectors of checkpoints cosigned with ML-DSA-44, made without sealtrain.

Writes ``vectors/ledger/cosignatures-ml-dsa.json``. Keys and messages follow from fixed seeds;
signatures do not, because OpenSSL's signing is hedged: a second run writes other ones.
Run: ``python tools/vectorgen/witness_ml_dsa.py [FOLDER]``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import sys
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA44PrivateKey

Json = Any
OUT = Path(__file__).resolve().parents[2] / "vectors" / "ledger"
ORIGIN = "sealtrain/ledger/" + "5e" * 32
TIME = 1_772_366_400
SIZE = 41
ROOT = hashlib.sha256(b"some tree").digest()
NAME = "sealtrain/witness/hospital-a"


def seed(text: str) -> bytes:
    """32 bytes out of a text."""
    return hashlib.sha256(text.encode()).digest()


def text64(data: bytes) -> str:
    """Standard base64."""
    return base64.b64encode(data).decode()


def key_id(name: str, kind: int, public: bytes) -> bytes:
    """First bytes of the hash of name, kind and public key."""
    return hashlib.sha256(name.encode() + b"\n" + bytes([kind]) + public).digest()[:4]


def row(name: str, blob: bytes) -> str:
    """A signature line."""
    return f"\u2014 {name} {text64(blob)}\n"


def body(size: int = SIZE, root: bytes = ROOT) -> str:
    """The three lines of a checkpoint."""
    return f"{ORIGIN}\n{size}\n{text64(root)}\n"


def log_line(lines: str) -> str:
    """The log's own signature."""
    private = Ed25519PrivateKey.from_private_bytes(seed("the log"))
    public = private.public_key().public_bytes_raw()
    return row(ORIGIN, key_id(ORIGIN, 1, public) + private.sign(lines.encode()))


def message(name: str, time: int, origin: str, start: int, size: int, root: bytes) -> bytes:
    """What tlog-cosignature v1.1 has an ML-DSA-44 key sign."""
    out = b"subtree/v1\n\0" + bytes([len(name)]) + name.encode() + struct.pack(">Q", time)
    out += bytes([len(origin)]) + origin.encode() + struct.pack(">QQ", start, size)
    return out + root


def cosign(
    *,
    key: str = "witness hospital-a",
    kind: int = 6,
    stamped: int = TIME,
    named: str = NAME,
    cut: int = 0,
    context: bytes = b"",
    **changed: Json,
) -> str:
    """A cosignature line; ``changed`` are parts of the message."""
    private = MLDSA44PrivateKey.from_seed_bytes(seed(key))
    parts: dict[str, Json] = {
        "name": NAME,
        "time": TIME,
        "origin": ORIGIN,
        "start": 0,
        "size": SIZE,
        "root": ROOT,
    }
    signature = private.sign(message(**(parts | changed)), context)
    blob = struct.pack(">Q", stamped) + signature
    public = private.public_key().public_bytes_raw()
    return row(named, key_id(named, kind, public) + blob[: len(blob) - cut])


def by_ed25519() -> str:
    """A cosignature of the same owner's signing key."""
    private = Ed25519PrivateKey.from_private_bytes(seed("owner hospital-a"))
    public = private.public_key().public_bytes_raw()
    signature = private.sign(f"cosignature/v1\ntime {TIME}\n{body()}".encode())
    return row(NAME, key_id(NAME, 4, public) + struct.pack(">Q", TIME) + signature)


def case(name: str, outcome: str, *lines: str) -> Json:
    """One case: a note with these cosignatures, of which one must count."""
    return {
        "name": name,
        "note": f"{body()}\n{log_line(body())}{''.join(lines)}",
        "outcome": outcome,
    }


def main() -> None:
    """Write the file."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    out.mkdir(parents=True, exist_ok=True)
    refused = "signature-invalid"
    other = hashlib.sha256(b"another tree").digest()
    ed25519 = Ed25519PrivateKey.from_private_bytes(seed("owner hospital-a"))
    ml_dsa = MLDSA44PrivateKey.from_seed_bytes(seed("witness hospital-a"))
    log = Ed25519PrivateKey.from_private_bytes(seed("the log"))
    document = {
        "about": "Checkpoints cosigned with ML-DSA-44; made by tools/vectorgen/witness_ml_dsa.py.",
        "origin": ORIGIN,
        "public_key": text64(log.public_key().public_bytes_raw()),
        "owner": "hospital-a",
        "signing_key": text64(ed25519.public_key().public_bytes_raw()),
        "witness_key": text64(ml_dsa.public_key().public_bytes_raw()),
        "time": TIME,
        "message": message(NAME, TIME, ORIGIN, 0, SIZE, ROOT).hex(),
        "cases": [
            case("cosigned", "ok", cosign()),
            case("beside a line of the signing key", "ok", by_ed25519(), cosign()),
            case("by the signing key only", refused, by_ed25519()),
            case("nobody", refused),
            case("another key", refused, cosign(key="another")),
            case("kind of an Ed25519 key", refused, cosign(kind=4)),
            case("kind of a note's key", refused, cosign(kind=1)),
            case("another time inside", refused, cosign(time=TIME + 1)),
            case("another time outside", refused, cosign(stamped=TIME + 1)),
            case("no time", refused, cosign(stamped=0, time=0)),
            case("another name inside", refused, cosign(name="sealtrain/witness/hospital-b")),
            case("another origin", refused, cosign(origin=ORIGIN[:-1] + "f")),
            case("another size", refused, cosign(size=SIZE + 1)),
            case("another root", refused, cosign(root=other)),
            case("a subtree that begins later", refused, cosign(start=1)),
            case("with a context", refused, cosign(context=b"sealtrain")),
            case("cut short", refused, cosign(cut=1)),
            case("twice", refused, cosign(), cosign()),
        ],
    }
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    (out / "cosignatures-ml-dsa.json").write_text(text)


if __name__ == "__main__":
    main()
