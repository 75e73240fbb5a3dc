"""One stream of evenly sized record batches from one or several files of one format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sealtrain.errors import FormatUnknown, UsageError
from sealtrain.sealing.errors import SchemaMismatch
from sealtrain.sealing.index import MAX_BATCH_ROWS
from sealtrain.sealing.tabular import (
    columnar,
    delimited,
    imagefolder,
    jsonarray,
    jsonl,
    webdataset,
)
from sealtrain.sealing.tabular.conversion import Conversion
from sealtrain.sealing.tabular.jsontypes import merge
from sealtrain.sealing.tabular.plainfile import format_of, unreadable
from sealtrain.sealing.tabular.tokens import TokenShards, open_shards

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_BYTES = 1 << 20
FORMS = ("auto", "file", "images", "tokens", "webdataset", "webdataset-dots")
"""Input: files of the format in their names, any files as they are, images in a folder, token
shards, or tar files, whose keys may have dots."""
Progress = Callable[[int], None]
_Infer = Callable[[Path], "pa.Schema"]
_Read = Callable[[Path, "pa.Schema", Progress], "Iterator[pa.RecordBatch]"]
_FORMATS: dict[str, tuple[_Infer, _Read]] = {
    ".jsonl": (jsonl.infer_schema, jsonl.read_batches),
    ".ndjson": (jsonl.infer_schema, jsonl.read_batches),
    ".json": (jsonarray.infer_schema, jsonarray.read_batches),
    ".csv": (delimited.infer_schema, delimited.read_batches),
    ".tsv": (delimited.infer_schema, delimited.read_batches),
    ".parquet": (columnar.parquet_schema, columnar.parquet_batches),
    ".arrow": (columnar.arrow_schema, columnar.arrow_batches),
    ".feather": (columnar.arrow_schema, columnar.arrow_batches),
}
_ARCHIVES: dict[str, tuple[_Infer, _Read]] = {
    ".tar": (webdataset.infer_schema, webdataset.read_batches),
}
_DOTTED: dict[str, tuple[_Infer, _Read]] = {
    ".tar": (
        partial(webdataset.infer_schema, dotted=True),
        partial(webdataset.read_batches, dotted=True),
    ),
}
_UNTYPED = (".csv", ".tsv")
# Formats whose records need not have every field.
_LOOSE = (".json", ".jsonl", ".ndjson", ".tar")


def is_tabular(path: Path) -> bool:
    """Whether the file's name has the suffix of a record format that this package converts."""
    return format_of(path) in _FORMATS


