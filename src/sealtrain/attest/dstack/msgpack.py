"""MessagePack, the part dstack's attestation blob uses: read within limits, written plainly.

Maps with text keys, arrays, text, bytes, integers, booleans and nil. No floats, no extensions, no
repeated keys, no byte after the value. Which of several encodings of a length was chosen does not
matter: the blob is unsigned transport, its parts are verified one by one.
"""

from __future__ import annotations

import struct
from typing import Any, NoReturn

from sealtrain.attest.errors import EvidenceMalformed

MAX_BYTES = 10 << 20
MAX_DEPTH = 16
MAX_ITEMS = 1 << 18
"""Some encoders write bytes as arrays of integers: a quote and the payloads of a long log."""

_UNSIGNED = {0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q"}
_SIGNED = {0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
_TEXT = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
_BYTES = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I"}
_ARRAY = {0xDC: ">H", 0xDD: ">I"}
_MAP = {0xDE: ">H", 0xDF: ">I"}
_CONSTANT = {0xC0: None, 0xC2: False, 0xC3: True}


def unpack(data: bytes) -> Any:
    """The one value ``data`` holds.

    Raises:
        EvidenceMalformed: Truncated, trailing bytes, a type or key outside the part above, over
            10 MiB, over 2**18 items, or nested over 16 deep.
    """
    if len(data) > MAX_BYTES:
        _refuse("is too long")
    reader = _MsgpackReader(data)
    value = reader.value(0)
    if reader.at != len(data):
        _refuse("has trailing bytes")
    return value


def pack(value: Any) -> bytes:
    """MessagePack of a value built from the types above, shortest form."""
    if value is None or isinstance(value, bool):
        return b"\xc0" if value is None else b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        if 0 <= value < 0x80:
            return bytes([value])
        for code, form in _UNSIGNED.items():
            if 0 <= value < 1 << (8 * struct.calcsize(form)):
                return bytes([code]) + struct.pack(form, value)
    if isinstance(value, str):
        text = value.encode("utf-8")
        return _encode_head(len(text), 0xA0, 32, _TEXT) + text
    if isinstance(value, bytes):
        return _encode_head(len(value), 0, 0, _BYTES) + value
    if isinstance(value, list):
        return _encode_head(len(value), 0x90, 16, _ARRAY) + b"".join(map(pack, value))
    if isinstance(value, dict):
        items = (pack(key) + pack(item) for key, item in value.items())
        return _encode_head(len(value), 0x80, 16, _MAP) + b"".join(items)
    raise TypeError(f"cannot pack {type(value).__name__}")


def _encode_head(length: int, fixed: int, below: int, forms: dict[int, str]) -> bytes:
    if length < below:
        return bytes([fixed | length])
    for code, form in forms.items():
        if length < 1 << (8 * struct.calcsize(form)):
            return bytes([code]) + struct.pack(form, length)
    raise ValueError("value is too long for MessagePack")


def _refuse(what: str) -> NoReturn:
    raise EvidenceMalformed(f"attestation blob {what}", check="attestation blob")


class _MsgpackReader:
    """Cursor over the blob that counts items and never allocates ahead of what it has read."""

    __slots__ = ("at", "data", "items")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.items = 0

    def value(self, depth: int) -> Any:
        self.items += 1
        if depth > MAX_DEPTH or self.items > MAX_ITEMS:
            _refuse("is nested too deeply or holds too many items")
        code = self.take(1)[0]
        if code < 0x80:
            return code
        if code < 0x90:
            return self.mapping(code & 0x0F, depth)
        if code < 0xA0:
            return [self.value(depth + 1) for _ in range(code & 0x0F)]
        if code < 0xC0:
            return self.text(code & 0x1F)
        if code in _CONSTANT:
            return _CONSTANT[code]
        if code >= 0xE0:
            return code - 0x100
        for forms in (_UNSIGNED, _SIGNED):
            if code in forms:
                return self.number(forms[code])
        if code in _TEXT:
            return self.text(self.number(_TEXT[code]))
        if code in _BYTES:
            return self.take(self.number(_BYTES[code]))
        if code in _ARRAY:
            return [self.value(depth + 1) for _ in range(self.number(_ARRAY[code]))]
        if code in _MAP:
            return self.mapping(self.number(_MAP[code]), depth)
        _refuse("holds an unsupported type")

    def mapping(self, length: int, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for _ in range(length):
            key = self.value(depth + 1)
            if not isinstance(key, str) or key in result:
                _refuse("has a key that is no text or occurs twice")
            result[key] = self.value(depth + 1)
        return result

    def text(self, length: int) -> str:
        try:
            return self.take(length).decode("utf-8")
        except UnicodeDecodeError:
            _refuse("holds text that is not UTF-8")

    def number(self, form: str) -> int:
        return int(struct.unpack(form, self.take(struct.calcsize(form)))[0])

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.data):
            _refuse("is truncated")
        taken = self.data[self.at : end]
        self.at = end
        return taken
