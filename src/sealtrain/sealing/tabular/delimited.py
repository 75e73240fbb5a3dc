"""CSV as Arrow record batches, with one schema for the whole file.

Two passes: the first settles each column's type over every row (integer, then floating point, then
boolean, else text), the second converts. A column is an integer only if its text comes back
unchanged, so ``007`` stays text. Fields are quoted by ``"``; the first row names the columns.
Commas separate fields, or tabs in a ``.tsv``; or semicolons, tabs or bars where the first row has
these and no comma outside its quotes. What a recipe reads, and what an owner declares of decimals
and dates, changes the text of a cell first (``conversion``). Text is UTF-8, or UTF-16 with its byte
order mark.
"""

from __future__ import annotations

import codecs
import io
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from sealtrain.errors import LimitExceeded
from sealtrain.sealing.errors import RecordInvalid, SchemaMismatch
from sealtrain.sealing.tabular.conversion import Conversion
from sealtrain.sealing.tabular.jsontypes import is_exact, refuse_rounded
from sealtrain.sealing.tabular.plainfile import format_of, is_packed, open_plain, refuse_damaged

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK_BYTES = 4 << 20
MAX_RECODED_BYTES: Final = 256 << 20
_WORKBOOKS: Final = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")
"""How files of Excel and other archives begin, new and old."""
_OTHERS: Final = {
    b"\x1f\x8b": ("packed with gzip", "add .gz to its name, or unpack it"),
    b"BZh": ("packed with bzip2", "unpack it: bunzip2 FILE"),
    b"\xfd7zXZ": ("packed with xz", "unpack it: unxz FILE"),
    b"\x28\xb5\x2f\xfd": ("packed with zstd", "unpack it: unzstd FILE"),
    b"PAR1": ("a Parquet file", "end its name with .parquet"),
    b"ARROW1": ("an Arrow file", "end its name with .arrow"),
}
"""How files begin that are no text, what they are, and what their owner does."""
_JSON: Final = re.compile(r'\s*(\{\s*"|\[\s*\{)')
_SEPARATOR_NOTE: Final = re.compile(r'"?sep=.{0,2}"?', re.IGNORECASE)
"""What Excel writes above the names for itself."""
_MARKS: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
Progress = Callable[[int], None]


def infer_schema(path: Path, conversion: Conversion | None = None) -> pa.Schema:
    """Schema that fits every row of the file.

    Args:
        path: The file.
        conversion: What its cells mean; as they stand when ``None``.

    Raises:
        RecordInvalid: A row has another number of fields, is not text, or has a cell that cannot
            be converted; or the file ends within quotes.
        SchemaMismatch: The header does not name every column once.
    """
    import pyarrow as pa

    conversion = conversion or Conversion()
    names: list[str] = []
    ladders: list[list[pa.DataType]] = []
    for batch, _ in _text_batches(path, conversion, on_end=partial(_require_closed, path)):
        if not ladders:
            names = batch.schema.names
            ladders = [[pa.int64(), pa.float64(), pa.bool_()] for _ in names]
        for name, column, ladder in zip(names, batch.columns, ladders, strict=True):
            strict = name not in conversion.numbers  # where 05 is a number, and no code
            while ladder and not _fits(column, ladder[0], strict_text=strict and len(ladder) == 3):
                ladder.pop(0)
            if strict and ladder and ladder[0] == pa.float64() and _has_leading_zero(column):
                ladder.clear()
    kinds = [ladder[0] if ladder else pa.string() for ladder in ladders]
    return pa.schema(
        [
            (name, pa.string() if name in conversion.text else kind)
            for name, kind in zip(names, kinds, strict=True)
        ]
    )


