"""JSON lines as Arrow record batches, with one schema for the whole file.

Two passes: the first infers the schema over every block, the second converts under it. Strings stay
strings (nothing is guessed to be a time), so a record comes back as it went in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sealtrain.base.canonical import parse_foreign
from sealtrain.errors import LimitExceeded
from sealtrain.sealing.arrowtypes import MAX_DEPTH, is_deep
from sealtrain.sealing.errors import RecordInvalid, SchemaMismatch
from sealtrain.sealing.tabular.jsontypes import (
    as_found,
    explain_refusal,
    holds_beyond,
    holds_called_floats,
    mend_nulls,
    merge,
    refuse_changed_calls,
    refuse_inexact,
)
from sealtrain.sealing.tabular.plainfile import open_plain

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK_BYTES = 1 << 20
MAX_LINE_BYTES = 256 << 20
# Arrow would turn such an integer into a float and silently lose digits.
_LONG_INTEGER = re.compile(rb"[:\[,][ \t]*-?[0-9]{19,}[ \t]*[,\]}]")
_OPEN = 2 * MAX_DEPTH
"""Brackets inside each other before Arrow is not asked: its time grows with their square."""
_NEWLINE, _OPENS, _CLOSES, _OPENS_LIST = b"\n{}["
_CACHED = 1 << 17
"""Bytes that numpy looks at while a processor holds them."""
_OTHERS = bytes(set(range(256)) - set(b"[]{}\n"))
# A text that does not end takes the rest with it: to try anew at each quote of it would never end.
_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)
_INT64 = range(-(1 << 63), 1 << 63)

Progress = Callable[[int], None]


def infer_schema(path: Path) -> pa.Schema:
    """Schema that fits every record of the file, see ``jsontypes``.

    Args:
        path: UTF-8 JSON lines, one object a line; blank lines are skipped.

    Raises:
        RecordInvalid: A line is not a JSON object, or Arrow cannot hold it.
        SchemaMismatch: Two records give one field different types.
        LimitExceeded: A line is longer than 256 MiB.
    """
    return infer_blocks(path, line_blocks(path))


def infer_blocks(path: Path, blocks: Iterable[bytes]) -> pa.Schema:
    """Schema that fits every record of blocks of whole lines, see ``jsontypes``.

    Args:
        path: File named in errors.
        blocks: UTF-8, one object a line.

    Raises:
        RecordInvalid, SchemaMismatch: As ``infer_schema``.
    """
    import pyarrow as pa

    schema: pa.Schema | None = None
    first = 0
    for block in blocks:
        table = parse_block(path, first, block, None)
        if holds_beyond(table, 2.0**63):
            _refuse_long_integers(path, first, block)
        found = as_found(table.schema)
        try:
            schema = found if schema is None else merge(schema, found)
        except SchemaMismatch as error:
            raise error.with_message(
                f"{path.name}: field {error.column} has another type from record {first + 1} on"
            ) from None
        first += table.num_rows
    return schema if schema is not None else pa.schema([])


def read_batches(path: Path, schema: pa.Schema, progress: Progress) -> Iterator[pa.RecordBatch]:
    """Convert the file under ``schema``, block by block.

    Args:
        path: As ``infer_schema``.
        schema: From ``infer_schema``, possibly merged over several files.
        progress: Called with the source bytes of each block.

    Raises:
        RecordInvalid, LimitExceeded: As ``infer_schema``.
    """
    first = 0
    for block in line_blocks(path):
        table = parse_block(path, first, block, schema)
        first += table.num_rows
        yield from table.to_batches()
        progress(len(block))


def line_blocks(path: Path) -> Iterator[bytes]:
    """Whole lines of a file, about 1 MiB at a time; none that are all white space.

    Raises:
        LimitExceeded: A line is longer than 256 MiB.
        RecordInvalid: The file is packed, and damaged.
    """
    held: list[bytes | memoryview] = []  # of a line that is not whole yet
    held_bytes = 0
    with open_plain(path) as file:
        start = file.read(3)
        data = (b"" if start == b"\xef\xbb\xbf" else start) + file.read(BLOCK_BYTES)
        while data:
            cut = data.rfind(b"\n") + 1
            if cut:
                block = b"".join((*held, memoryview(data)[:cut]))
                held, held_bytes = [data[cut:]], len(data) - cut
                if not block.isspace():
                    yield block
            else:
                held.append(data)
                held_bytes += len(data)
                if held_bytes > MAX_LINE_BYTES:
                    raise LimitExceeded(
                        f"{path.name}: a record is too long",
                        expected=f"at most {MAX_LINE_BYTES} bytes",
                    )
            data = file.read(BLOCK_BYTES)
    rest = b"".join(held)
    if rest and not rest.isspace():
        yield rest


def parse_block(path: Path, first: int, block: bytes, schema: pa.Schema | None) -> pa.Table:
    """Records of one block of whole lines.

    Args:
        path: File named in errors.
        first: Records before this block.
        block: UTF-8, one object a line.
        schema: Columns and types; inferred when ``None``.

    Raises:
        RecordInvalid: A line is not a JSON object of this schema, or a float would round an
            integer of it, or take the place of one in a tool call.
    """
    import pyarrow as pa

    try:
        table = parse_lines(block, schema, unexpected="infer" if schema is None else "error")
        if schema is None:
            return table
        if holds_beyond(table, 2.0**53):
            refuse_inexact(path.name, first, block, schema)
        if holds_called_floats(schema):
            refuse_changed_calls(path.name, first, block, schema)
        found = table.select(schema.names)
        return found if found.schema == schema else found.cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, UnicodeError):
        lines = [line for line in block.split(b"\n") if line.strip()]
        raise explain_refusal(path.name, first, lines) from None


def parse_lines(block: bytes, schema: pa.Schema | None, *, unexpected: str) -> pa.Table:
    """Records of one block as Arrow parses them.

    Args:
        block: UTF-8, one object a line.
        schema: Columns and types; inferred when ``None``.
        unexpected: What becomes of fields that the schema has not: ``infer`` or ``error``.

    Raises:
        ArrowInvalid, ArrowNotImplementedError, ArrowTypeError, UnicodeError: Of Arrow, which may
            quote a record; or records are not one a line, or too deep.
    """
    import pyarrow as pa

    if not block.isascii():
        block.decode()  # Arrow does not look whether text is UTF-8
    lines = _BlockLines.of(block)
    if _has_too_many_brackets(block, lines):
        raise pa.ArrowInvalid("too many brackets inside each other")
    table = _parse(block, schema, unexpected)
    # A longer file would be cut within an object.
    if table.num_rows != (lines.total if lines.whole else _line_count(block)):
        raise pa.ArrowInvalid("an object of several lines, or several objects in one")
    if is_deep(table.schema):
        raise pa.ArrowInvalid("too many types inside each other")
    try:
        return _mend(table)
    except pa.ArrowInvalid:  # it found the type of a list behind a null in it, and lost that null
        return _mend(_parse(block, table.schema, unexpected))


def _parse(block: bytes, schema: pa.Schema | None, unexpected: str) -> pa.Table:
    import pyarrow as pa
    from pyarrow import json as pa_json

    return pa_json.read_json(
        pa.BufferReader(block),
        read_options=pa_json.ReadOptions(use_threads=False, block_size=len(block) + 1),
        parse_options=pa_json.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior=unexpected
        ),
    )


def _mend(table: pa.Table) -> pa.Table:
    found = mend_nulls(table)
    found.validate()  # of lists their lengths; no text is looked at
    return found


class _BlockLines(NamedTuple):
    """Lines of a block, counted by numpy: ``bytes.count`` takes a quarter of a parser's time.

    Attributes:
        total: How many there are; a blank first one is not counted.
        whole: Between any two of them one object ends and another begins.
        opened: Brackets that open in all of them, in texts too.
    """

    total: int
    whole: bool
    opened: int

    @classmethod
    def of(cls, block: bytes) -> _BlockLines:
        import numpy as np

        held = np.frombuffer(block.replace(b"\r\n", b"\n") if b"\r" in block else block, np.uint8)
        ends = whole = opened = 0
        for start in range(0, len(held), _CACHED):
            part = held[start : start + _CACHED + 2]
            found = part[1:-1] == _NEWLINE
            ends += int(np.count_nonzero(found))
            found &= part[:-2] == _CLOSES
            found &= part[2:] == _OPENS
            whole += int(np.count_nonzero(found))
            part = part[:_CACHED]
            opened += sum(int(np.count_nonzero(part == mark)) for mark in (_OPENS, _OPENS_LIST))
        return cls(ends + 1, whole == ends, opened)


def _has_too_many_brackets(block: bytes, lines: _BlockLines) -> bool:
    """Whether brackets outside of texts are deeper in some line than any record that is sealed.

    Arrow reads on where a record goes over several lines; then the block is looked at as a whole.
    """
    # Every line but the first begins with a bracket, so no line has more than these.
    if lines.whole and lines.opened - lines.total + 2 <= _OPEN:
        return False
    brackets = block.translate(None, _OTHERS)
    if not lines.whole:
        return len(brackets) > _OPEN and _has_deep_brackets(block)
    most = max(map(len, brackets.split(b"\n")))
    return most > _OPEN and any(map(_has_deep_brackets, block.split(b"\n")))


def _has_deep_brackets(line: bytes) -> bool:
    """Whether brackets outside of texts are deeper than any record that is sealed."""
    depth = 0
    for found in _BRACKETS.finditer(line):
        mark = found[0]
        if mark in b"[{":
            depth += 1
            if depth > _OPEN:
                return True
        elif mark in b"]}":
            depth = max(0, depth - 1)
    return False


def _line_count(block: bytes) -> int:
    """Lines that are not blank."""
    return sum(1 for line in block.split(b"\n") if line.strip())


def _refuse_long_integers(path: Path, first: int, block: bytes) -> None:
    number = first
    for line in block.split(b"\n"):
        if not line.strip():
            continue
        number += 1
        if not _LONG_INTEGER.search(line):
            continue
        try:
            value = parse_foreign(line)
        except ValueError:
            continue  # the parser names this record
        pending = [value]
        while pending:
            item = pending.pop()
            if isinstance(item, dict | list):
                pending.extend(item.values() if isinstance(item, dict) else item)
            elif isinstance(item, int) and item not in _INT64:
                raise RecordInvalid(
                    f"{path.name}: record {number} holds an integer beyond 64 bits",
                    check="record",
                    hint="write it as a string",
                ) from None
