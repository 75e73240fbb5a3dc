"""JSON lines read once, to judge them: nothing is kept, so nothing has to have its last type.

Sealing reads JSON lines twice: it writes the first record under the schema of all of them. A judge
does not have to. It finds types in the first block, and widens them where a later block has more.
What a widening could make wrong (an integer that a float rounds, or that a template would write
with a decimal point in a tool call) and whatever does not fit is ``Undecided``: then the caller
reads the records twice, as sealing does, and refuses in its words.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sealtrain.errors import SealtrainError
from sealtrain.sealing.errors import SchemaMismatch
from sealtrain.sealing.tabular.jsonl import line_blocks, parse_lines
from sealtrain.sealing.tabular.jsontypes import (
    as_found,
    holds_beyond,
    holds_called_floats,
    holds_floats,
    holds_null,
    merge,
)
from sealtrain.sealing.tabular.plainfile import format_of

if TYPE_CHECKING:
    import pyarrow as pa

_FORMATS: Final = (".jsonl", ".ndjson")
_EXACT: Final = 2.0**53
"""From here on a float does not hold every integer."""


class Undecided(Exception):
    """One reading does not tell whether the records are good."""


def is_scanned(paths: Sequence[Path]) -> bool:
    """Whether all files are JSON lines by their names."""
    return bool(paths) and all(format_of(path) in _FORMATS for path in paths)


class LinesScan:
    """The records of some files, read once.

    Attributes:
        schema: Of all that was read so far; it widens while ``batches`` are taken.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        """Read the first block.

        Args:
            paths: Files of JSON lines, in order.

        Raises:
            Undecided: It cannot be read, or there is none.
        """
        self._blocks: Iterator[bytes] = chain.from_iterable(map(line_blocks, paths))
        try:
            block = next(self._blocks, None)
        except SealtrainError:
            raise Undecided from None
        if block is None:
            raise Undecided
        self._first = _parse(block, None)
        self._large = False  # an integer was read that a float might round
        self.schema: pa.Schema = self._first.schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The records. Columns are found by name: a block that widens the schema has more.

        Raises:
            Undecided: A block cannot be read, has another type, or numbers that need another look.
        """
        import pyarrow as pa

        yield from self._take(self._first)
        workers = pa.cpu_count()
        with ThreadPoolExecutor(workers) as pool:
            ahead: deque[Future[pa.Table]] = deque()
            try:
                for block in self._readable():
                    ahead.append(pool.submit(_parse, block, self.schema))
                    if len(ahead) > workers:
                        yield from self._take(ahead.popleft().result())
                while ahead:
                    yield from self._take(ahead.popleft().result())
            finally:
                for waiting in ahead:
                    waiting.cancel()

    def _readable(self) -> Iterator[bytes]:
        try:
            yield from self._blocks
        except SealtrainError:
            raise Undecided from None

    def _take(self, table: pa.Table) -> list[pa.RecordBatch]:
        import pyarrow as pa

        try:
            merged = merge(self.schema, as_found(table.schema))
        except SchemaMismatch:
            raise Undecided from None
        self._large = self._large or holds_beyond(table, _EXACT, integers=True)
        if (self._large and holds_floats(merged)) or holds_called_floats(merged):
            raise Undecided
        self.schema = merged
        given = set(table.column_names)
        absent = [name for name in self.schema.names if name not in given]
        if absent:
            nulls = pa.nulls(table.num_rows)
            table = pa.table(
                [*table.columns, *[nulls] * len(absent)], names=[*table.column_names, *absent]
            )
        batches: list[pa.RecordBatch] = table.to_batches()
        return batches


def _parse(block: bytes, known: pa.Schema | None) -> pa.Table:
    """Records of a block: under known types if they fit, else under those that it has itself."""
    import pyarrow as pa

    for schema in (None,) if known is None else (_sure(known), None):
        try:
            table = parse_lines(block, schema, unexpected="infer")
            if as_found(table.schema) != table.schema:  # texts that read as times
                table = parse_lines(block, _sure(as_found(table.schema)), unexpected="infer")
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, UnicodeError):
            continue
        if as_found(table.schema) == table.schema:
            return table
    raise Undecided


def _sure(schema: pa.Schema) -> pa.Schema:
    """The fields whose types are known whole: Arrow takes a type of nulls at its word."""
    import pyarrow as pa

    return pa.schema([field for field in schema if not holds_null(field.type)])
