"""Vectors of fingerprints of travelling runs, made without sealtrain.

Writes ``vectors/travelling/fingerprints.json``: chunks, wipes, model states,
capabilities and what a holder remembers.
GHASH (NIST SP 800-38D §6.4) is written out over integers, and AES is used for single blocks
alone; everything follows from the labels below, so a second run writes the same bytes. Run:
``python tools/vectorgen/travelling.py [FOLDER]``.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import sys
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

OUT = Path(__file__).resolve().parents[2] / "vectors" / "travelling"
PIECE = 1 << 18
REDUCTION = 0xE1 << 120


def seed(label: str, size: int = 32) -> bytes:
    """Bytes that follow from the label."""
    return hashlib.shake_256(b"sealtrain travelling vectors " + label.encode()).digest(size)


def expand(key: bytes, info: bytes) -> bytes:
    """HKDF-Expand of RFC 5869 with SHA-256 to 32 bytes: one block."""
    return hmac.digest(key, info + b"\x01", "sha256")


def block(key: bytes, data: bytes) -> bytes:
    """AES-256 of one block."""
    encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305 - one block
    return encryptor.update(data) + encryptor.finalize()


def steps(factor: int) -> list[int]:
    """The factor times each power of x below 128, in GCM's order of bits."""
    found = []
    for _ in range(128):
        found.append(factor)
        factor = (factor >> 1) ^ (REDUCTION if factor & 1 else 0)
    return found


def gmac(key: bytes, nonce: bytes, data: bytes) -> bytes:
    """The tag of AES-256-GCM over additional data alone."""
    powers = steps(int.from_bytes(block(key, bytes(16))))
    padded = data + bytes(-len(data) % 16) + (8 * len(data)).to_bytes(8) + bytes(8)
    state = 0
    for at in range(0, len(padded), 16):
        value, state = state ^ int.from_bytes(padded[at : at + 16]), 0
        for bit in range(128):
            if value >> (127 - bit) & 1:
                state ^= powers[bit]
    mask = block(key, nonce + (1).to_bytes(4))
    return bytes(a ^ b for a, b in zip(state.to_bytes(16), mask, strict=True))


def fingerprint(key: bytes, data: bytes) -> str:
    """F of spec/travelling.md §4, hex."""
    tags = (
        gmac(key, start.to_bytes(12), data[start : start + PIECE])
        for start in range(0, len(data), PIECE)
    )
    return hashlib.sha256(b"".join(tags)).hexdigest()


def of_chunks() -> list[dict[str, Any]]:
    """Chunks of several lengths; the data are so many bytes of SHAKE-256 of the label."""
    made = []
    for size in (1, 15, 16, 17, 1000, PIECE, PIECE + 1):
        label = f"chunk of {size}"
        key = seed(f"{label} key")
        made.append(
            {
                "name": label,
                "key": key.hex(),
                "size": size,
                "shake_256_of": f"sealtrain travelling vectors {label}",
                "fingerprint": fingerprint(key, seed(label, size)),
            }
        )
    return made


def keystream(key: bytes, size: int) -> bytes:
    """AES-256 of 0, 1, 2 … (16 bytes, big endian), one after the other."""
    count = -(-size // 16)
    counters = b"".join(number.to_bytes(16) for number in range(count))
    return block(key, counters)[:size]


def of_wipes() -> list[dict[str, Any]]:
    """Proofs of overwritten ranges."""
    return [
        {
            "name": f"{size} bytes overwritten",
            "seed": seed(f"seed {size}").hex(),
            "nonce": seed(f"nonce {size}").hex(),
            "size": size,
            "proof": fingerprint(seed(f"nonce {size}"), keystream(seed(f"seed {size}"), size)),
        }
        for size in (2, 512, PIECE + 2)
    ]


STATES: list[tuple[str, int, dict[str, tuple[str, list[int], int]]]] = [
    ("two tensors", 3, {"model.b": ("F32", [2, 3], 24), "model.a": ("BF16", [5], 10)}),
    (
        "a tensor of two blocks and one behind it",
        70000,
        {"model.w": ("F32", [256, 257], 263168), "optimizer.w.step": ("F32", [1], 4)},
    ),
]


def of_states() -> list[dict[str, Any]]:
    """Model states; the bytes of a tensor are so many of SHAKE-256 of its label."""
    made = []
    for comment, step, tensors in STATES:
        key = seed(f"{comment} key")
        digest, place, told = hashlib.sha256(f"step {step}\n".encode()), 0, []
        for name, (dtype, shape, size) in sorted(tensors.items()):
            label = f"{comment} {name}"
            data = seed(label, size)
            digest.update(f"{name} {dtype} [{','.join(map(str, shape))}]\n".encode())
            for start in range(0, size, PIECE):
                digest.update(gmac(key, (place + start).to_bytes(12), data[start : start + PIECE]))
            place += size
            told.append(
                {
                    "name": name,
                    "dtype": dtype,
                    "shape": shape,
                    "shake_256_of": f"sealtrain travelling vectors {label}",
                    "size": size,
                }
            )
        made.append(
            {
                "name": comment,
                "key": key.hex(),
                "step": step,
                "tensors": told,
                "fingerprint": digest.hexdigest(),
            }
        )
    return made


def keys() -> list[dict[str, Any]]:
    """The three keys of a capability."""
    secret = seed("secret of a capability")
    label = b"sealtrain/travelling/v2 "
    names = ("write", "receipt", "fingerprint")
    return [
        {
            "secret": secret.hex(),
            **{name: expand(secret, label + name.encode()).hex() for name in names},
        }
    ]


def memory() -> list[dict[str, Any]]:
    """Lines of a holder that gave trips 0 and 3, lost trip 3 to a takeover, and gave trip 2.

    It was started twice: a line without bytes stands where each process began.
    """
    holder, run_id = seed("key of a holder for a run"), "5a" * 16
    texts = (b"sealtrain/travel-given/v1", run_id.encode())
    key = expand(holder, b"".join(len(text).to_bytes(4) + text for text in texts))
    mac, lines = bytes(32), []
    for trip, after, start, end in (
        (0, 0, 0, 0),
        (0, 0, 0, 512),
        (3, 1, 512, 1024),
        (0, 0, 0, 0),
        (2, 1, 512, 768),
    ):
        # Canonical JSON: names in order, no spaces.
        body = f'{{"after":{after},"end":{end},"start":{start},"trip":{trip}}}'
        mac = hmac.digest(key, mac + body.encode(), "sha256")
        names = f'"after":{after},"end":{end},"mac":"{mac.hex()}","start":{start},"trip":{trip}'
        lines.append(f"{{{names}}}")
    return [
        {
            "key": holder.hex(),
            "run_id": run_id,
            "lines": lines,
            "counts": [[0, 512], [2, 256]],
            "anchor": {"counter": len(lines), "digest": mac.hex()},
        }
    ]


def main() -> None:
    """Write the file."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    out.mkdir(parents=True, exist_ok=True)
    vectors = {
        "chunks": of_chunks(),
        "wiped": of_wipes(),
        "states": of_states(),
        "capabilities": keys(),
        "memory": memory(),
    }
    text = json.dumps({"format": "sealtrain/travelling/v2", "cases": vectors}, indent=1)
    (out / "fingerprints.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
