"""Vectors of attested channels, made without sealtrain.

Writes ``vectors/channel/{keys,records}.json``. HKDF is written out with ``hmac`` alone; everything
follows from the labels below, so a second run writes the same bytes.
Run: ``python tools/vectorgen/channel.py [FOLDER]``.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import struct
import sys
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

OUT = Path(__file__).resolve().parents[2] / "vectors" / "channel"
LABEL = b"sealtrain/attested-channel/v1 "
PART, WHOLE, RATCHET, READY, END = 1, 2, 3, 4, 0


def seed(label: str, size: int = 32) -> bytes:
    """Bytes that follow from the label."""
    return hashlib.shake_256(b"sealtrain channel vectors " + label.encode()).digest(size)


def b64(data: bytes) -> str:
    """Standard base64 with padding."""
    return base64.b64encode(data).decode()


def canonical(value: Any) -> bytes:
    """RFC 8785 for what occurs here: ASCII texts, small integers, arrays and objects."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def digest(value: Any) -> str:
    """SHA-256 of the canonical form, hex."""
    return hashlib.sha256(canonical(value)).hexdigest()


def expand(key: bytes, info: bytes) -> bytes:
    """HKDF-Expand of RFC 5869 with SHA-256 to 32 bytes: one block."""
    return hmac.digest(key, info + b"\x01", "sha256")


def handshake(name: str) -> dict[str, Any]:
    """A conversation with all that its keys follow from; HPKE ciphertexts are opaque here."""
    hello = {
        "version": 1,
        "purpose": "travel-provisioning",
        "context": {"run": name, "trip": 7},
        "public_key": b64(seed(f"{name} initiator key", 1216)),
        "nonce": seed(f"{name} initiator nonce").hex(),
    }
    answer = {
        "version": 1,
        "public_key": b64(seed(f"{name} responder key", 1216)),
        "nonce": seed(f"{name} responder nonce").hex(),
        "sealed": b64(seed(f"{name} responder sealed", 1168)),
    }
    finish = {"version": 1, "sealed": b64(seed(f"{name} initiator sealed", 1168))}
    proofs = [
        {
            "kind": "signature",
            "public_key": b64(seed(f"{name} {side} signer")),
            "signature": b64(seed(f"{name} {side} signature", 64)),
        }
        for side in ("responder", "initiator")
    ]
    first = {"hello": hello, "answer": answer}
    third = first | {
        "answered": digest(proofs[0]),
        "finish": finish,
        "finished": digest(proofs[1]),
    }
    secrets = seed(f"{name} responder secret"), seed(f"{name} initiator secret")
    extracted = hmac.digest(
        hashlib.sha256(canonical(third)).digest(), secrets[0] + secrets[1], "sha256"
    )
    export = expand(extracted, LABEL + b"export")
    purpose = LABEL.decode().strip()
    return {
        "name": name,
        "hello": hello,
        "answer": answer | {"proof": proofs[0]},
        "finish": finish | {"proof": proofs[1]},
        "responder_secret": secrets[0].hex(),
        "initiator_secret": secrets[1].hex(),
        "answer_info": canonical(
            {
                "purpose": purpose,
                "role": "responder",
                "transcript": digest(hello),
                "public_key": answer["public_key"],
                "nonce": answer["nonce"],
            }
        ).decode(),
        "finish_info": canonical(
            {"purpose": purpose, "role": "initiator", "transcript": digest(first)}
        ).decode(),
        "initiator_key": expand(extracted, LABEL + b"initiator").hex(),
        "responder_key": expand(extracted, LABEL + b"responder").hex(),
        "exported": {
            label: expand(export, LABEL + b"export " + label.encode()).hex()
            for label in ("one-time-pads", "")
        },
    }


def stream(comment: str, frames: list[tuple[int, bytes]], messages: list[str]) -> dict[str, Any]:
    """What one direction carries, frame by frame, and the messages it comes to."""
    key, number, wire = seed(f"{comment} key"), 0, b""
    first = key.hex()
    for kind, plain in frames:
        head = struct.pack(">BI", kind, len(plain) + 16)
        wire += head + AESGCM(key).encrypt(number.to_bytes(12, "big"), plain, head)
        number += 1
        if kind == RATCHET:
            key, number = expand(key, LABEL + b"ratchet"), 0
    return {"name": comment, "key": first, "wire": wire.hex(), "messages": messages}


def streams() -> list[dict[str, Any]]:
    """Streams that are received whole."""
    return [
        stream("one message", [(WHOLE, b"hello")], ["hello"]),
        stream("an empty message", [(WHOLE, b"")], [""]),
        stream("parts", [(PART, b"in "), (PART, b"three "), (WHOLE, b"parts")], ["in three parts"]),
        stream(
            "ratchets",
            [(WHOLE, b"a"), (RATCHET, b""), (RATCHET, b""), (WHOLE, b"b"), (END, b"")],
            ["a", "b"],
        ),
    ]


def broken() -> list[dict[str, Any]]:
    """Streams whose last frame is out of place: the messages before it arrive."""
    return [
        stream("an end in a message", [(PART, b"half"), (END, b"")], []),
        stream("a ratchet in a message", [(PART, b"half"), (RATCHET, b""), (WHOLE, b"x")], []),
        stream("an empty part", [(WHOLE, b"a"), (PART, b"")], ["a"]),
        stream("ready twice", [(WHOLE, b"a"), (READY, b"")], ["a"]),
        stream("a ratchet with bytes", [(RATCHET, b"x")], []),
        stream("an end with bytes", [(END, b"x")], []),
        stream("an unknown type", [(9, b"x")], []),
    ]


def main() -> None:
    """Write the files."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    out.mkdir(parents=True, exist_ok=True)
    files = {
        "keys": [handshake(name) for name in ("one", "two")],
        "records": {"received": streams(), "broken": broken()},
    }
    for name, vectors in files.items():
        text = json.dumps({"format": "sealtrain/attested-channel/v1", "cases": vectors}, indent=1)
        (out / f"{name}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
