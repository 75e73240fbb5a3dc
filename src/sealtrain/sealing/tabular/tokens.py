"""Token shards (``.bin``) as Arrow record batches: one column ``tokens`` of lists of equal length.

A shard is a run of little-endian ``uint16`` or ``uint32`` numbers, one a token. Either it begins
with llm.c's header (256 int32: magic 20240520 for uint16 or 20240801 for uint32, version, number
of tokens) or it is raw, and the owner names the width of its numbers when sealing. Rows follow one
another as in the shard; only a shard's last row may be shorter.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sealtrain.errors import UsageError
from sealtrain.sealing.errors import RecordInvalid, SchemaMismatch

if TYPE_CHECKING:
    import pyarrow as pa

TOKENS_COLUMN: Final = "tokens"
HEADER_BYTES: Final = 1024
_MAGIC: Final = {20240520: "uint16", 20240801: "uint32"}
_BYTES: Final = {"uint16": 2, "uint32": 4}
_STEP_BYTES = 1 << 20
MAX_ROW_TOKENS: Final = 1 << 22
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenShards:
    """The layout of token shards, and the length of their records.

    Attributes:
        dtype: ``uint16`` or ``uint32``; ``None`` when every shard has it in its header.
        row_tokens: Tokens of a record, 1 … 4,194,304. Records are what training shuffles, so a
            multiple of the recipe's ``block_size`` keeps blocks whole.
    """

    dtype: str | None = None
    row_tokens: int = 4096

    def __post_init__(self) -> None:
        """Refuse an impossible layout.

        Raises:
            UsageError: Another dtype, or a length out of range.
        """
        if self.dtype is not None and self.dtype not in _BYTES:
            raise UsageError(
                "unknown type of tokens", got=self.dtype, expected=" or ".join(sorted(_BYTES))
            )
        if not 1 <= self.row_tokens <= MAX_ROW_TOKENS:
            raise UsageError(
                "a record of tokens has an impossible length",
                got=self.row_tokens,
                expected=f"1 … {MAX_ROW_TOKENS}",
            )


def open_shards(
    sources: Sequence[Path], progress: Progress, shards: TokenShards
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Schema and records of token shards in order.

    Args:
        sources: At least one shard; all of one dtype.
        progress: Called with source bytes as they are converted.
        shards: The layout of the shards.

    Raises:
        UsageError: A shard has no header and no dtype was given.
        SchemaMismatch: Shards differ in dtype, or a header names another one.
        RecordInvalid: A shard is cut off.
    """
    import pyarrow as pa

    found = [_dtype_and_start(path, shards.dtype) for path in sources]
    (dtype, _), *others = found
    if any(other != dtype for other, _ in others):
        raise SchemaMismatch(
            "the shards hold tokens of different types",
            check="schema",
            hint="seal them as separate datasets",
        )
    value = pa.uint16() if dtype == "uint16" else pa.uint32()
    schema = pa.schema([pa.field(TOKENS_COLUMN, pa.list_(value))])

    def stream() -> Iterator[pa.RecordBatch]:
        for path, (_, start) in zip(sources, found, strict=True):
            yield from _batches(path, start, schema, shards.row_tokens, progress)

    return schema, stream()


def count_tokens(batch: pa.RecordBatch) -> int:
    """Tokens of a record batch."""
    return len(batch.column(TOKENS_COLUMN).flatten())


def _batches(
    path: Path, start: int, schema: pa.Schema, row_tokens: int, progress: Progress
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    value = schema.field(0).type.value_type
    width = value.bit_width // 8
    row_bytes = row_tokens * width
    with path.open("rb") as file:
        file.seek(start)
        progress(start)
        while data := file.read(max(1, _STEP_BYTES // row_bytes) * row_bytes):
            count = len(data) // width
            if len(data) % width:
                raise _cut_off(path)
            numbers = pa.Array.from_buffers(value, count, [None, pa.py_buffer(data)])
            ends = [*range(0, count, row_tokens), count]
            rows = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), numbers)
            yield pa.record_batch([rows], schema=schema)
            progress(len(data))


def _dtype_and_start(path: Path, declared: str | None) -> tuple[str, int]:
    size = path.stat().st_size
    with path.open("rb") as file:
        begin = file.read(12)
    if len(begin) == 12:
        magic, _version, tokens = struct.unpack("<iiI", begin)
        dtype = _MAGIC.get(magic)
        whole = dtype is not None and size == HEADER_BYTES + tokens * _BYTES[dtype]
        if dtype is not None and not whole and declared is None:
            raise _cut_off(path)
        if dtype is not None and whole:
            if declared not in (None, dtype):
                raise SchemaMismatch(
                    f"{path.name} has a header that names another type of tokens",
                    check="schema",
                    got=dtype,
                    expected=declared,
                )
            return dtype, HEADER_BYTES
    if declared is None:
        raise UsageError(
            f"{path.name} has no header, and no dtype was given",
            expected="uint16 or uint32",
            hint="pass the type of the program that wrote it: --dtype",
        )
    if size % _BYTES[declared]:
        raise _cut_off(path)
    return declared, 0


def _cut_off(path: Path) -> RecordInvalid:
    return RecordInvalid(
        f"{path.name} does not end with a whole token",
        check="format",
        hint="check that it is complete and of the dtype named",
    )
