"""An owner's records as they are, for trying the rules before sealing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sealtrain.errors import DataInvalid
from sealtrain.sealing.tabular.batches import evenly, open_records

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["PlainRecords"]


class PlainRecords:
    """Records of one file, read once, a batch at a time."""

    dataset_id = ""
    root = ""
    batch_rows: tuple[int, ...] = ()

    def __init__(self, path: Path) -> None:
        """Find the schema.

        Raises:
            FormatUnknown, SchemaMismatch, RecordInvalid: The records cannot be read.
            DataInvalid: There is no such file.
        """
        if not path.is_file():
            raise DataInvalid(f"no such file: {path}", hint="name a file of records")
        schema, self._records = open_records([path], lambda _: None)
        self.schema: pa.Schema | None = schema

    def batch(self, number: int) -> pa.RecordBatch:
        """Not offered: records are streamed."""
        raise IndexError(number)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All record batches in order, once."""
        if self.schema is not None:
            yield from evenly(self._records, self.schema)
