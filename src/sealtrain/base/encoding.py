"""Text forms of bytes, decoded strictly: one text for one value, so nothing signed is malleable."""

from __future__ import annotations

import base64
import binascii

from sealtrain.errors import DataInvalid


def to_base64(data: bytes) -> str:
    """Standard base64 with padding (RFC 4648 §4)."""
    return base64.b64encode(data).decode("ascii")


def from_base64(text: str, *, length: int | None = None) -> bytes:
    """Decode standard base64; refuse any text that is not the one encoding of its value.

    Raises:
        DataInvalid: Not base64, not canonical, or not ``length`` bytes long.
    """
    try:
        data = base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise DataInvalid("not base64 (RFC 4648 §4, padded)") from error
    if to_base64(data) != text:
        raise DataInvalid("base64 has stray bits after its last byte")
    return _require_length(data, length)


def from_hex(text: str, *, length: int | None = None) -> bytes:
    """Decode lower-case hexadecimal without prefix.

    Raises:
        DataInvalid: Not lower-case hex, or not ``length`` bytes long.
    """
    try:
        data = bytes.fromhex(text)
    except ValueError as error:
        raise DataInvalid("not hexadecimal") from error
    if data.hex() != text:
        raise DataInvalid("hexadecimal must be lower case, without prefix or spaces")
    return _require_length(data, length)


def _require_length(data: bytes, length: int | None) -> bytes:
    if length is not None and len(data) != length:
        raise DataInvalid(
            "value has the wrong length", got=f"{len(data)} bytes", expected=f"{length} bytes"
        )
    return data