def open_records(
    sources: Sequence[Path],
    progress: Progress,
    *,
    form: str = "auto",
    folder: Path | None = None,
    shards: TokenShards | None = None,
    conversion: Conversion | None = None,
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Schema and records of files in order.

    Args:
        sources: At least one file; all of one schema.
        progress: Called with source bytes as they are converted.
        form: One of ``FORMS``.
        folder: The folder of images.
        shards: The layout of token shards.
        conversion: What the cells of a CSV mean; as they stand when ``None``.

    Returns:
        The schema (no dictionaries, no metadata) and a stream of batches of any size.

    Raises:
        FormatUnknown: A file is of no known format.
        SchemaMismatch: Files or records disagree about columns or types.
        RecordInvalid: A record cannot be read.
        UsageError: Decimals or dates are declared of another format than CSV.
    """
    conversion = conversion or Conversion()
    if conversion.declared:
        _require_untyped(sources, form)
    if form == "images" and folder is not None:
        return imagefolder.open_folder(folder, sources, progress)
    if form == "tokens":
        return open_shards(sources, progress, shards or TokenShards())
    known = {"webdataset": _ARCHIVES, "webdataset-dots": _DOTTED}.get(form, _FORMATS)
    formats = [_format(path, known, conversion) for path in sources]
    schemas = [infer(path) for (infer, _), path in zip(formats, sources, strict=True)]
    schema = _common(schemas, sources)
    if absent := [name for name in conversion.dates if name not in schema.names]:
        raise SchemaMismatch(
            f"{sources[0].name} has no column {absent[0][:128]} of dates",
            check="--dates",
            column=absent[0],
            got=", ".join(schema.names),
            hint="write the column's name as the file has it: --dates 'COLUMN=PATTERN'",
        )

    def stream() -> Iterator[pa.RecordBatch]:
        for (_, read), path in zip(formats, sources, strict=True):
            yield from read(path, schema, progress)

    return schema, stream()


def evenly(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    size: int = BATCH_BYTES,
    *,
    most_rows: int = MAX_BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Cut and join batches so that each holds about ``size`` bytes and at least one row.

    Args:
        batches: Any sizes; empty ones vanish.
        schema: Schema of all of them.
        size: Target bytes of a batch.
        most_rows: Rows of a batch at most, however few bytes they take.
    """
    held: list[pa.RecordBatch] = []
    held_bytes = held_rows = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(batch)
        held_bytes += batch.nbytes
        held_rows += batch.num_rows
        if held_bytes >= size or held_rows >= most_rows:
            *ready, last = _slices(held, schema, held_bytes, size, most_rows)
            yield from ready
            held, held_bytes, held_rows = [last], last.nbytes, last.num_rows
    if held:
        yield from _slices(held, schema, held_bytes, size, most_rows)


def _slices(
    held: list[pa.RecordBatch], schema: pa.Schema, held_bytes: int, size: int, most_rows: int
) -> list[pa.RecordBatch]:
    import pyarrow as pa

    table = pa.Table.from_batches(held, schema=schema)
    rows = max(1, min(most_rows, int(table.num_rows * size / max(held_bytes, 1))))
    pieces = []
    for start in range(0, table.num_rows, rows):
        # Joining each slice by itself keeps memory at a few batches, whatever the input sizes.
        piece = table.slice(start, rows).combine_chunks().to_batches()
        pieces.extend(piece)
    return pieces


def _require_untyped(sources: Sequence[Path], form: str) -> None:
    """Decimals and dates are declared of text; other formats have types of their own."""
    typed = [path for path in sources if format_of(path) not in _UNTYPED]
    if form != "auto" or typed:
        raise UsageError(
            "decimals and dates are declared of CSV, which has no types",
            check="--decimals, --dates",
            got=typed[0].name if typed else form,
            expected=" or ".join(_UNTYPED),
            hint="write numbers as numbers in this format, and dates as days or as text",
        )


def _common(schemas: Sequence[pa.Schema], sources: Sequence[Path]) -> pa.Schema:
    if all(format_of(path) in _LOOSE for path in sources):
        schema = schemas[0]
        for other, path in zip(schemas[1:], sources[1:], strict=True):
            try:
                schema = merge(schema, other)
            except SchemaMismatch as error:
                raise error.with_message(
                    f"{path.name}: field {error.column} has another type than in the files before"
                ) from None
        return schema
    for other, path in zip(schemas[1:], sources[1:], strict=True):
        if not other.equals(schemas[0]):
            raise _disagreement(schemas[0], other, f"{sources[0].name} and {path.name}")
    return schemas[0]


def _disagreement(first: pa.Schema, other: pa.Schema, files: str) -> SchemaMismatch:
    """The refusal of two files, with the first column in which they differ."""
    names = dict.fromkeys([*first.names, *other.names])
    absent = [name for name in names if name not in first.names or name not in other.names]
    differ = [
        name for name in names if name not in absent and first.field(name) != other.field(name)
    ]
    if absent:
        column = absent[0]
        why = f"one has the column {column}, the other has not"
    elif differ:
        column = differ[0]
        why = f"column {column} has two types: {_types(first, other, column)}"
    else:
        column = next(a for a, b in zip(first.names, other.names, strict=True) if a != b)
        why = f"the columns have another order from {column} on"
    return SchemaMismatch(
        f"the files disagree about columns or types: {files}: {why}",
        check="schema",
        column=column,
        hint="write all files with the same columns in the same order, or seal them as separate "
        "datasets",
    )


def _types(first: pa.Schema, other: pa.Schema, column: str) -> str:
    """The types of a column in two files, or what else differs."""
    types = [str(schema.field(column).type)[:80] for schema in (first, other)]
    return " and ".join(types) if types[0] != types[1] else f"{types[0]}, required in one of them"


def _format(
    path: Path, known: dict[str, tuple[_Infer, _Read]], conversion: Conversion
) -> tuple[_Infer, _Read]:
    suffix = format_of(path)
    if suffix not in known:
        kind, advice = unreadable(path) or ("of no known record format", "check its name")
        raise FormatUnknown(
            f"{path.name} is {kind}",
            check="format",
            got=path.suffix or "no suffix",
            expected=", ".join(sorted(known)),
            hint=f"{advice}; to seal the file as it is, without records: --format file",
        )
    if suffix in _UNTYPED:
        return (
            partial(delimited.infer_schema, conversion=conversion),
            partial(delimited.read_batches, conversion=conversion),
        )
    return known[suffix]
