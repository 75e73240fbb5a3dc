"""Vectors of cosigned checkpoints, made without sealtrain.

Writes ``vectors/ledger/cosignatures.json``. Everything follows from fixed seeds, so a second run
writes the same bytes. Run: ``python tools/vectorgen/witness.py [FOLDER]``.
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

Json = Any
OUT = Path(__file__).resolve().parents[2] / "vectors" / "ledger"
ORIGIN = "sealtrain/ledger/" + "5e" * 32
TIME = 1_772_366_400
OWNERS = ("hospital-a", "hospital-b", "hospital-c")
ROOT = hashlib.sha256(b"some tree").digest()


def key(seed: str) -> Ed25519PrivateKey:
    """A private key out of a text."""
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(seed.encode()).digest())


def text64(data: bytes) -> str:
    """Standard base64."""
    return base64.b64encode(data).decode()


def key_id(name: str, kind: int, private: Ed25519PrivateKey) -> bytes:
    """First bytes of the hash of name, kind and public key."""
    public = private.public_key().public_bytes_raw()
    return hashlib.sha256(name.encode() + b"\n" + bytes([kind]) + public).digest()[:4]


def row(name: str, blob: bytes) -> str:
    """A signature line."""
    return f"\u2014 {name} {text64(blob)}\n"


def cosign(
    owner: str,
    body: str,
    *,
    time: int = TIME,
    stamped: int | None = None,
    seed: str | None = None,
    kind: int = 4,
    header: str = "cosignature/v1",
) -> str:
    """One owner's cosignature line."""
    name, private = f"sealtrain/witness/{owner}", key(seed or f"witness {owner}")
    signature = private.sign(f"{header}\ntime {time}\n{body}".encode())
    stamp = struct.pack(">Q", time if stamped is None else stamped)
    return row(name, key_id(name, kind, private) + stamp + signature)


def main(folder: Path) -> None:
    """Write the file."""
    log = key("ledger of cosignature vectors")
    body = f"{ORIGIN}\n11\n{text64(ROOT)}\n"
    own = row(ORIGIN, key_id(ORIGIN, 1, log) + log.sign(body.encode()))
    head = f"{body}\n{own}"
    first, second, third = (cosign(owner, body) for owner in OWNERS)
    cases: list[Json] = []

    def case(name: str, note: str, quorum: int, outcome: str, by: tuple[str, ...] = ()) -> None:
        shown = {"name": name, "note": note, "quorum": quorum, "outcome": outcome}
        if outcome == "ok":
            shown |= {"size": 11, "times": dict.fromkeys(by, TIME)}
        cases.append(shown)

    bad = "signature-invalid"
    case("nobody, nobody needed", head, 0, "ok")
    case("one of one", head + first, 1, "ok", OWNERS[:1])
    case("two of two", head + first + second, 2, "ok", OWNERS[:2])
    case("three, two needed", head + first + second + third, 2, "ok", OWNERS)
    case("before the log's own line", f"{body}\n{first}{own}", 1, "ok", OWNERS[:1])
    case("two, three needed", head + first + second, 3, bad)
    case("nobody, one needed", head, 1, bad)
    case("one owner twice", head + first + first, 1, bad)
    later = cosign(OWNERS[0], body, time=TIME + 1)
    case("one owner at two times", head + first + later, 1, bad)
    stranger = cosign("hospital-z", body)
    case("a stranger does not count", head + stranger, 1, bad)
    case("a stranger does not harm", head + stranger + first, 1, "ok", OWNERS[:1])
    case("an owner's name with a stranger's key", head + cosign(OWNERS[0], body, seed="z"), 1, bad)
    case("an owner's key as a log's kind", head + cosign(OWNERS[0], body, kind=1), 1, bad)
    case("another time than signed", head + cosign(OWNERS[0], body, stamped=TIME + 1), 1, bad)
    case("the same among good ones", head + cosign(OWNERS[0], body, stamped=1) + second, 1, bad)
    case("time zero", head + cosign(OWNERS[0], body, time=0), 1, bad)
    case("time beyond exact numbers", head + cosign(OWNERS[0], body, time=2**53), 1, bad)
    case("another header", head + cosign(OWNERS[0], body, header="cosignature/v2"), 1, bad)
    other = body.replace("\n11\n", "\n12\n")
    case("of another size", head + cosign(OWNERS[0], other), 1, bad)
    name = f"sealtrain/witness/{OWNERS[0]}"
    private = key(f"witness {OWNERS[0]}")
    start = key_id(name, 4, private)
    plain = private.sign(body.encode())
    case("without a time", head + row(name, start + plain), 1, bad)
    signature = private.sign(f"cosignature/v1\ntime {TIME}\n{body}".encode())
    blob = start + struct.pack(">Q", TIME) + signature
    case("a byte too many", head + row(name, blob + b"\0"), 1, bad)
    case("a byte too few", head + row(name, blob[:-1]), 1, bad)
    little = start + struct.pack("<Q", TIME) + signature
    case("time in the other byte order", head + row(name, little), 1, bad)
    case("without the log's line", f"{body}\n{first}", 1, bad)
    forged = row(ORIGIN, key_id(ORIGIN, 1, log) + log.sign(other.encode()))
    case("log's line of another body", f"{body}\n{forged}{first}", 1, bad)

    made = {
        "public_key": text64(log.public_key().public_bytes_raw()),
        "origin": ORIGIN,
        "witnesses": {
            owner: text64(key(f"witness {owner}").public_key().public_bytes_raw())
            for owner in OWNERS
        },
        "cases": cases,
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "cosignatures.json"
    path.write_text(json.dumps(made, indent=1) + "\n")
    print(f"{path}: {len(cases)} cases")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else OUT)
