"""Writing the content of a sealed dataset in the clear, because its owner asked for it.

The output appears whole or not at all: a refusal half way (a damaged chunk, another root) leaves
nothing behind. From its first byte on, the user of this process alone can read it.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO

from sealtrain.base.files import atomic_folder, atomic_writer, private_file
from sealtrain.errors import DataInvalid, FormatUnknown, UsageError
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.opened_dataset import SealedDataset

if TYPE_CHECKING:
    import pyarrow as pa

COPY_BYTES = 1 << 20
_PRIVATE = 0o600


def export(
    source: SealedDataset | Path,
    out: Path,
    *,
    to: str,
    key: DataKey | None = None,
    root: str | None = None,
) -> None:
    """Write the dataset's records or files to ``out``.

    Args:
        source: An opened dataset, or a folder together with ``key`` and ``root``.
        out: New file; for ``raw`` with several files a new folder.
        to: ``jsonl``, ``csv``, ``parquet``, ``arrow`` or ``raw``. JSON lines write bytes as base64
            and times as ISO 8601.
        key: Data key of a folder.
        root: Signed root of a folder, 64 hex digits.

    Raises:
        AlreadyExists: ``out`` exists.
        FormatUnknown: No such format, or the records do not fit it.
        UsageError: A folder was given without its key or root.
        SealRefused, RecordInvalid: The dataset does not open; nothing is left at ``out``.
    """
    if to not in EXPORT_FORMATS and to != "raw":
        expected = ", ".join((*EXPORT_FORMATS, "raw"))
        raise FormatUnknown("unknown export format", got=to, expected=expected)
    if isinstance(source, SealedDataset):
        _export(source, out, to)
        return
    if key is None or root is None:
        raise UsageError("a sealed folder opens with its data key and its signed root")
    with SealedDataset.open(source, key, root=root) as dataset:
        _export(dataset, out, to)


def _export(dataset: SealedDataset, out: Path, to: str) -> None:
    if to == "raw":
        _export_raw(dataset, out)
        return
    if dataset.schema is None:
        raise FormatUnknown(
            f"raw files have no records to write as {to}", hint="export with --to raw"
        )
    with atomic_writer(out, mode=_PRIVATE) as file:
        EXPORT_FORMATS[to](dataset.schema, _batches(dataset), file)


def _batches(dataset: SealedDataset) -> Iterator[pa.RecordBatch]:
    for number in range(dataset.num_batches):
        yield dataset.batch(number)


def _export_raw(dataset: SealedDataset, out: Path) -> None:
    names = dataset.file_names
    paths = [_safe(name) for name in names]
    if len(names) == 1 and len(paths[0].parts) == 1:
        with (
            dataset.open_file(names[0]) as source,
            atomic_writer(out, mode=_PRIVATE) as target,
        ):
            shutil.copyfileobj(source, target, COPY_BYTES)
        return
    with atomic_folder(out) as folder:
        for name, path in zip(names, paths, strict=True):
            with dataset.open_file(name) as source, private_file(folder / path) as target:
                shutil.copyfileobj(source, target, COPY_BYTES)


def _safe(name: str) -> PurePosixPath:
    """A relative path that stays below the output folder, whatever the sealer wrote."""
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or ".." in path.parts or "\0" in name:
        raise DataInvalid("dataset names a file outside its folder", check="file name")
    return path


def _to_jsonl(_: pa.Schema, batches: Iterator[pa.RecordBatch], file: BinaryIO) -> None:
    for batch in batches:
        for row in batch.to_pylist():
            line = json.dumps(row, ensure_ascii=False, default=_json_value)
            file.write(line.encode() + b"\n")


def _json_value(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta | decimal.Decimal):
        return str(value)
    raise FormatUnknown("a column holds values that JSON cannot carry", got=type(value).__name__)


def _to_csv(schema: pa.Schema, batches: Iterator[pa.RecordBatch], file: BinaryIO) -> None:
    import pyarrow as pa
    from pyarrow import csv

    alone = len(schema) == 1 and not pa.types.is_binary(schema.field(0).type)
    if alone:
        schema = pa.schema([(schema.names[0], pa.string())])
    try:
        with csv.CSVWriter(file, schema) as writer:
            for batch in batches:
                writer.write_batch(_keep_gaps(batch) if alone else batch)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise FormatUnknown(
            "a column holds lists, structs or images, which CSV cannot carry",
            hint="export to jsonl",
        ) from None


def _keep_gaps(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Records of one column, a null as an empty text: readers of CSV skip an empty line."""
    import pyarrow as pa

    column = batch.column(0).cast(pa.string())
    return pa.record_batch([column.fill_null("")], names=batch.schema.names)


def _to_parquet(schema: pa.Schema, batches: Iterator[pa.RecordBatch], file: BinaryIO) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetWriter(file, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
    except pa.ArrowNotImplementedError:
        raise FormatUnknown(
            "a column holds a type that Parquet cannot carry", hint="export to arrow"
        ) from None


def _to_arrow(schema: pa.Schema, batches: Iterator[pa.RecordBatch], file: BinaryIO) -> None:
    import pyarrow as pa

    with pa.ipc.new_file(file, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


EXPORT_FORMATS: dict[str, Callable[[Any, Iterator[Any], BinaryIO], None]] = {
    "jsonl": _to_jsonl,
    "csv": _to_csv,
    "parquet": _to_parquet,
    "arrow": _to_arrow,
}
"""Formats of records; ``raw`` beside them copies files as they were."""
