"""Vectors of one-time pads, made without sealtrain, in Python's own integers.

Writes ``vectors/one-time-pads/{field,matrices,pads,products,dealing,pool}.json``. Everything
follows from the labels below, so a second run writes the same bytes. Run:
``python tools/vectorgen/one_time_pads.py [FOLDER]``.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import struct
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

OUT = Path(__file__).resolve().parents[2] / "vectors" / "one-time-pads"
P = 2**31 - 1
H = (P - 1) // 2
Rows = list[list[int]]


def seed(label: str, size: int = 32) -> bytes:
    """Bytes that follow from the label."""
    return hashlib.shake_256(b"sealtrain one-time pad vectors " + label.encode()).digest(size)


def numbers(label: str, count: int, low: int, high: int) -> list[int]:
    """Whole numbers in [low, high] that follow from the label."""
    data = seed(label, 8 * count)
    span = high - low + 1
    return [low + int.from_bytes(data[8 * at : 8 * at + 8], "big") % span for at in range(count)]


def grid(label: str, rows: int, columns: int, low: int, high: int) -> Rows:
    """A matrix of such numbers."""
    flat = numbers(label, rows * columns, low, high)
    return [flat[at * columns : (at + 1) * columns] for at in range(rows)]


def centre(value: int) -> int:
    """The representative in [-H, H]."""
    value %= P
    return value - P if value > H else value


def times(left: Rows, right: Rows) -> Rows:
    """Matrix product modulo p, centred."""
    columns = list(zip(*right, strict=True))
    return [
        [centre(sum(a * b for a, b in zip(row, column, strict=True))) for column in columns]
        for row in left
    ]


def transpose(rows: Rows) -> Rows:
    """Transposed."""
    return [list(column) for column in zip(*rows, strict=True)]


def derive(secret: bytes, purpose: str, *parts: str) -> bytes:
    """The scheme of spec/keys.md §1."""
    texts = [f"sealtrain/{purpose}/v1", *parts]
    info = b"".join(len(text.encode()).to_bytes(4, "big") + text.encode() for text in texts)
    extracted = hmac.digest(b"\0" * 32, secret, "sha256")
    return hmac.digest(extracted, info + b"\x01", "sha256")


def accept(data: bytes) -> list[int]:
    """Elements that a cipher's output gives."""
    words = [word & P for (word,) in struct.iter_unpack("<I", data)]
    return [centre(word) for word in words if word != P]


def stream(key: bytes, width: int, rows: int) -> Rows:
    """The first rows of a stream."""
    encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    flat = accept(encryptor.update(bytes(4 * width * rows + 64)))
    return [flat[at * width : (at + 1) * width] for at in range(rows)]


def digest(matrix: Rows) -> str:
    """Name of an int8 matrix."""
    sides = struct.pack(">II", len(matrix), len(matrix[0]))
    flat = b"".join(struct.pack(f"{len(row)}b", *row) for row in matrix)
    return hashlib.sha256(b"sealtrain/otp-matrix/v1" + sides + flat).hexdigest()


def float32(value: Fraction) -> Fraction:
    """Nearest float32: through a double this is exact for quotients of two float32."""
    return Fraction(struct.unpack("<f", struct.pack("<f", float(value)))[0])


def quantise(weight: list[list[Fraction]]) -> tuple[Rows, list[Fraction]]:
    """int8 rows and their scales (§2)."""
    values, scales = [], []
    for row in weight:
        largest = max(abs(entry) for entry in row)
        scale = float32(largest / 127) if largest else Fraction(1)
        scales.append(scale)
        values.append([max(-127, min(127, round(float32(entry / scale)))) for entry in row])
    return values, scales