def read_batches(
    path: Path, schema: pa.Schema, progress: Progress, conversion: Conversion | None = None
) -> Iterator[pa.RecordBatch]:
    """Convert the file under ``schema``.

    Args:
        path: As ``infer_schema``.
        schema: From ``infer_schema``.
        progress: Called with source bytes read since the last call.
        conversion: As ``infer_schema``.

    Raises:
        RecordInvalid: As ``infer_schema``, or a float would round an integer.
        SchemaMismatch: The file has other columns.
    """
    import pyarrow as pa

    first = 0
    for batch, read in _text_batches(path, conversion or Conversion()):
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


def _text_batches(
    path: Path, conversion: Conversion, on_end: Callable[[int, str, str], None] | None = None
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The file's cells as text, converted, each batch with the bytes read for it.

    Args:
        path: The file.
        conversion: What its cells mean.
        on_end: Called with the number of rows, the last cell as it stands, and the separator.
    """
    import pyarrow as pa
    from pyarrow import csv

    bad_row: list[tuple[int | None, int, int]] = []

    def refuse_row(row: Any) -> str:
        bad_row.append((row.number, row.actual_columns, row.expected_columns))
        return "error"

    with _without_content(path, bad_row), _native(path) as (file, place):
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
        before = first = 0
        last = ""
        for batch in reader:
            if batch.num_rows:
                last = batch.column(batch.num_columns - 1)[-1].as_py()
            position = place.tell()
            columns = [
                conversion.convert(path.name, first, name, column)
                for name, column in zip(batch.schema.names, batch.columns, strict=True)
            ]
            yield pa.record_batch(columns, schema=batch.schema), position - before
            first += batch.num_rows
            before = position
        if on_end is not None and first:
            on_end(first, last, delimiter)


def _require_closed(path: Path, rows: int, last: str, delimiter: str) -> None:
    """Refuse a file that ends within quotes: Arrow puts all that follows them into one cell.

    Args:
        path: The file.
        rows: How many it has, without the first.
        last: Its last cell.
        delimiter: Separates fields.

    Raises:
        RecordInvalid: It does.
    """
    if not last.strip("\r\n"):
        return
    # The whole rest of such a file is the last cell, behind a quote that begins a field.
    rest = ('"' + last.replace('"', '""')).encode()
    with open_text(path) as file:
        if not is_packed(path) and file.seekable():  # text in UTF-16 is recoded from its start
            file.seek(-min(len(rest) + 1, path.stat().st_size), io.SEEK_END)
        end = _tail(file, len(rest) + 1)
    if not end.endswith(rest) or end[:1] not in (delimiter.encode(), b"\n", b"\r"):
        return
    raise RecordInvalid(
        f"{path.name}: row {rows + 1} begins a quote that the file does not close",
        check="record",
        hint="close the quote, or see whether the file is complete",
    )


def _tail(file: BinaryIO, size: int) -> bytes:
    """The last bytes of what is left of a file, as few as the size if there are more."""
    held = b""
    while block := file.read(1 << 20):
        held = (held + block)[-size:] if len(block) < size else block[-size:]
    return held


@contextmanager
def _native(path: Path) -> Iterator[tuple[Any, Any]]:
    """A file that Arrow reads without Python, and one that tells the place in the source.

    Arrow reads ahead in a thread of its own, also while a refusal ends this one: a thread that
    needs Python then waits for ever, or aborts a process that is ending.

    Raises:
        RecordInvalid: A packed file is damaged.
        LimitExceeded: UTF-16, which is recoded in memory, is too long.
    """
    import pyarrow as pa

    with open_plain(path) as start:
        marked = start.read(2) in _MARKS
    if marked:
        with open_text(path) as recoded:
            text = recoded.read(MAX_RECODED_BYTES + 1)
        if len(text) > MAX_RECODED_BYTES:
            raise LimitExceeded(
                f"{path.name} is too long for text in UTF-16",
                check="encoding",
                expected=f"at most {MAX_RECODED_BYTES} bytes as UTF-8",
                hint="iconv -f UTF-16 -t UTF-8",
            )
        with pa.BufferReader(text) as buffer:
            yield buffer, buffer
        return
    with pa.OSFile(str(path)) as file:
        if not is_packed(path):
            yield file, file
            return
        try:
            with pa.CompressedInputStream(file, "gzip") as unpacked:
                yield unpacked, file
        except OSError:
            raise refuse_damaged(path) from None


class _Recoded(io.RawIOBase):
    """UTF-16 as UTF-8, a block at a time."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        super().__init__()
        self._path = path
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-16")()
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            block = self._file.read(1 << 20)
            try:
                self._rest = self._decoder.decode(block, final=not block).encode()
            except UnicodeDecodeError:
                raise refuse_encoding(self._path) from None
            if not block:
                break
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


@contextmanager
def open_text(path: Path) -> Iterator[Any]:
    """The bytes of a CSV as UTF-8, unpacked: UTF-16 with a byte order mark is recoded.

    Raises:
        RecordInvalid: As ``plainfile.open_plain``.
    """
    with open_plain(path) as file:
        marked = file.read(2) in _MARKS
        file.seek(0)
        yield io.BufferedReader(_Recoded(path, file)) if marked else file


def header(path: Path) -> tuple[list[str], str]:
    """The first row, read by itself: types must be named before the reader opens.

    Returns:
        Names of the columns, and the character between fields.

    Raises:
        SchemaMismatch: The row does not name every column once.
        RecordInvalid: It is not text, or a packed file is damaged.
    """
    import csv

    with (
        open_text(path) as file,
        io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline="") as text,
    ):
        rows = {}
        start = _FirstRow(text)
        if _SEPARATOR_NOTE.fullmatch(next(iter(start), "").strip()):
            raise SchemaMismatch(
                f"{path.name}: the first row says which separator follows, and names no column",
                check="schema",
                got="sep=",
                expected="a name for each column, each once",
                hint="delete the first line, or: tail -n +2 FILE > NEW",
            )
        for delimiter in "\t" if format_of(path) == ".tsv" else ",;\t|":
            try:
                rows[delimiter] = next(csv.reader(start, delimiter=delimiter, strict=True), [])
            except csv.Error:
                rows[delimiter] = []
        line = next(iter(start), "")
    # A comma comes first: a name that holds a semicolon is rarer than a file that has commas. But
    # a quote inside a name means that the row was cut within quotes, by the wrong mark.
    several = [mark for mark, row in rows.items() if len(row) > 1]
    whole = [mark for mark in several if not any('"' in name for name in rows[mark])]
    separates = next(iter((*whole, *several, *rows)))
    names = rows[separates]
    if any("\ufffd" in name or "\0" in name for name in names):
        raise refuse_encoding(path)
    if not names or _JSON.match(line):
        raise _refuse_no_names(path.name, line)
    _require_names(path.name, names)
    return names, separates


