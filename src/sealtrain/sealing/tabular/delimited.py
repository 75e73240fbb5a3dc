"""CSV as Arrow record batches, with one schema for the whole file.

Two passes: the first settles each column's type over every row (integer, then floating point, then
boolean, else text), the second converts. A column is an integer only if its text comes back
unchanged, so ``007`` stays text. Fields are quoted by ``"``; the first row names the columns.
Commas separate fields, or tabs in a ``.tsv``; or semicolons or tabs where the first row has these
and no comma outside its quotes.
"""

from __future__ import annotations

import codecs
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sealtrain.errors import RecordInvalid, SchemaMismatch
from sealtrain.sealing.tabular.jsontypes import is_exact, rounded
from sealtrain.sealing.tabular.plainfile import format_of, opened

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["header", "infer_schema", "read_batches"]

BLOCK_BYTES = 4 << 20
Progress = Callable[[int], None]


def infer_schema(path: Path) -> pa.Schema:
    """Schema that fits every row of the file.

    Raises:
        RecordInvalid: A row has another number of fields or is not UTF-8.
        SchemaMismatch: The header names no column, or a column twice.
    """
    import pyarrow as pa

    names: list[str] = []
    ladders: list[list[pa.DataType]] = []
    for batch, _ in _text_batches(path):
        if not ladders:
            names = batch.schema.names
            ladders = [[pa.int64(), pa.float64(), pa.bool_()] for _ in names]
        for column, ladder in zip(batch.columns, ladders, strict=True):
            while ladder and not _fits(column, ladder[0], strict_text=len(ladder) == 3):
                ladder.pop(0)
                if ladder and ladder[0] == pa.float64() and _has_leading_zero(column):
                    ladder.clear()
    if len(set(names)) != len(names):
        raise SchemaMismatch(f"{path.name}: the header names a column twice", check="schema")
    kinds = [ladder[0] if ladder else pa.string() for ladder in ladders]
    return pa.schema(list(zip(names, kinds, strict=True)))


def read_batches(path: Path, schema: pa.Schema, progress: Progress) -> Iterator[pa.RecordBatch]:
    """Convert the file under ``schema``.

    Args:
        path: As ``infer_schema``.
        schema: From ``infer_schema``.
        progress: Called with source bytes read since the last call.

    Raises:
        RecordInvalid: As ``infer_schema``, or a float would round an integer.
        SchemaMismatch: The file has other columns.
    """
    import pyarrow as pa

    first = 0
    for batch, read in _text_batches(path):
        if batch.schema.names != schema.names:
            raise SchemaMismatch(f"{path.name}: columns differ", check="schema")
        columns = [
            column if field.type == pa.string() else _empty_to_null(column).cast(field.type)
            for column, field in zip(batch.columns, schema, strict=True)
        ]
        for column, field in zip(batch.columns, schema, strict=True):
            if pa.types.is_floating(field.type):
                _refuse_inexact(path, first, field.name, column)
        first += batch.num_rows
        yield pa.record_batch(columns, schema=schema)
        progress(read)


def _text_batches(path: Path) -> Iterator[tuple[pa.RecordBatch, int]]:
    from pyarrow import csv

    bad_row: list[int | None] = []

    def refuse_row(row: Any) -> str:
        bad_row.append(row.number)
        return "error"

    with opened(path) as file, _without_content(path, bad_row):
        names, delimiter = header(path)
        reader = csv.open_csv(
            file,
            read_options=csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
            parse_options=csv.ParseOptions(
                delimiter=delimiter, newlines_in_values=True, invalid_row_handler=refuse_row
            ),
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys(names, "string"), strings_can_be_null=False
            ),
        )
        before = 0
        for batch in reader:
            position = file.tell()
            yield batch, position - before
            before = position


