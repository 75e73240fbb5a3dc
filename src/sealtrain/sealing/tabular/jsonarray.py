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
from sealtrain.errors import LimitExceeded
from sealtrain.sealing.errors import RecordInvalid
from sealtrain.sealing.tabular import jsonl
from sealtrain.sealing.tabular.plainfile import open_plain

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK_CHARACTERS: Final = 4 << 20
_BLANK: Final = " \t\r\n"
_CUT: Final = "Unterminated string"
_WHOLE: Final = 16
"""Characters: the longest piece of JSON that reads as another error where the text is cut."""
Progress = Callable[[int], None]


def infer_schema(path: Path) -> pa.Schema:
    """Schema that fits every record of the file: see ``jsontypes``.

    Raises:
        RecordInvalid: Not an array of JSON objects, or Arrow cannot hold one.
        SchemaMismatch: Two records give one field different types.
        LimitExceeded: A record is longer than 256 MiB.
    """
    if not is_array(path):
        return jsonl.infer_schema(path)
    return jsonl.infer_blocks(path, _blocks(path))


def read_batches(path: Path, schema: pa.Schema, progress: Progress) -> Iterator[pa.RecordBatch]:
    """Convert the file under ``schema``. Arguments and errors as ``jsonl.read_batches``."""
    if not is_array(path):
        yield from jsonl.read_batches(path, schema, progress)
        return
    first = 0
    for block in _blocks(path):
        table = jsonl.parse_block(path, first, block, schema)
        first += table.num_rows
        yield from table.to_batches()
        progress(len(block))


def is_array(path: Path) -> bool:
    """Whether the file begins with an array.

    Raises:
        RecordInvalid: It holds one object over several lines.
    """
    with open_plain(path) as file:
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
    for record in read_texts(path):
        # No JSON text has a line break inside a string, so only white space changes.
        line = record.replace("\n", " ").replace("\r", " ")
        held.append(line)
        size += len(line)
        if size >= jsonl.BLOCK_BYTES:
            yield ("\n".join(held) + "\n").encode()
            held, size = [], 0
    if held:
        yield ("\n".join(held) + "\n").encode()


def read_texts(path: Path) -> Iterator[str]:
    """The text of each record of an array.

    Raises:
        RecordInvalid: It is no JSON object, or the array does not end.
        LimitExceeded: A record is longer than 256 MiB.
    """
    with open_plain(path) as file:
        array = _Array(path, io.TextIOWrapper(file, encoding="utf-8-sig", newline=""))
        array.mark()
        array.at += 1  # the bracket
        if array.mark() == "]":
            array.at += 1
        else:
            while True:
                yield array.record()
                after = array.mark()
                if after not in (",", "]"):
                    raise array.refusal("is followed by no comma")
                array.at += 1
                if after == "]":
                    break
        if array.mark():
            raise array.refusal("is followed by more than the array's end")


class _Array:
    """Text of an array, read as far as it is needed.

    Attributes:
        at: How far it was parsed, in the part that is held.
    """

    def __init__(self, path: Path, text: io.TextIOWrapper) -> None:
        self._path, self._text = path, text
        self._decode = json.JSONDecoder().raw_decode
        self._rest = ""
        self.at = 0
        self._number = 0  # of the last record
        self._line, self._column = 1, 1  # of the first held character

    def mark(self) -> str:
        """The next character that is no white space; empty at the end."""
        while True:
            while self.at < len(self._rest) and self._rest[self.at] in _BLANK:
                self.at += 1
            if self.at < len(self._rest):
                return self._rest[self.at]
            if not self._more():
                return ""

    def record(self) -> str:
        """The text of the next record.

        Raises:
            RecordInvalid: No record follows, or it is no JSON object.
            LimitExceeded: It is longer than 256 MiB.
        """
        self._number += 1
        if self.mark() != "{":
            raise self.refusal("is not a JSON object")
        while True:
            try:
                _, end = self._decode(self._rest, self.at)
                break
            except json.JSONDecodeError as error:
                broken = error.pos
                cut_short = error.msg.startswith(_CUT) or len(self._rest) - broken < _WHOLE
            except RecursionError:
                raise self.refusal("is nested too deeply") from None
            # What is broken in the middle stays so, however much follows.
            if not (cut_short and self._more()):
                raise self.refusal("is not a JSON object", min(broken, len(self._rest))) from None
        text = self._rest[self.at : end]
        self.at = end
        return text

    def refusal(self, why: str, at: int | None = None) -> RecordInvalid:
        """The refusal of the newest record, at a place of the held text [how far it was parsed]."""
        passed = self._rest[: self.at if at is None else at]
        line, column = _after(passed, self._line, self._column)
        return RecordInvalid(
            f"{self._path.name}: record {max(1, self._number)} {why}",
            check="record",
            got=f"line {line}, column {column}",
            hint="write an array of JSON objects, or one object a line, UTF-8",
        )

    def _more(self) -> bool:
        """Hold more text, and let go of what was parsed; ``False`` at the end."""
        try:
            read = self._text.read(CHUNK_CHARACTERS)
        except UnicodeDecodeError:
            raise self.refusal("or one that follows is not UTF-8", len(self._rest)) from None
        self._line, self._column = _after(self._rest[: self.at], self._line, self._column)
        self._rest, self.at = self._rest[self.at :] + read, 0
        try:
            # Both stand outside of strings, and below what was parsed.
            require_bounded(
                self._rest.encode(), max_depth=MAX_FOREIGN_DEPTH, max_values=sys.maxsize
            )
        except LimitExceeded:
            raise self.refusal("is nested too deeply") from None
        if len(self._rest) > jsonl.MAX_LINE_BYTES:
            raise LimitExceeded(
                f"{self._path.name}: record {max(1, self._number)} is too long",
                got=f"line {self._line}, column {self._column}",
                expected=f"at most {jsonl.MAX_LINE_BYTES} bytes",
            )
        return bool(read)


def _after(text: str, line: int, column: int) -> tuple[int, int]:
    """Line and column behind some text that begins at these."""
    breaks = text.count("\n")
    return (
        (line, column + len(text)) if not breaks else (line + breaks, len(text) - text.rfind("\n"))
    )