def largest(matrix: Rows) -> dict[str, int]:
    """Q of both directions (§2)."""
    forward = max(sum(abs(entry) for entry in row) for row in matrix)
    backward = max(sum(abs(entry) for entry in column) for column in transpose(matrix))
    return {
        name: min(2047, H // max(1, norm))
        for name, norm in (("forward", forward), ("backward", backward))
    }


def field_vectors() -> list[dict[str, Any]]:
    """``field``: products at the edges of what is exact."""
    cases = [
        ("one element", [[5]], [[-3]]),
        ("largest with largest", [[H] * 64], [[127]] * 64),
        ("smallest with largest", [[-H] * 64], [[127]] * 64),
        ("all ones below", [[-1] * 9], [[-127]] * 9),
        ("around zero", [[0, 1, -1, 2, -2]], [[1], [127], [-127], [1], [1]]),
        ("digits at their edges", [[128, -128, 32896, -32896, 127, 255, 65408]], [[1]] * 7),
        ("wraps to the half", [[H, 1]], [[1], [1]]),
        ("random", grid("field", 5, 33, -H, H), grid("int8", 33, 7, -127, 127)),
    ]
    return [
        {"name": comment, "elements": left, "matrix": right, "product": times(left, right)}
        for comment, left, right in cases
    ]


def matrix_vectors() -> list[dict[str, Any]]:
    """``matrices``: weights, their int8 and scales, digest, and the largest entries."""
    sixteenths = [[Fraction(n, 16) for n in row] for row in grid("weights", 6, 5, -4000, 4000)]
    halves = [[Fraction(127), Fraction(1, 2), Fraction(3, 2), Fraction(-5, 2)]]
    zeros = [[Fraction(0)] * 3, [Fraction(1), Fraction(-1), Fraction(0)]]
    wide = [[Fraction(1)] * 20000]
    found = []
    for comment, weight in (
        ("random", sixteenths),
        ("halves go to even", halves),
        ("a row of zeros", zeros),
        ("so wide that entries are smaller", wide),
    ):
        values, scales = quantise(weight)
        same = len(weight[0]) > 1000
        found.append(
            {
                "name": comment,
                "weight": [float(weight[0][0])] if same else [list(map(float, w)) for w in weight],
                "inputs": len(weight[0]),
                "values": [values[0][0]] if same else values,
                "scales": [float(scale) for scale in scales],
                "digest": digest(values),
                "largest": largest(values),
            }
        )
    return found


def pad_vectors() -> dict[str, dict[str, list[dict[str, Any]]]]:
    """``pads``: streams of secrets, and which words of a cipher are taken."""
    matrix = grid("pad matrix", 3, 5, -127, 127)
    streams = []
    for purpose in ("otp-pad", "otp-check"):
        for direction, width in (("forward", 5), ("backward", 3)):
            secret = seed(f"{purpose} {direction}")
            key = derive(secret, purpose, digest(matrix), direction)
            streams.append(
                {
                    "purpose": purpose,
                    "direction": direction,
                    "secret": secret.hex(),
                    "matrix": matrix,
                    "key": key.hex(),
                    "width": width,
                    "rows": stream(key, width, 4),
                }
            )
    words = [0, P, 0x80000000, 0xFFFFFFFF, H, H + 1, P - 1, 0x80000000 | P, 7]
    data = struct.pack(f"<{len(words)}I", *words)
    taken = [{"data": data.hex(), "elements": accept(data)}]
    return {"cases": {"streams": streams, "words": taken}}


def product_vectors() -> list[dict[str, Any]]:
    """``products``: everything that occurs in one product, both directions."""
    matrix = grid("matrix", 7, 6, -127, 127)
    found = []
    for direction, factor in (("forward", transpose(matrix)), ("backward", matrix)):
        pad_secret, check_secret = seed(f"pad {direction}"), seed(f"check {direction}")
        entries = grid(f"entries {direction}", 4, len(factor), -2047, 2047)
        key = derive(pad_secret, "otp-pad", digest(matrix), direction)
        mask = stream(key, len(factor), 4)
        hidden = [
            [centre(a + b) for a, b in zip(*pair, strict=True)]
            for pair in zip(entries, mask, strict=True)
        ]
        check = derive(check_secret, "otp-check", digest(matrix), direction)
        vectors = transpose(stream(check, len(factor[0]), 2))
        found.append(
            {
                "name": direction,
                "direction": direction,
                "matrix": matrix,
                "pad_secret": pad_secret.hex(),
                "session": derive(pad_secret, "otp-session")[:16].hex(),
                "check_secret": check_secret.hex(),
                "entries": entries,
                "mask": mask,
                "mask_product": times(mask, factor),
                "hidden": hidden,
                "answer": times(hidden, factor),
                "result": times(entries, factor),
                "check_vectors": vectors,
                "check_images": times(factor, vectors),
            }
        )
    return found


def dealing_vectors() -> list[dict[str, Any]]:
    """``dealing``: sessions with a dealer, message by message; the last one may be refused."""
    matrix, other = grid("dealt matrix", 3, 4, -127, 127), grid("other matrix", 2, 2, -127, 127)
    secret = seed("session")
    factors = {"forward": transpose(matrix), "backward": matrix}
    dealt = {
        way: times(stream(derive(secret, "otp-pad", digest(matrix), way), len(factor), 8), factor)
        for way, factor in factors.items()
    }

    def message(**fields: Any) -> str:
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))

    def bring(rows: Rows) -> list[dict[str, Any]]:
        values = b"".join(struct.pack(f"{len(row)}b", *row) for row in rows)
        announced = message(do="matrix", outputs=len(rows), inputs=len(rows[0]))
        return [
            {"message": announced, "ok": {}, "payload": ""},
            {"bytes": values.hex(), "ok": {"matrix": digest(rows)}, "payload": ""},
        ]

    def ask(way: str, first: int, rows: int, of: Rows = matrix) -> str:
        return message(do="deal", direction=way, first=first, matrix=digest(of), rows=rows)

    def rows_of(way: str, first: int, rows: int) -> dict[str, Any]:
        part = dealt[way][first : first + rows]
        octets = b"".join(struct.pack(f"<{len(row)}i", *row) for row in part)
        return {"message": ask(way, first, rows), "ok": {}, "payload": octets.hex()}

    def refuse(text: str, code: str) -> dict[str, Any]:
        return {"message": text, "outcome": code}

    begun = [*bring(matrix), rows_of("forward", 0, 2)]
    announced = message(do="matrix", outputs=2, inputs=2)
    cases: list[tuple[str, list[dict[str, Any]]]] = [
        ("both directions", [*begun, rows_of("backward", 0, 3), rows_of("forward", 2, 1)]),
        ("two matrices", [*bring(matrix), *bring(other), rows_of("forward", 0, 1)]),
        ("a matrix twice", [*bring(matrix), *bring(matrix), rows_of("forward", 0, 1)]),
        ("rows again", [*begun, refuse(ask("forward", 0, 2), "pads-refused")]),
        ("rows left out", [*begun, refuse(ask("forward", 3, 1), "pads-refused")]),
        ("a late matrix", [*begun, refuse(announced, "pads-refused")]),
        ("no such matrix", [*begun, refuse(ask("forward", 0, 1, other), "data-invalid")]),
        ("before any matrix", [refuse(ask("forward", 0, 1), "data-invalid")]),
        ("no rows", [*begun, refuse(ask("forward", 2, 0), "data-invalid")]),
        ("too many rows", [*begun, refuse(ask("forward", 2, 2**20 + 1), "data-invalid")]),
        ("a third direction", [*begun, refuse(ask("sideways", 0, 1), "data-invalid")]),
        (
            "a matrix without sides",
            [refuse(message(do="matrix", outputs=0, inputs=2), "data-invalid")],
        ),
        (
            "a matrix too large",
            [refuse(message(do="matrix", outputs=2**16, inputs=2**12), "limit-exceeded")],
        ),
        (
            "a field too many",
            [refuse(message(do="matrix", outputs=2, inputs=2, bits=8), "data-invalid")],
        ),
        ("another operation", [refuse(message(do="begin"), "data-invalid")]),
        ("no object", [refuse("[]", "data-invalid")]),
    ]
    return [
        {"name": comment, "secret": secret.hex(), "messages": messages}
        for comment, messages in cases
    ]


