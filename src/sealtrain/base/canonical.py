"""JSON in and out: canonical bytes (RFC 8785) out, strict and bounded parsing in.

Signed and hashed documents are canonical. Every document from outside is parsed here once: the
parser refuses duplicate keys, NaN, Infinity, lone surrogates, and more depth, bytes or values than
the caller allows. It checks the limits before it builds a value, in time linear in the length, so
memory and time are bounded for any input.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable
from json.encoder import encode_basestring
from typing import Any, NoReturn

import rfc8785

from sealtrain.errors import DataInvalid, LimitExceeded

JsonValue = Any
"""A value JSON can hold: ``None``, bool, int, float, str, list, dict with string keys."""

_PLAIN = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, allow_nan=False, sort_keys=True, separators=(",", ":")
)
_MAX_INTEGER = 2**53 - 1
_CONTAINERS = (dict, list, tuple)
MAX_JSON_BYTES = 16 << 20
MAX_JSON_DEPTH = 64
MAX_FOREIGN_DEPTH = 256
MAX_JSON_VALUES = 1 << 20
"""Values in a document, arrays and objects included; each takes about a hundred bytes of memory."""

_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


def canonical_json(value: JsonValue) -> bytes:
    """RFC 8785 bytes of ``value``.

    Raises:
        DataInvalid: ``value`` holds something JSON cannot carry exactly (NaN, an integer
            beyond 2**53, a non-string key).
    """
    try:
        return _write(value)
    except (rfc8785.CanonicalizationError, UnicodeEncodeError) as error:
        raise DataInvalid(
            f"value has no canonical JSON form: {error}",
            hint="write large integers and bytes as strings",
        ) from error


def parse_json(
    data: bytes,
    *,
    max_bytes: int = MAX_JSON_BYTES,
    max_depth: int = MAX_JSON_DEPTH,
    max_values: int = MAX_JSON_VALUES,
) -> JsonValue:
    """Parse UTF-8 JSON strictly.

    Args:
        data: The bytes received.
        max_bytes: Largest accepted length.
        max_depth: Deepest accepted nesting of arrays and objects.
        max_values: Most values, arrays and objects included.

    Raises:
        LimitExceeded: Longer, deeper or of more values than allowed.
        DataInvalid: Not UTF-8, not JSON, a duplicate key, NaN or Infinity, half of a character.
    """
    return _parse(
        data, max_bytes=max_bytes, max_depth=max_depth, max_values=max_values, parse_int=int
    )


def _parse(
    data: bytes,
    *,
    max_bytes: int,
    max_depth: int,
    max_values: int,
    parse_int: Callable[[str], int | float],
) -> JsonValue:
    if len(data) > max_bytes:
        raise LimitExceeded(
            "JSON document is too long", got=f"{len(data)} bytes", expected=f"at most {max_bytes}"
        )
    require_bounded(data, max_depth=max_depth, max_values=max_values)
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=parse_int,
        )
    except (ValueError, RecursionError) as error:  # undecodable, malformed, thousands of digits
        where = f" at position {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise DataInvalid(f"not a JSON document{where}") from error
    if _HALF.search(data):
        _refuse_halves(value)
    return value


def require_bounded(
    data: bytes, *, max_depth: int = MAX_JSON_DEPTH, max_values: int = MAX_JSON_VALUES
) -> None:
    """Refuse a text that is nested deeper, or holds more values, than allowed.

    Counts commas and brackets outside strings. Past a backslash outside a string the count may err,
    but a parser stops there.

    Args:
        data: UTF-8, maybe no JSON at all.
        max_depth: As ``parse_json``.
        max_values: As ``parse_json``.

    Raises:
        LimitExceeded: Deeper or of more values.
    """
    if b"\\" in data:  # an escaped quote neither begins nor ends a string
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    values = data.count(b'"') // 4  # at most a key and a text
    if values <= max_values:
        outline = b"".join(data.split(b'"')[::2])
        values = 1 + sum(map(outline.count, (b",", b"[", b"{")))
    if values > max_values:
        raise LimitExceeded(
            "JSON document holds too many values", got=values, expected=f"at most {max_values}"
        )
    depth = 0
    for byte in outline.translate(None, _NO_BRACKETS):
        depth += 1 if byte in b"[{" else -1
        if depth > max_depth:
            raise LimitExceeded(
                "JSON document is nested too deeply",
                got=depth,
                expected=f"at most {max_depth}",
            )
        if depth < 0:
            return  # the next character may be escaped too


def parse_foreign(data: bytes) -> Any:
    """Parse JSON that others write by the lenient rules of Python: records, headers, settings.

    The nesting is looked at first: some libraries raise Python's limit of recursion for the whole
    process, and a parser that recurses so deep ends it.

    Args:
        data: The text, UTF-8; its length is the caller's to bound.

    Raises:
        ValueError: Not JSON, or nested deeper than any record is.
    """
    try:
        require_bounded(data, max_depth=MAX_FOREIGN_DEPTH, max_values=sys.maxsize)
        return json.loads(data.decode("utf-8-sig"))
    except (LimitExceeded, RecursionError) as error:
        raise ValueError("nested too deeply") from error


def parse_canonical(
    data: bytes, *, max_bytes: int = MAX_JSON_BYTES, max_values: int = MAX_JSON_VALUES
) -> JsonValue:
    """Parse a document that must already be in its canonical form.

    Args:
        data: As ``parse_json``.
        max_bytes: As ``parse_json``.
        max_values: As ``parse_json``.

    Raises:
        LimitExceeded: As ``parse_json``.
        DataInvalid: As ``parse_json``, or the bytes are not the RFC 8785 form of their value.
    """
    value = _parse(
        data,
        max_bytes=max_bytes,
        max_depth=MAX_JSON_DEPTH,
        max_values=max_values,
        parse_int=_double,
    )
    if canonical_json(value) != data:
        raise DataInvalid("document is not in canonical form (RFC 8785)")
    return value


def _write(value: JsonValue) -> bytes:
    """RFC 8785 bytes of ``value``, by the standard library wherever it writes the same ones.

    Its encoder is many times faster. Two passes, whatever ``value`` holds: a hostile document must
    not choose how often it is looked at.
    """
    odd: set[int] = set()
    return _write_part(value, odd, plain=_is_plain(value, odd)).encode()


def _write_part(value: JsonValue, odd: set[int], *, plain: bool) -> str:
    """A part of what ``canonical_json`` writes.

    Args:
        value: The part.
        odd: Ids of the containers that hold something that is not plain, at any depth.
        plain: Whether the standard library writes it.
    """
    if plain:
        return _PLAIN.encode(value)
    kind = type(value)
    if kind is list or kind is tuple:
        return f"[{','.join([_write_item(item, odd) for item in value])}]"
    if kind is dict and all(type(key) is str and key.isascii() for key in value):
        members = [
            f"{encode_basestring(key)}:{_write_item(value[key], odd)}" for key in sorted(value)
        ]
        return f"{{{','.join(members)}}}"
    return rfc8785.dumps(value).decode()


def _write_item(item: JsonValue, odd: set[int]) -> str:
    kind = type(item)
    if kind is str:
        return encode_basestring(item)
    if kind in _CONTAINERS:
        return _write_part(item, odd, plain=id(item) not in odd)
    plain = _is_plain(item, odd)
    if plain and kind in (int, float):  # as the encoder, which is made anew for each number
        return repr(item)
    return _write_part(item, odd, plain=plain)


def _is_plain(value: JsonValue, odd: set[int]) -> bool:
    """Whether the standard library writes ``value`` as RFC 8785 does.

    It does unless a number is a float that RFC 8785 writes with another exponent or without a
    fraction, an integer too large or a key beyond ASCII.

    Args:
        value: Is looked at to its last part.
        odd: Gets the ids of the containers in it, itself included, that are not plain.
    """
    kind = type(value)
    if kind is dict or kind is list or kind is tuple:
        plain = True
        if kind is dict:
            for key in value:
                if type(key) is not str or not key.isascii():
                    plain = False
        for item in value.values() if kind is dict else value:
            inner = type(item)
            if inner is str or item is None or inner is bool:
                continue
            if inner is float:  # in place: a curve has a hundred thousand of these
                if not 1e-4 <= abs(item) < 1e16 or item.is_integer():
                    plain = False
            elif inner is int:
                if not -_MAX_INTEGER <= item <= _MAX_INTEGER:
                    plain = False
            elif not _is_plain(item, odd):
                plain = False
        if not plain:
            odd.add(id(value))
        return plain
    if kind is int:
        return bool(-_MAX_INTEGER <= value <= _MAX_INTEGER)
    if kind is float:  # both write the shortest digits; Python's exponents begin outside of this
        return bool(1e-4 <= abs(value) < 1e16 and not value.is_integer())
    return kind is str or kind is bool or value is None


def _refuse_halves(value: JsonValue) -> None:
    """Refuse a lone surrogate: it has no UTF-8, so the text could not be shown or signed."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataInvalid("JSON text holds a lone surrogate") from error


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


def _double(text: str) -> int | float:
    """The number that RFC 8785 writes as an integer: beyond 2**53 it is a double.

    A loss of 1e17 is written without an exponent, and has to be read back as what it was.
    """
    value = int(text)
    return value if -_MAX_INTEGER <= value <= _MAX_INTEGER else _finite(text)