def header(path: Path) -> tuple[list[str], str]:
    """The first row, read by itself: types must be named before the reader opens.

    Returns:
        Names of the columns, and the character between fields.

    Raises:
        SchemaMismatch: The row does not name every column.
        RecordInvalid: It is not UTF-8, or a packed file is damaged.
    """
    import csv

    with (
        opened(path) as file,
        io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline="") as text,
    ):
        rows = {}
        start = _FirstRow(text)
        for delimiter in "\t" if format_of(path) == ".tsv" else ",;\t":
            try:
                rows[delimiter] = next(csv.reader(start, delimiter=delimiter, strict=True), [])
            except csv.Error:
                rows[delimiter] = []
    # A comma comes first: a name that holds a semicolon is rarer than a file that has commas. But
    # a quote inside a name means that the row was cut within quotes, by the wrong mark.
    several = [mark for mark, row in rows.items() if len(row) > 1]
    whole = [mark for mark in several if not any('"' in name for name in rows[mark])]
    separates = next(iter((*whole, *several, *rows)))
    names = rows[separates]
    if any("\ufffd" in name for name in names):
        raise _not_utf8(path)
    if not names or not all(names):
        unnamed = [number for number, name in enumerate(names, 1) if not name]
        indexed = len(names) > 1 and unnamed == [1]
        raise SchemaMismatch(
            f"{path.name}: the first row must name every column",
            check="schema",
            got=f"no name for column {', '.join(map(str, unnamed[:8]))}" if names else "no row",
            hint="the first column looks like an index: name it, or leave it out "
            "(pandas: index=False)"
            if indexed
            else "write a header row",
        )
    return names, separates


class _FirstRow:
    """The lines of a text, as often as they are asked for; those of the first row are few."""

    def __init__(self, text: io.TextIOWrapper) -> None:
        self._text = text
        self._lines: list[str] = []

    def __iter__(self) -> Iterator[str]:
        at = 0
        while True:
            if at == len(self._lines):
                # Arrow reads no row beyond a block, and a packed file can hold gigabytes of one.
                line = self._text.readline(BLOCK_BYTES)
                if not line or sum(map(len, self._lines)) + len(line) >= BLOCK_BYTES:
                    return
                self._lines.append(line)
            yield self._lines[at]
            at += 1


@contextmanager
def _without_content(path: Path, bad_row: list[int | None]) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowKeyError, UnicodeDecodeError) as error:
        # Arrow's message would quote the row.
        if not bad_row and (isinstance(error, UnicodeDecodeError) or "UTF8" in str(error)):
            raise _not_utf8(path) from None
        where = f"row {bad_row[0]}" if bad_row and bad_row[0] is not None else "a row"
        raise RecordInvalid(
            f"{path.name}: {where} has another number of fields than the first",
            check="record",
            hint="quote fields that hold separators or line breaks, and close every quote",
        ) from None


def _not_utf8(path: Path) -> RecordInvalid:
    with opened(path) as file:
        start = file.read(2)
    encoding = "UTF-16" if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "WINDOWS-1252"
    return RecordInvalid(
        f"{path.name} is not UTF-8 text",
        check="encoding",
        got=encoding if encoding == "UTF-16" else None,
        hint=f"save it as UTF-8 (Excel: CSV UTF-8), or: iconv -f {encoding} -t UTF-8",
    )


def _empty_to_null(column: pa.Array) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    # Not by pa.scalar, which loads pandas, where it is installed, to see whether a value is of it.
    [empty] = pa.StringArray.from_buffers(1, pa.py_buffer(bytes(8)), pa.py_buffer(b""))
    [null] = pa.nulls(1, pa.string())
    return pc.if_else(pc.equal(column, empty), null, column)


def _fits(column: pa.Array, kind: pa.DataType, *, strict_text: bool) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    values = _empty_to_null(column)
    try:
        cast = values.cast(kind)
    except pa.ArrowInvalid:
        return False
    if not strict_text:
        return True
    same = pc.all(pc.equal(cast.cast(pa.string()), values)).as_py()
    return same is not False


def _refuse_inexact(path: Path, first: int, name: str, column: pa.Array) -> None:
    """Refuse an integer that a column of floats would round."""
    import pyarrow.compute as pc

    long = pc.match_substring_regex(column, r"^[+-]?[0-9]{16,}$")
    for row in pc.indices_nonzero(long).to_pylist():
        if not is_exact(int(column[row].as_py())):
            raise rounded(path.name, first + row + 1, name)


def _has_leading_zero(column: pa.Array) -> bool:
    import pyarrow.compute as pc

    found = pc.any(pc.match_substring_regex(column, r"^[+-]?0[0-9]")).as_py()
    return found is True
