"""Vectors of the wire between nodes, made without sealtrain.

Writes ``vectors/node-wire/{keys,frames,scripts}.json``. HKDF is written out with ``hmac`` alone;
everything follows from the labels below, so a second run writes the same bytes.
Run: ``python tools/vectorgen/node_wire.py [FOLDER]``.
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

OUT = Path(__file__).resolve().parents[2] / "vectors" / "node-wire"
LABEL = b"sealtrain/node-wire/v1 "
READY, DATA, END, FAILED = 0, 1, 2, 3
NONE = bytes(8)


def seed(label: str, size: int = 32) -> bytes:
    """Bytes that follow from the label."""
    return hashlib.shake_256(b"sealtrain node wire vectors " + label.encode()).digest(size)


def canonical(value: Any) -> bytes:
    """RFC 8785 for what occurs here: ASCII texts, small integers and objects."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def expand(key: bytes, info: bytes) -> bytes:
    """HKDF-Expand of RFC 5869 with SHA-256 to 32 bytes: one block."""
    return hmac.digest(key, info + b"\x01", "sha256")


def handshake(name: str, world: int, initiator: int, responder: int) -> dict[str, Any]:
    """Two statements and the keys that follow; the HPKE ciphertext is opaque here."""
    nodes = [seed(f"{name} node {rank // 2}") for rank in range(world)]
    members = hashlib.sha256(b"sealtrain/node-wire/v1 membership" + b"".join(nodes)).hexdigest()

    def statement(sender: int, to: int) -> dict[str, Any]:
        return {
            "version": 1,
            "from": sender,
            "to": to,
            "world": world,
            "membership": members,
            "session": seed(f"{name} session").hex(),
            "nonce": seed(f"{name} nonce {sender}").hex(),
        }

    hello = statement(initiator, responder) | {
        "public_key": base64.b64encode(seed(f"{name} hpke key", 1216)).decode()
    }
    answer = statement(responder, initiator) | {
        "sealed": base64.b64encode(seed(f"{name} sealed", 1168)).decode()
    }
    secret = seed(f"{name} secret")
    salt = hashlib.sha256(canonical({"hello": hello, "answer": answer})).digest()
    material = secret + bytes.fromhex(hello["nonce"]) + bytes.fromhex(answer["nonce"])
    extracted = hmac.digest(salt, material, "sha256")
    return {
        "name": name,
        "nodes": [node.hex() for node in nodes],
        "hello": hello,
        "answer": answer,
        "secret": secret.hex(),
        "info": (LABEL + b"secret " + hashlib.sha256(canonical(hello)).digest()).hex(),
        "initiator_key": expand(extracted, LABEL + b"initiator").hex(),
        "responder_key": expand(extracted, LABEL + b"responder").hex(),
    }


def form(text: str) -> bytes:
    """Of an operation."""
    return hashlib.sha256(LABEL + text.encode()).digest()[:8]


def direction(
    comment: str, frames: list[tuple[int, bytes, bytes]], per_key: int = 1 << 20
) -> dict[str, Any]:
    """What one direction carries: type, form and plaintext of each frame."""
    key, number, wire = seed(f"{comment} key"), 0, b""
    first = key.hex()
    for kind, of, plain in frames:
        if number == per_key:
            key, number = expand(key, LABEL + b"ratchet"), 0
        head = struct.pack(">B3xI8s", kind, len(plain), of)
        wire += head + AESGCM(key).encrypt(number.to_bytes(12, "big"), plain, head)
        number += 1
    return {
        "name": comment,
        "key": first,
        "frames_per_key": per_key,
        "frames": [[kind, of.hex(), plain.hex()] for kind, of, plain in frames],
        "wire": wire.hex(),
    }


def directions() -> list[dict[str, Any]]:
    """Directions that are received whole."""
    ready = (READY, NONE, b"")
    reduced = form("0 (0, 1) all_reduce SUM 1 3 torch.float32")
    return [
        direction("ready and nothing", [ready, (END, NONE, b"")]),
        direction("a piece", [ready, (DATA, reduced, struct.pack("<3f", 1, 2, 3))]),
        direction("pieces", [ready, *((DATA, reduced, bytes([n]) * n) for n in (1, 20, 0))]),
        direction("failed", [ready, (FAILED, NONE, b"channel-cut 3")]),
        direction("ratchets", [ready, *((DATA, reduced, bytes([n])) for n in range(6))], 2),
    ]


FRAME_BYTES = 512 << 10


def carry_frames(comment: str, frames: list[tuple[int, bytes, bytes]]) -> dict[str, Any]:
    """What a rank of a script sends, and the digest of each frame that the network sees of it (§6).

    Frames towards the network begin with number 1: number 0 was ready.
    """
    inner, key = direction(f"{comment}, within the guest", frames), seed(f"{comment} key")
    seen = []
    for number, (kind, of, plain) in enumerate(frames, 1):
        own = struct.pack(">B3xI8s", kind, len(plain), of) + plain
        cell = own + bytes(16 + FRAME_BYTES - len(own))
        head = struct.pack(">B3xI8s", DATA, len(cell), form("a frame of a script"))
        frame = head + AESGCM(key).encrypt(number.to_bytes(12, "big"), cell, head)
        seen.append({"size": len(frame), "sha256": hashlib.sha256(frame).hexdigest()})
    return {"name": comment, "inner": inner, "key": key.hex(), "network": seen}


def carryings() -> list[dict[str, Any]]:
    """What ranks of scripts send."""
    reduced = form("0 (0, 1) all_reduce SUM 1 3 torch.float32")
    return [
        carry_frames(
            "pieces of a script", [(DATA, reduced, bytes([n]) * n) for n in (12, 1, 0, 200)]
        ),
        carry_frames("a script that ends", [(DATA, reduced, b"last"), (END, NONE, b"")]),
        carry_frames("a script that failed", [(FAILED, NONE, b"rank-lost 1")]),
    ]


def main() -> None:
    """Write the files."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    out.mkdir(parents=True, exist_ok=True)
    files = {
        "keys": [handshake("two nodes", 2, 1, 0), handshake("four ranks", 4, 3, 1)],
        "frames": {
            "forms": [
                {"text": text, "form": form(text).hex()}
                for text in ("", "0 (0, 1) barrier 1 ", "0 (0, 1) all_reduce SUM 1 3 torch.float32")
            ],
            "directions": directions(),
        },
        "scripts": carryings(),
    }
    for name, vectors in files.items():
        text = json.dumps({"format": "sealtrain/node-wire/v1", "cases": vectors}, indent=1)
        (out / f"{name}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
