"""The certificate table that a host hands to its guest along with a report (GHCB specification).

24 bytes an entry: a GUID as it is written, offset and length (little-endian) of what it names; an
entry of zeros ends the table. The host writes it, so it is parsed like anything hostile, and what
it holds is worth nothing before the chain was verified.
"""

from __future__ import annotations

import struct
from uuid import UUID

from sealtrain.errors import EvidenceMalformed

__all__ = ["CERTIFICATE_GUIDS", "parse_table"]

CERTIFICATE_GUIDS = {
    "vcek": UUID("63da758d-e664-4564-adc5-f4b93be8accd"),
    "vlek": UUID("a8074bc2-a25a-483e-aae6-39c045a0b8a1"),
    "ask": UUID("4ab7b379-bbac-4fe4-a02f-05aef327c782"),
    "ark": UUID("c0b406a4-a803-4952-9743-3fb6014cd0ae"),
    "crl": UUID("92f81bc3-5811-4d3d-97ff-d19f88dc67ea"),
}
"""What the entries of a table are called."""

_NAMES = {guid.bytes: name for name, guid in CERTIFICATE_GUIDS.items()}
_ENTRY = struct.Struct("<16sII")
_MAX_TABLE_BYTES = 128 << 10
_MAX_ENTRIES = 64


def parse_table(raw: bytes) -> dict[str, bytes]:
    """What a table holds, by the names above; entries under other GUIDs are left out.

    An empty table, or one of zeros alone, is a host that hands out nothing.

    Raises:
        EvidenceMalformed: Too long, no end, something named twice, or bytes outside the table.
    """
    if len(raw) > _MAX_TABLE_BYTES:
        raise _wrong("is too long", len(raw), f"at most {_MAX_TABLE_BYTES} bytes")
    if not any(raw):
        return {}
    entries: list[tuple[bytes, int, int]] = []
    while True:
        at = _ENTRY.size * len(entries)
        if len(entries) > _MAX_ENTRIES or at + _ENTRY.size > len(raw):
            raise _wrong("has no end", len(entries), f"at most {_MAX_ENTRIES} entries and zeros")
        guid, offset, length = _ENTRY.unpack_from(raw, at)
        if not any(guid):
            break
        entries.append((guid, offset, length))
    first = _ENTRY.size * (len(entries) + 1)
    found: dict[str, bytes] = {}
    for guid, offset, length in entries:
        if offset < first or offset + length > len(raw):
            raise _wrong("names bytes outside it", f"{offset} + {length}", f"{first} to {len(raw)}")
        name = _NAMES.get(guid)
        if name is None or length == 0:
            continue
        if name in found:
            raise _wrong("names something twice", name, "each at most once")
        found[name] = bytes(raw[offset : offset + length])
    return found


def _wrong(message: str, got: object, expected: object) -> EvidenceMalformed:
    return EvidenceMalformed(
        f"the host's certificate table {message}",
        check="certificate table",
        got=got,
        expected=expected,
    )
