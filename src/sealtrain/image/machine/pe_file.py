"""PE files, as UEFI loads them: their sections, and the digest that it measures of one.

Microsoft's PE format specification names the fields; *Windows Authenticode Portable Executable
Signature Format* (2008) says which bytes the digest leaves out: checksum, the entry of the
certificate table, and the certificates.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import Final

from sealtrain.errors import ImageRefused
from sealtrain.image.machine.registers import Algorithm

_PE32_PLUS: Final = 0x20B
_SECTION: Final = struct.Struct("<8sIIII")
_SECTION_BYTES: Final = 40
_MAX_SECTIONS: Final = 96
_CHECKSUM: Final = 64
_CERTIFICATES: Final = 112 + 4 * 8
"""The fifth data directory, counted from the optional header."""


@dataclass(frozen=True, slots=True)
class Section:
    """A section: its name, and where its bytes are.

    Attributes:
        name: Up to eight characters.
        virtual_size: Bytes of it in memory.
        size: Bytes of it in the file, padded.
        offset: Of the first one in the file.
    """

    name: str
    virtual_size: int
    size: int
    offset: int


class Portable:
    """A PE32+ file.

    Args:
        data: Its bytes.
        what: How errors call it.

    Attributes:
        sections: In the order of their table.

    Raises:
        ImageRefused: Not a PE32+ file, or it names bytes that it does not have.
    """

    def __init__(self, data: bytes, what: str) -> None:
        self._data, self._what = data, what
        if len(data) < 0x40 or data[:2] != b"MZ":
            raise self._refusal("begins with no MZ")
        (start,) = struct.unpack_from("<I", data, 0x3C)
        self._optional = start + 24
        if start + 24 + _CERTIFICATES + 8 > len(data) or data[start : start + 4] != b"PE\0\0":
            raise self._refusal("has no PE header")
        count, optional_bytes = (struct.unpack_from("<H", data, start + at)[0] for at in (6, 20))
        if struct.unpack_from("<H", data, self._optional)[0] != _PE32_PLUS:
            raise self._refusal("is no 64-bit program")
        if count > _MAX_SECTIONS:
            raise self._refusal(f"has {count} sections, at most {_MAX_SECTIONS} are read")
        table = self._optional + optional_bytes
        if table + count * _SECTION_BYTES > len(data):
            raise self._refusal("ends within its table of sections")
        self.sections = tuple(
            self._section(table + number * _SECTION_BYTES) for number in range(count)
        )

    def content(self, name: str) -> memoryview | None:
        """What is in a section, without the padding; ``None`` without such a section."""
        found = [section for section in self.sections if section.name == name]
        if not found:
            return None
        if len(found) > 1:
            raise self._refusal(f"has two sections {name}")
        size = min(found[0].virtual_size, found[0].size) or found[0].size
        return memoryview(self._data)[found[0].offset : found[0].offset + size]

    def authenticode(self, algorithm: Algorithm) -> bytes:
        """The digest that UEFI measures when it loads this program."""
        data, optional = memoryview(self._data), self._optional
        (headers,) = struct.unpack_from("<I", data, optional + 60)
        at, certificates = optional + _CHECKSUM, optional + _CERTIFICATES
        if not certificates + 8 <= headers <= len(data):
            raise self._refusal("names headers that it does not have")
        found = hashlib.new(algorithm)
        found.update(data[:at])
        found.update(data[at + 4 : certificates])
        found.update(data[certificates + 8 : headers])
        hashed = headers
        for section in sorted(self.sections, key=lambda part: part.offset):
            found.update(data[section.offset : section.offset + section.size])
            hashed += section.size
        (signed,) = struct.unpack_from("<I", data, certificates + 4)
        if signed > max(0, len(data) - hashed):
            raise self._refusal("names certificates that it does not have")
        if len(data) % 8:  # signers pad the last bytes, firmware does not
            raise self._refusal(f"has {len(data)} bytes, no multiple of 8")
        if len(data) - signed > hashed:
            found.update(data[hashed : len(data) - signed])
        return found.digest()

    def _section(self, at: int) -> Section:
        name, virtual_size, _, size, offset = _SECTION.unpack_from(self._data, at)
        if size and offset + size > len(self._data):
            raise self._refusal("names bytes of a section that it does not have")
        text = name.rstrip(b"\0").decode("latin-1")
        return Section(name=text, virtual_size=virtual_size, size=size, offset=offset)

    def _refusal(self, problem: str) -> ImageRefused:
        return ImageRefused(
            f"{self._what} {problem}", check="PE file", hint="name an unchanged file of the image"
        )
