"""Parquet and Arrow files as record batches.

Dictionary and run-end-encoded columns are decoded, extension types become their storage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sealtrain.sealing.arrowtypes import choose_stored_schema
from sealtrain.sealing.errors import RecordInvalid

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import parquet

STEP_BYTES = 4 << 20
MAX_ROWS = 65536
Progress = Callable[[int], None]


def parquet_schema(path: Path) -> pa.Schema:
    """Schema of a Parquet file, as ``choose_stored_schema`` has it.

    Raises:
        RecordInvalid: Not a Parquet file this release reads.
        SchemaMismatch: As ``choose_stored_schema``.
    """
    from pyarrow import parquet

    with hide_content(path, "Parquet"):
        return choose_stored_schema(parquet.read_schema(path), path.name)


def parquet_batches(path: Path, schema: pa.Schema, progress: Progress) -> Iterator[pa.RecordBatch]:
    """Record batches of a Parquet file under ``schema``. Raises as ``parquet_schema``."""
    from pyarrow import parquet

    with hide_content(path, "Parquet"), parquet.ParquetFile(path) as file:
        total, size = max(file.metadata.num_rows, 1), path.stat().st_size
        for batch in file.iter_batches(_rows_per_step(file.metadata), use_threads=False):
            _require_valid(path, batch)
            yield _cast(batch, schema)
            progress(size * batch.num_rows // total)


def arrow_schema(path: Path) -> pa.Schema:
    """Schema of an Arrow IPC file or stream, as ``choose_stored_schema`` has it.

    Raises:
        RecordInvalid: Not an Arrow IPC file or stream.
        SchemaMismatch: As ``choose_stored_schema``.
    """
    with hide_content(path, "Arrow"), _arrow(path) as reader:
        return choose_stored_schema(reader.schema, path.name)


def arrow_batches(path: Path, schema: pa.Schema, progress: Progress) -> Iterator[pa.RecordBatch]:
    """Batches of an Arrow IPC file or stream under ``schema``. Raises as ``arrow_schema``."""
    import pyarrow as pa

    with hide_content(path, "Arrow"), _arrow(path) as reader:
        if isinstance(reader, pa.RecordBatchFileReader):
            batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
        else:
            batches = iter(reader)
        for batch in batches:
            _require_valid(path, batch)
            yield _cast(batch, schema)
            progress(batch.nbytes)


def _require_valid(path: Path, batch: pa.RecordBatch) -> None:
    """Refuse offsets outside a column's memory, and text that is not UTF-8: no guest opens them."""
    import pyarrow as pa

    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            raise RecordInvalid(
                f"{path.name}: column {name} holds invalid values",
                check="record",
                expected="offsets inside the column, and text as UTF-8",
                hint="write the file again, with text as UTF-8 or the column as binary",
            ) from None


def _rows_per_step(metadata: parquet.FileMetaData) -> int:
    """Rows of about 4 MiB, so that a table of images is not read thousands of rows at a time."""
    size: int = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    rows: int = metadata.num_rows
    return max(1, min(MAX_ROWS, STEP_BYTES * rows // max(size, 1)))


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = []
    for column, field in zip(batch.columns, schema, strict=True):
        if pa.types.is_run_end_encoded(column.type):
            column = pc.run_end_decode(column)
        elif pa.types.is_dictionary(column.type):  # a cast decodes no dictionary of lists
            column = column.dictionary.take(column.indices)
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.record_batch(columns, schema=schema)


@contextmanager
def _arrow(path: Path) -> Iterator[pa.RecordBatchFileReader | pa.RecordBatchStreamReader]:
    import pyarrow as pa

    with pa.OSFile(str(path), "rb") as file:
        magic = file.read(6)
        file.seek(0)
        opened = pa.ipc.open_file(file) if magic == b"ARROW1" else pa.ipc.open_stream(file)
        with opened as reader:
            yield reader


@contextmanager
def hide_content(path: Path, kind: str) -> Iterator[None]:
    """Refuse a file that Arrow does not read, without Arrow's words.

    Args:
        path: The file.
        kind: Its format, for people.

    Raises:
        RecordInvalid: Reading it failed.
    """
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError):
        # Arrow's message may quote a value.
        raise RecordInvalid(
            f"{path.name} is not a readable {kind} file",
            check="format",
            hint="check that it is complete and not encrypted",
        ) from None