def _refuse_no_names(file: str, line: str) -> SchemaMismatch:
    """The refusal of a first row without a name.

    Args:
        file: Its name.
        line: The first one, empty for an empty file.
    """
    got, hint = "no row", "write a header row"
    if line and not line.strip():
        got, hint = "an empty line", "delete the empty lines above the row of names"
    elif _JSON.match(line):
        got, hint = "JSON", "name the file by what it holds: .jsonl, or .json for an array"
    elif line:
        got = "a quote that is not closed, or one inside a field"
        hint = 'write a quote twice inside a quoted name: "crp ""new"""'
    return SchemaMismatch(
        f"{file}: the first row must name every column",
        check="schema",
        got=got,
        expected="a name for each column, each once",
        hint=hint,
    )


def _require_names(file: str, names: list[str]) -> None:
    """Refuse a first row that does not name every column once.

    Raises:
        SchemaMismatch: It does not; the message says which column.
    """
    unnamed = [number for number, name in enumerate(names, 1) if not name]
    twice = [name for name, times in Counter(names).items() if name and times > 1]
    if unnamed:
        which = ", ".join(map(str, unnamed[:8]))
        columns = f"column {which} has" if len(unnamed) == 1 else f"columns {which} have"
        message = f"the first row must name every column: {columns} no name"
        got, hint = f"no name for column {which}", "name it in the first row"
        if len(names) > 1 and unnamed == [1]:
            hint = (
                "the first column looks like an index: name it, or leave it out "
                "(pandas: index=False)"
            )
        elif len(names) > len(unnamed) and unnamed[0] == len(names) - len(unnamed) + 1:
            hint = "remove the separators at the end of every row, or name the columns behind them"
    elif twice:
        message = f"the first row names column {twice[0][:128]} twice"
        places = [str(number) for number, name in enumerate(names, 1) if name == twice[0]]
        got, hint = f"columns {', '.join(places[:8])}", "rename or drop one of them"
    else:
        return
    raise SchemaMismatch(
        f"{file}: {message}",
        check="schema",
        column=twice[0] if twice else None,
        got=got,
        expected="a name for each column, each once",
        hint=hint,
    )


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
def _without_content(path: Path, bad_row: list[tuple[int | None, int, int]]) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowKeyError, UnicodeDecodeError) as error:
        # Arrow's message would quote the row.
        if not bad_row and (isinstance(error, UnicodeDecodeError) or "UTF8" in str(error)):
            raise refuse_encoding(path) from None
        raise refuse_length(path.name, *(bad_row[0] if bad_row else (None, 0, 0))) from None


