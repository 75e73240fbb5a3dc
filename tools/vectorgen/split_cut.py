"""Vectors of cut models, made without sealtrain, torch or safetensors.

Writes ``vectors/split-cut/{messages,roundings}.json``: messages of activations that a server reads
or refuses, and how activations are rounded for the wire. Everything follows from the numbers below,
so a second run writes the same bytes. Run: ``python tools/vectorgen/split_cut.py [FOLDER]``.
"""

from __future__ import annotations

import base64
import json
import struct
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

OUT = Path(__file__).resolve().parents[2] / "vectors" / "split-cut"
WIDTH, MAX_TOKENS, LABELS = 3, 4, 5
LENGTHS = [2, 1, 4]
Tensors = dict[str, tuple[str, list[int], bytes]]


def single(value: float) -> float:
    """The nearest float32."""
    number: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return number


def brain(value: float) -> bytes:
    """bfloat16, to nearest, half to even: the upper two bytes of a float32."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    return int((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).to_bytes(2, "little")


def eight(row: list[float]) -> tuple[list[int], float]:
    """int8 with one scale for a token; quotients as float32 has them, half to even."""
    scale = single(max(abs(value) for value in row) / 127)
    return [round(Fraction(single(value / scale))) for value in row], scale


def activations() -> list[list[float]]:
    """One row for each token of all records."""
    return [
        [single((7 * token - 5 * place + 3) / (2 + place)) for place in range(WIDTH)]
        for token in range(sum(LENGTHS))
    ]


def floats(values: list[float]) -> bytes:
    """float32, little-endian."""
    return struct.pack(f"<{len(values)}f", *values)


def integers(values: list[int]) -> bytes:
    """int32, little-endian."""
    return struct.pack(f"<{len(values)}i", *values)


def tensors(form: str, *, per_token: bool = False) -> Tensors:
    """An honest message's."""
    rows, count = activations(), sum(LENGTHS)
    labels = [token % LABELS if token % 3 else -100 for token in range(count)]
    labels = labels if per_token else [4, 0, 2]
    found: Tensors = {
        "lengths": ("I32", [len(LENGTHS)], integers(LENGTHS)),
        "labels": ("I32", [len(labels)], integers(labels)),
    }
    flat = [value for row in rows for value in row]
    if form == "float32":
        found["values"] = ("F32", [count, WIDTH], floats(flat))
    elif form == "bfloat16":
        found["values"] = ("BF16", [count, WIDTH], b"".join(map(brain, flat)))
    else:
        short = [eight(row) for row in rows]
        octets = b"".join(struct.pack("<b", value) for row, _ in short for value in row)
        found["values"] = ("I8", [count, WIDTH], octets)
        found["scales"] = ("F32", [count], floats([scale for _, scale in short]))
    return found


def safetensors(found: Tensors) -> bytes:
    """The file: length of the header, header, tensors one after another."""
    header, body = {}, b""
    for name, (kind, shape, data) in found.items():
        ends = [len(body), len(body) + len(data)]
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": ends}
        body += data
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


def restore(found: Tensors) -> list[float]:
    """The activations that a message means, as float32, one after another."""
    kind, _shape, data = found["values"]
    if kind == "F32":
        return list(struct.unpack(f"<{len(data) // 4}f", data))
    if kind == "BF16":
        pairs = [data[place : place + 2] for place in range(0, len(data), 2)]
        return [struct.unpack("<f", b"\0\0" + pair)[0] for pair in pairs]
    scales = struct.unpack(f"<{len(found['scales'][2]) // 4}f", found["scales"][2])
    values = struct.unpack(f"<{len(data)}b", data)
    return [single(value * scales[place // WIDTH]) for place, value in enumerate(values)]


def case(comment: str, form: str, found: Tensors, *, per_token: bool = False) -> dict[str, Any]:
    """A message and what a reader expects of it."""
    return {
        "name": comment,
        "outcome": "ok",
        "form": form,
        "width": WIDTH,
        "max_tokens": MAX_TOKENS,
        "labels": LABELS,
        "per_token": per_token,
        "records": len(LENGTHS),
        "message": base64.b64encode(safetensors(found)).decode(),
    }


def messages() -> list[dict[str, Any]]:
    """Those that are read, then those that are refused."""
    cases = []
    for form in ("float32", "bfloat16", "int8"):
        for per_token in (False, True):
            found = tensors(form, per_token=per_token)
            one = case(f"{form}, labels by {'token' if per_token else 'record'}", form, found,
                       per_token=per_token)  # fmt: skip
            labels = list(struct.unpack(f"<{len(found['labels'][2]) // 4}i", found["labels"][2]))
            cases.append(
                one | {"lengths": LENGTHS, "activations": restore(found), "read_labels": labels}
            )
    plain = tensors("float32")
    values = bytearray(plain["values"][2])
    values[0:4] = struct.pack("<f", float("nan"))
    refused: list[tuple[str, Tensors]] = [
        ("a record without a token", plain | {"lengths": ("I32", [3], integers([3, 0, 4]))}),
        ("a record that is too long", plain | {"lengths": ("I32", [3], integers([1, 1, 5]))}),
        ("fewer records", plain | {"lengths": ("I32", [2], integers([3, 4]))}),
        ("lengths in 64 bits", plain | {"lengths": ("I64", [3], struct.pack("<3q", *LENGTHS))}),
        ("another width", plain | {"values": ("F32", [21, 1], plain["values"][2])}),
        ("a number that is none", plain | {"values": ("F32", [7, 3], bytes(values))}),
        ("a class that is not known", plain | {"labels": ("I32", [3], integers([5, 0, 0]))}),
        ("no class", plain | {"labels": ("I32", [3], integers([-100, 0, 0]))}),
        ("a tensor too many", plain | {"more": ("I32", [1], integers([1]))}),
        ("labels missing", {name: timing for name, timing in plain.items() if name != "labels"}),
        ("values in another form", tensors("bfloat16")),
    ]
    cases += [
        case(comment, "float32", found) | {"outcome": "data-invalid"} for comment, found in refused
    ]
    short = tensors("int8")
    scales = floats([0.0] * 7)
    bad = short | {"scales": ("F32", [7], scales)}
    cases.append(case("a scale of zero", "int8", bad) | {"outcome": "data-invalid"})
    return cases


def roundings() -> list[dict[str, Any]]:
    """Rows of activations as int8, halves among them."""
    rows = [
        [127.0, 0.5, 1.5, 2.5, -0.5, -1.5],
        [1.0, -1.0, 0.25, 1 / 3, -0.999, 0.003],
        [-2.54e-3, 1e-5, 1.9e-3, 0.0, -1e-9, 2e-3],
    ]
    found = []
    for row in rows:
        exact = [single(value) for value in row]
        values, scale = eight(exact)
        found.append({"activations": exact, "values": values, "scale": scale})
    return found


def main(folder: Path) -> None:
    """Write both files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, made in (("messages", messages()), ("roundings", roundings())):
        (folder / f"{name}.json").write_text(json.dumps({"cases": made}, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else OUT)
