"""CBOR as the Nitro Secure Module writes it, and nothing else of CBOR.

The library decodes; before it sees a byte, ``_walk`` reads the heads alone and refuses

1. strings in chunks: the same value in another spelling;
2. tags: the library would build dates, big numbers and regular expressions from them;
3. floats and simple values other than false, true and null;
4. more levels than ``MAX_DEPTH``, lengths beyond the end, bytes after the end.

Containers of indefinite length are accepted: the module writes them since the end of 2025. Time
and memory are linear in the length of the input, which callers bound.
"""

from __future__ import annotations

import io
from typing import Any

import cbor2

from sealtrain.attest.errors import EvidenceMalformed

MAX_DEPTH = 16
_OPEN = -1  # a container that a break ends
_BREAK = 0xFF
_BYTES, _TEXT, _ARRAY, _MAP, _TAG, _SIMPLE = 2, 3, 4, 5, 6, 7
_FALSE_TRUE_NULL = (20, 21, 22)


def encode(value: Any) -> bytes:
    """CBOR of maps, arrays, text, bytes, integers, booleans and null."""
    return cbor2.dumps(value)


def decode(data: bytes, what: str) -> Any:
    """Decode one item that fills ``data``.

    Args:
        data: CBOR.
        what: Name of the thing, for messages.

    Raises:
        EvidenceMalformed: Not CBOR, one of the forms above, or a map with two equal keys.
    """
    _walk(data, what)
    stream = io.BytesIO(data)
    decoder = cbor2.CBORDecoder(stream, max_depth=MAX_DEPTH, allow_duplicate_keys=False)
    try:
        value = decoder.decode()
    # Keys that cannot be hashed and text that is not UTF-8 come as Python's own errors.
    except (cbor2.CBORDecodeError, ValueError, TypeError) as error:
        raise _refuse_malformed(what, "it does not decode, or a map holds a key twice") from error
    if stream.tell() != len(data):
        raise _refuse_malformed(what, "bytes follow it")
    return value


def _walk(data: bytes, what: str) -> None:
    """Read every head once; ``pending`` counts the items that each open container still awaits."""
    pending, at = [1], 0
    while pending:
        if pending[-1] == 0:
            pending.pop()
            continue
        if at >= len(data):
            raise _refuse_malformed(what, "it is truncated")
        if data[at] == _BREAK:
            if pending.pop() != _OPEN:
                raise _refuse_malformed(what, "a break ends nothing")
            at += 1
            continue
        if pending[-1] != _OPEN:
            pending[-1] -= 1
        head = data[at]
        major, value = head >> 5, head & 0x1F
        if value < 24:
            at += 1
        else:
            major, value, at = _head(data, at, what)
        if major in (_BYTES, _TEXT):
            at += value
            if at > len(data):
                raise _refuse_malformed(what, "it is truncated")
        elif major == _ARRAY:
            pending.append(value)
        elif major == _MAP:
            pending.append(value if value == _OPEN else 2 * value)
        elif major == _TAG:
            raise _refuse_malformed(what, "it holds a tag")
        elif major == _SIMPLE and value not in _FALSE_TRUE_NULL:
            raise _refuse_malformed(what, "it holds a float or an unknown simple value")
        if len(pending) > MAX_DEPTH:
            raise _refuse_malformed(what, f"it is nested deeper than {MAX_DEPTH} levels")
    if at != len(data):
        raise _refuse_malformed(what, "bytes follow it")


def _head(data: bytes, at: int, what: str) -> tuple[int, int, int]:
    """Major type, argument and the offset behind the head at ``at``."""
    major, short = data[at] >> 5, data[at] & 0x1F
    at += 1
    if short < 24:
        return major, short, at
    if short == 31 and major in (_ARRAY, _MAP):
        return major, _OPEN, at
    if short > 27 or major == _SIMPLE:
        raise _refuse_malformed(what, "it holds a string in chunks, a float or a reserved form")
    end = at + (1 << (short - 24))
    if end > len(data):
        raise _refuse_malformed(what, "it is truncated")
    return major, int.from_bytes(data[at:end], "big"), end


def _refuse_malformed(what: str, why: str) -> EvidenceMalformed:
    return EvidenceMalformed(f"{what} is not CBOR of the accepted form: {why}", check="CBOR")
