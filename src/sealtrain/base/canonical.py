"""JSON in and out: canonical bytes (RFC 8785) out, strict and bounded parsing in.

Whatever is signed or hashed is canonical. Whatever arrives is parsed here once: no duplicate keys,
no NaN or Infinity, no deeper and no longer than the caller's limit.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

import rfc8785

from sealtrain.errors import DataInvalid, LimitExceeded

__all__ = ["JsonValue", "canonical_json", "parse_canonical", "parse_json"]

JsonValue = Any
"""A value JSON can hold: ``None``, bool, int, float, str, list, dict with string keys."""

_PLAIN = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, allow_nan=False, sort_keys=True, separators=(",", ":")
)
_MAX_INTEGER = 2**53 - 1
MAX_JSON_BYTES = 16 << 20
MAX_JSON_DEPTH = 64

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


def canonical_json(value: JsonValue) -> bytes:
    """RFC 8785 bytes of ``value``.

    Raises:
        DataInvalid: ``value`` holds something JSON cannot carry exactly (NaN, an integer
            beyond 2**53, a non-string key).
    """
    try:
        return _PLAIN.encode(value).encode() if _is_plain(value) else rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, UnicodeEncodeError) as error:
        raise DataInvalid(
            f"value has no canonical JSON form: {error}",
            hint="write large integers and bytes as strings",
        ) from error


def parse_json(
    data: bytes, *, max_bytes: int = MAX_JSON_BYTES, max_depth: int = MAX_JSON_DEPTH
) -> JsonValue:
    """Parse UTF-8 JSON strictly.

    Args:
        data: The bytes received.
        max_bytes: Largest accepted length.
        max_depth: Deepest accepted nesting of arrays and objects.

    Raises:
        LimitExceeded: Longer or deeper than allowed.
        DataInvalid: Not UTF-8, not JSON, a duplicate key, NaN or Infinity.
    """
    if len(data) > max_bytes:
        raise LimitExceeded(
            "JSON document is too long", got=f"{len(data)} bytes", expected=f"at most {max_bytes}"
        )
    _refuse_depth(data, max_depth)
    try:
        return json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
    except (ValueError, RecursionError) as error:  # undecodable, malformed, thousands of digits
        where = f" at position {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise DataInvalid(f"not a JSON document{where}") from error


def parse_canonical(data: bytes, *, max_bytes: int = MAX_JSON_BYTES) -> JsonValue:
    """Parse a document that must already be in its canonical form.

    Raises:
        LimitExceeded: As ``parse_json``.
        DataInvalid: As ``parse_json``, or the bytes are not the RFC 8785 form of their value.
    """
    value = parse_json(data, max_bytes=max_bytes)
    if canonical_json(value) != data:
        raise DataInvalid("document is not in canonical form (RFC 8785)")
    return value


def _is_plain(value: JsonValue) -> bool:
    """Whether the standard library, which is many times faster, writes ``value`` as RFC 8785 does.

    It does unless a number is a float, an integer too large or a key beyond ASCII.
    """
    kind = type(value)
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str or not key.isascii():
                return False
            if type(item) is not str and not _is_plain(item):
                return False
        return True
    if kind is list or kind is tuple:
        return all(_is_plain(item) for item in value)
    if kind is int:
        return bool(-_MAX_INTEGER <= value <= _MAX_INTEGER)
    return kind is str or kind is bool or value is None


def _refuse_depth(data: bytes, max_depth: int) -> None:
    """Count brackets outside strings, before the recursive parser meets them."""
    depth = 0
    for byte in _STRING.sub(b"", data).translate(None, _NO_BRACKETS):
        if byte in b"[{":
            depth += 1
            if depth > max_depth:
                raise LimitExceeded(
                    "JSON document is nested too deeply", got=depth, expected=f"at most {max_depth}"
                )
        else:
            depth -= 1


def _unique(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise DataInvalid("JSON object names a key twice")
    return result


def _no_constant(name: str) -> NoReturn:
    raise DataInvalid(f"JSON has no {name}")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise DataInvalid("JSON number is beyond the range of a double")
    return value
