"""Write a unified kernel image: systemd-stub with sections appended (spec/guest-image.md §3).

Microsoft's *PE Format* names the fields. The stub is not changed otherwise, so one stub and the
same sections give the same bytes anywhere.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from sealtrain.errors import ImageRefused
from sealtrain.image.machine.pe_file import Portable

_HEADER: Final = struct.Struct("<8sIIIIIIHHI")
_READABLE_DATA: Final = 0x40000040
"""``IMAGE_SCN_CNT_INITIALIZED_DATA | IMAGE_SCN_MEM_READ``."""
_MAX_UKI_BYTES: Final = 1 << 30


def write_unified(stub: bytes, sections: Sequence[tuple[str, bytes]]) -> bytes:
    """A UKI.

    Args:
        stub: systemd-stub, unsigned.
        sections: Names and contents, in the order in which they follow each other.

    Raises:
        ImageRefused: The stub is signed or no PE file, has such a section already, or has no room
            for another header; a name is not 1 to 8 characters or comes twice.
    """
    portable = Portable(stub, "the stub")
    names = [name for name, _ in sections]
    known = [section.name for section in portable.sections]
    for name in names:
        if not 1 <= len(name) <= 8 or not name.isascii() or (names + known).count(name) != 1:
            raise _refusal(f"cannot get a section {name!r}")
    data = bytearray(stub)
    (start,) = struct.unpack_from("<I", data, 0x3C)
    optional = start + 24
    (optional_bytes,) = struct.unpack_from("<H", data, start + 20)
    table = optional + optional_bytes
    section_alignment, file_alignment = struct.unpack_from("<II", data, optional + 32)
    if file_alignment % 8 or section_alignment % 8 or not file_alignment or not section_alignment:
        raise _refusal("has sections of an odd alignment")
    if any(struct.unpack_from("<II", data, optional + 112 + 4 * 8)):
        raise _refusal("is signed; name an unsigned one")
    first = min((part.offset for part in portable.sections if part.size), default=len(data))
    count = len(known) + len(sections)
    if table + _HEADER.size * count > min(first, len(data)):
        raise _refusal("has no room for another section")
    address = _align(_end_in_memory(data, table, len(known)), section_alignment)
    added = 0
    data += bytes(-len(data) % file_alignment)
    for number, (name, content) in enumerate(sections, len(known)):
        size = _align(len(content), file_alignment)
        if len(data) + size > _MAX_UKI_BYTES or address + size >= 1 << 32:
            raise _refusal(f"would get more than {_MAX_UKI_BYTES} bytes")
        _HEADER.pack_into(
            data, table + _HEADER.size * number, name.encode("ascii"),
            len(content), address, size, len(data) if size else 0, 0, 0, 0, 0, _READABLE_DATA,
        )  # fmt: skip
        data += content
        data += bytes(size - len(content))
        address, added = _align(address + len(content), section_alignment), added + size
    (initialised,) = struct.unpack_from("<I", data, optional + 8)
    struct.pack_into("<H", data, start + 6, count)
    struct.pack_into("<I", data, optional + 8, initialised + added)
    struct.pack_into("<I", data, optional + 56, address)  # SizeOfImage
    struct.pack_into("<I", data, optional + 64, 0)  # CheckSum: firmware does not look at it
    return bytes(data)


def _end_in_memory(data: bytearray, table: int, count: int) -> int:
    ends = [0]
    for number in range(count):
        _, virtual_size, address, size, *_ = _HEADER.unpack_from(data, table + 40 * number)
        ends.append(address + max(virtual_size, size))
    return max(ends)


def _align(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


def _refusal(problem: str) -> ImageRefused:
    return ImageRefused(f"the stub {problem}", check="UKI", hint="name linuxx64.efi.stub unchanged")