def refuse_length(file: str, number: int | None, fields: int, expected: int) -> RecordInvalid:
    """The refusal of a row that has another number of fields than the first.

    Args:
        file: Its name.
        number: Of the row, counted from 1 with the row of names; ``None`` if it is not known.
        fields: Of that row.
        expected: Of the first row; 0 if it is not known.
    """
    where = "a row" if number is None else f"row {number}"
    hint = "quote fields that hold separators or line breaks, and close every quote"
    if expected == 1:
        hint = "the first row must name the columns: delete titles and notes above it"
    elif expected and fields == expected + 1:
        hint += "; a separator at the end of each row needs a name in the first row, or goes"
    elif fields == 1:
        hint = "quote each name of the first row that holds a comma; a note is no record"
    return RecordInvalid(
        f"{file}: {where} has another number of fields than the first",
        check="record",
        got=f"fields: {fields}" if expected else None,
        expected=f"fields: {expected}" if expected else None,
        hint=hint,
    )


def refuse_encoding(path: Path) -> RecordInvalid:
    """The refusal of a file that is not text as UTF-8, with what it seems to be."""
    with open_plain(path) as file:
        start = file.read(256)
    if start.startswith(_WORKBOOKS):
        return RecordInvalid(
            f"{path.name} is a workbook of a spreadsheet program, or an archive, and no text",
            check="encoding",
            expected="CSV",
            hint="open it there and save it as CSV (Excel: CSV UTF-8)",
        )
    for begins, (kind, hint) in _OTHERS.items():
        if start.startswith(begins):
            return RecordInvalid(
                f"{path.name} is {kind}, and no text",
                check="encoding",
                expected="CSV",
                hint=hint,
            )
    half = start[:2] in _MARKS or b"\0" in start
    encoding = "UTF-16" if half else "WINDOWS-1252"
    return RecordInvalid(
        f"{path.name} is not {'whole UTF-16' if start[:2] in _MARKS else 'UTF-8'} text",
        check="encoding",
        got=encoding if half else None,
        hint="check that it is complete, and save it as UTF-8"
        if start[:2] in _MARKS
        else f"save it as UTF-8 (Excel: CSV UTF-8), or: iconv -f {encoding} -t UTF-8 FILE > NEW",
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
            raise refuse_rounded(path.name, first + row + 1, name)


def _has_leading_zero(column: pa.Array) -> bool:
    import pyarrow.compute as pc

    found = pc.any(pc.match_substring_regex(column, r"^[+-]?0[0-9]")).as_py()
    return found is True
