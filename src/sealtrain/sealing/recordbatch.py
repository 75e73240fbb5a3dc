"""One record batch out of bytes that another owner sealed, for code that trusts its offsets.

Arrow reads where offsets point. A batch whose offsets point elsewhere would show the memory of the
guest, and so other owners' records.

Checks, in order:
 1. The bytes are one Arrow message that holds a record batch.
 2. Its body is not compressed: what it would unpack to is bounded by nothing but its owner's word,
    and spec/sealed-file.md §9 knows no compression.
 3. It is a batch of the schema, valid in full: every length, offset and UTF-8 text.
 4. It has as many rows as the index says.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from sealtrain.sealing.errors import RecordInvalid

if TYPE_CHECKING:
    import pyarrow as pa

# Positions of fields in the tables of Arrow's Message.fbs.
_HEADER: Final = 2
_COMPRESSION: Final = 3


def parse_record_batch(data: pa.Buffer, schema: pa.Schema, rows: int) -> pa.RecordBatch:
    """Read a record batch; its columns refer to ``data``, nothing is copied.

    Args:
        data: An encapsulated message, in memory of this process alone.
        schema: Of the dataset.
        rows: Rows it must have.

    Raises:
        RecordInvalid: One of the checks fails. What Arrow says is not repeated: it may quote a
            value.
    """
    import pyarrow as pa

    try:
        message = pa.ipc.read_message(data)
        if message.type != "record batch" or _is_compressed(message.metadata):
            raise pa.ArrowInvalid("not an uncompressed record batch")
        batch = pa.ipc.read_record_batch(message, schema)
        batch.validate(full=True)
        if batch.num_rows != rows:
            raise pa.ArrowInvalid("row count")
    except (pa.ArrowException, OSError, EOFError, ValueError, struct.error):
        raise RecordInvalid(
            "a record batch is not valid Arrow data",
            check="record batch",
            expected=f"an uncompressed batch of {rows} rows",
        ) from None
    return batch


def _is_compressed(metadata: pa.Buffer) -> bool:
    """Whether a record batch message names a compression; Arrow verified its flatbuffer before."""
    data = memoryview(metadata)
    header = _field(data, _at(data, 0), _HEADER)
    return _field(data, _at(data, header), _COMPRESSION) != 0


def _at(data: memoryview, place: int) -> int:
    """Where the table lies that ``place`` refers to."""
    return place + int(struct.unpack_from("<I", data, place)[0])


def _field(data: memoryview, table: int, number: int) -> int:
    """Where a field of a table lies, 0 where the table does not have it."""
    slots = table - int(struct.unpack_from("<i", data, table)[0])
    slot = 4 + 2 * number
    if slot + 2 > struct.unpack_from("<H", data, slots)[0]:
        return 0
    offset = int(struct.unpack_from("<H", data, slots + slot)[0])
    return table + offset if offset else 0
