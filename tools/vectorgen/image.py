"""Vectors of images, made without sealtrain and without a library that writes tar.

Writes ``vectors/image/image.json``: entries of layers with the tar they give, what a layer may not
be, and the digests of a manifest and a config. Run: ``python tools/vectorgen/image.py [FOLDER]``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

Json = Any
OUT = Path(__file__).resolve().parents[2] / "vectors" / "image"
BLOCK, RECORD = 512, 10240
TYPES = {"file": b"0", "link": b"2", "folder": b"5"}


def sha256(data: bytes) -> str:
    """In hex."""
    return hashlib.sha256(data).hexdigest()


def canonical(value: Json) -> bytes:
    """RFC 8785 for what occurs here: ASCII, and no number but integers."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def pad(data: bytes) -> bytes:
    """Filled with zeros up to a whole block."""
    return data + bytes(-len(data) % BLOCK)


def header(name: bytes, mode: int, size: int, kind: bytes, target: bytes) -> bytes:
    """One header of GNU tar, by the offsets of its manual."""
    block = bytearray(BLOCK)
    for at, field in (
        (0, name[:100]),
        (100, b"%07o\0" % mode),
        (108, b"%07o\0" % 0),
        (116, b"%07o\0" % 0),
        (124, b"%011o\0" % size),
        (136, b"%011o\0" % 0),
        (148, b" " * 8),
        (156, kind),
        (157, target[:100]),
        (257, b"ustar  \0"),
    ):
        block[at : at + len(field)] = field
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def long(text: bytes, kind: bytes) -> bytes:
    """The entry before one whose name or link has over 100 bytes."""
    if len(text) <= 100:
        return b""
    data = text + b"\0"
    return header(b"././@LongLink", 0, len(data), kind, b"") + pad(data)


def tar(entries: list[Json]) -> bytes:
    """The only form of a layer."""
    made = b""
    for entry in sorted(entries, key=order):
        name, target = order(entry).encode(), entry.get("target", "").encode()
        data = base64.b64decode(entry.get("content", ""))
        made += long(target, b"K") + long(name, b"L")
        made += header(name, int(entry["mode"], 8), len(data), TYPES[entry["kind"]], target)
        made += pad(data)
    made += bytes(2 * BLOCK)
    return made + bytes(-len(made) % RECORD)


def order(entry: Json) -> str:
    """A folder's name ends in a slash."""
    name: str = entry["name"]
    return f"{name}/" if entry["kind"] == "folder" else name


def file(name: str, content: bytes, mode: str = "0644") -> Json:
    """A file."""
    return {
        "name": name,
        "kind": "file",
        "mode": mode,
        "content": base64.b64encode(content).decode(),
    }


LAYERS: dict[str, list[Json]] = {
    "nothing": [],
    "of every kind": [
        {"name": "usr", "kind": "folder", "mode": "0755"},
        {"name": "usr/bin", "kind": "folder", "mode": "0755"},
        {"name": "tmp", "kind": "folder", "mode": "1777"},
        file("usr/bin/python3.11", b"\x7fELF" + bytes(600), "0755"),
        file("usr/empty", b""),
        {"name": "usr/bin/python3", "kind": "link", "mode": "0777", "target": "python3.11"},
    ],
    "long names": [
        {"name": "a" * 99, "kind": "folder", "mode": "0755"},
        file("a" * 99 + "/" + "b" * 120, b"x"),
        file("c" * 100, b"y"),
        {"name": "link", "kind": "link", "mode": "0777", "target": "t" * 300},
    ],
    "a file of one block and of one record": [
        file("one-block", bytes(range(256)) * 2),
        file("one-record", b"r" * RECORD),
    ],
    "names beyond ASCII": [file("f\u00e4higkeit", b""), file("\u65e5\u672c", b"")],
    "a folder sorts behind names that begin as it does": [
        {"name": "a", "kind": "folder", "mode": "0755"},
        file("a-b", b""),
        file("a.b", b""),
        file("a/c", b""),
    ],
}


def list_refused() -> dict[str, bytes]:
    """Tars that are no layer."""
    good = tar(LAYERS["of every kind"])
    aged = bytearray(tar([file("x", b"1")]))
    aged[136:148] = b"00000000001\0"
    aged[148:156] = b" " * 8
    aged[148:156] = b"%06o\0 " % sum(aged[:BLOCK])
    return {
        "another length": good + bytes(RECORD),
        "cut": good[:-RECORD],
        "a time": bytes(aged),
        "no checksum": good[:148] + b"0000000\0" + good[156:],
        "setuid": tar([file("x", b"", "4755")]),
        "way out": tar([file("../x", b"")]),
        "absolute": tar([file("/x", b"")]),
        "whiteout": tar([file(".wh.x", b"")]),
        "here": tar([file("./x", b"")]),
    }


def main(folder: Path) -> None:
    """Write the file."""
    folder.mkdir(parents=True, exist_ok=True)
    layers = {}
    for name, entries in LAYERS.items():
        made = tar(entries)
        layers[name] = {
            "entries": sorted(entries, key=order),
            "tar_sha256": sha256(made),
            "tar_bytes": len(made),
        }
    described = {
        "usr/bin/python3": "link python3.11",
        "usr/bin/python3.11": f"0755 {sha256(b'interpreter')}",
        "var/lib/dpkg/status.d/x": f"0644 {sha256(b'control')}",
    }
    document = {
        "cases": [
            *({"name": name, "outcome": "ok", **layer} for name, layer in layers.items()),
            *(
                {"name": name, "outcome": "image-refused", "tar": base64.b64encode(data).decode()}
                for name, data in sorted(list_refused().items())
            ),
        ],
        "files": {
            "entries": [
                {"name": "usr/bin/python3", "kind": "link", "mode": "0777", "target": "python3.11"},
                file("usr/bin/python3.11", b"interpreter", "0755"),
                file("var/lib/dpkg/status.d/x", b"control"),
            ],
            "files_sha256": sha256(canonical(described)),
        },
    }
    text = json.dumps(document, indent=1, sort_keys=True) + "\n"
    (folder / "image.json").write_text(text, "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else OUT)