def pool_vectors() -> list[dict[str, Any]]:
    """``pool``: a file, and files that are refused."""
    matrix, secret, name = grid("pool matrix", 4, 3, -127, 127), seed("pool"), seed("id", 16).hex()
    first, rows, block_rows = 2, 5, 2
    sides = (("forward", transpose(matrix)), ("backward", matrix))
    header: dict[str, Any] = {
        "block_rows": block_rows,
        "id": name,
        "streams": [
            {
                "columns": len(factor[0]),
                "direction": direction,
                "first": first,
                "matrix": digest(matrix),
                "rows": rows,
            }
            for direction, factor in sides
        ],
    }
    products = {}
    for direction, factor in sides:
        key = derive(secret, "otp-pad", digest(matrix), direction)
        products[direction] = times(stream(key, len(factor), first + rows)[first:], factor)

    def write_pool(spaces: str = "", length: int | None = None) -> bytes:
        text = json.dumps(header, sort_keys=True, separators=("," + spaces, ":")).encode()
        size = len(text) if length is None else length
        front = b"SEALOTP\x01" + size.to_bytes(4, "big") + text
        seal = AESGCM(derive(secret, "otp-pool", name))
        body = b""
        for number, (direction, _) in enumerate(sides):
            for block in range(-(-rows // block_rows)):
                part = products[direction][block * block_rows : (block + 1) * block_rows]
                plain = b"".join(struct.pack(f"<{len(row)}i", *row) for row in part)
                nonce = number.to_bytes(4, "big") + block.to_bytes(8, "big")
                body += seal.encrypt(nonce, plain, hashlib.sha256(front).digest())
        return front + body

    good = write_pool()
    altered = bytearray(good)
    altered[-1] ^= 1
    cases = [
        ("good", good, secret, None),
        ("one byte short", good[:-1], secret, "file-truncated"),
        ("one byte long", good + b"\0", secret, "file-truncated"),
        ("another magic", b"SEALOTP\x02" + good[8:], secret, "data-invalid"),
        ("empty", b"", secret, "data-invalid"),
        ("header not canonical", write_pool(" "), secret, "data-invalid"),
        ("header too long", write_pool(length=2**20 + 1), secret, "data-invalid"),
        ("last block altered", bytes(altered), secret, "wrong-key"),
        ("another secret", good, seed("other pool"), "wrong-key"),
    ]
    return [
        {
            "name": comment,
            "file": base64.b64encode(data).decode(),
            "secret": used.hex(),
            "matrix": matrix,
            "first": first,
            "products": products,
            "outcome": refused or "ok",
        }
        for comment, data, used, refused in cases
    ]


def main() -> None:
    """Write all files."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, dict[str, Any]] = {
        "field": {"cases": field_vectors()},
        "matrices": {"cases": matrix_vectors()},
        "pads": pad_vectors(),
        "products": {"cases": product_vectors()},
        "dealing": {"cases": dealing_vectors()},
        "pool": {"cases": pool_vectors()},
    }
    for name, content in files.items():
        text = json.dumps({"version": 2} | content, indent=1) + "\n"
        (folder / f"{name}.json").write_text(text, "utf-8")


if __name__ == "__main__":
    main()
