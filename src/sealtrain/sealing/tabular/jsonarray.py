"""A JSON array of records, as JSON lines: each record keeps its bytes, so that no number changes.

The file is read a few MiB at a time. JSON lines in a file called ``.json`` are read as these; a
single object is refused, because nothing says which part of it is records.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sealtrain.base.canonical import MAX_FOREIGN_DEPTH, parse_foreign, require_bounded
from sealtrain.errors import LimitExceeded, RecordInvalid
from sealtrain.sealing.tabular import jsonl
from sealtrain.sealing.tabular.plainfile import opened

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["infer_schema", "read_batches"]

CHUNK_CHARACTERS: Final = 4 << 20
_BLANK: Final = " \t\r\n"
Progress = Callable[[int], None]


def infer_schema(path: Path) -> pa.Schema:
    """Schema that fits every record of the file.

    Raises:
        RecordInvalid: Not an array of JSON objects, or Arrow cannot hold one.
        SchemaMismatch: Two records give one field different types.
        LimitExceeded: A record is longer than 256 MiB.
    """
    if not _is_array(path):
        return jsonl.infer_schema(path)
    return jsonl.infer_blocks(path, _blocks(path))


def read_batches(path: Path, schema: pa.Schema, progress: Progress) -> Iterator[pa.RecordBatch]:
    """Convert the file under ``schema``. Arguments and errors as ``jsonl.read_batches``."""
    if not _is_array(path):
        yield from jsonl.read_batches(path, schema, progress)
        return
    first = 0
    for block in _blocks(path):
        table = jsonl.parse_block(path, first, block, schema)
        first += table.num_rows
        yield from table.to_batches()
        progress(len(block))


def _is_array(path: Path) -> bool:
    """Whether the file begins with an array.

    Raises:
        RecordInvalid: It holds one object over several lines.
    """
    with opened(path) as file:
        start = file.read(jsonl.BLOCK_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip()
    if start.startswith(b"["):
        return True
    line = start.split(b"\n", 1)[0]
    try:
        parse_foreign(line)
    except ValueError:
        if start.startswith(b"{") and len(line) < jsonl.BLOCK_BYTES // 2:
            raise RecordInvalid(
                f"{path.name} is one JSON object, not an array of records",
                check="format",
                hint="write the records alone: [{…}, {…}], or one object a line",
            ) from None
    return False


def _blocks(path: Path) -> Iterator[bytes]:
    """The array's records as lines, about 4 MiB at a time."""
    held: list[str] = []
    size = 0
    for record in _records(path):
        # No JSON text has a line break inside a string, so only white space changes.
        line = record.replace("\n", " ").replace("\r", " ")
        held.append(line)
        size += len(line)
        if size >= jsonl.BLOCK_BYTES:
            yield ("\n".join(held) + "\n").encode()
            held, size = [], 0
    if held:
        yield ("\n".join(held) + "\n").encode()


def _records(path: Path) -> Iterator[str]:
    """The text of each element of the array."""
    decoder = json.JSONDecoder()
    number, at, rest = 0, 0, ""
    with opened(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")

        def more() -> bool:
            nonlocal rest, at
            try:
                read = text.read(CHUNK_CHARACTERS)
            except UnicodeDecodeError:
                raise _refusal(path, number + 1, "is not UTF-8") from None
            rest, at = rest[at:] + read, 0
            try:
                # Both stand outside of strings, and below what was parsed.
                require_bounded(rest.encode(), max_depth=MAX_FOREIGN_DEPTH, max_values=sys.maxsize)
            except LimitExceeded:
                raise _refusal(path, number + 1, "is nested too deeply") from None
            if len(rest) > jsonl.MAX_LINE_BYTES:
                raise LimitExceeded(
                    f"{path.name}: a record is too long",
                    expected=f"at most {jsonl.MAX_LINE_BYTES} bytes",
                )
            return bool(read)

        def mark() -> str:
            """The next character that is no white space; empty at the end."""
            nonlocal at
            while True:
                while at < len(rest) and rest[at] in _BLANK:
                    at += 1
                if at < len(rest):
                    return rest[at]
                if not more():
                    return ""

        mark()
        at += 1  # the bracket
        if mark() == "]":
            at += 1
        else:
            while True:
                if mark() != "{":
                    raise _refusal(path, number + 1, "is not a JSON object")
                while True:
                    try:
                        _, end = decoder.raw_decode(rest, at)
                        break
                    except ValueError:
                        if not more():
                            raise _refusal(path, number + 1, "is not a JSON object") from None
                yield rest[at:end]
                number, at = number + 1, end
                after = mark()
                at += 1
                if after == "]":
                    break
                if after != ",":
                    raise _refusal(path, number, "is followed by no comma")
        if mark():
            raise _refusal(path, number, "is followed by more than the array's end")


def _refusal(path: Path, number: int, why: str) -> RecordInvalid:
    return RecordInvalid(
        f"{path.name}: record {number} {why}",
        check="record",
        hint="write an array of JSON objects, or one object a line, UTF-8",
    )
