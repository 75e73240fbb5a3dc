"""Shuffled records of several owners, decrypted ahead of their use.

A stream is an endless order (``loaders.order``) over opened datasets. Reading it needs one
decrypted record batch per lane and a few rounds of rows; nothing is written anywhere. Position
``n`` is the same row for every reader, so a run is resumed by a number.

Two threads work ahead of the reader: one decrypts and shuffles record batches, one gathers the rows
of a round. Both spend their time outside the interpreter lock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sealtrain.training.loaders.ahead import ahead
from sealtrain.training.loaders.columns import Projection
from sealtrain.training.loaders.order import MAX_LANES, Order, Pick, Round

if TYPE_CHECKING:
    import pyarrow as pa

    from sealtrain.training.sources import Source

__all__ = ["RecordStream", "read_all"]

AHEAD_ROUNDS = 2


class RecordStream:
    """Records of several sources in shuffled order, from any position on.

    Attributes:
        order: The order being followed.
        schema: Arrow schema of the rows.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        columns: Sequence[str] | None = None,
        *,
        seed: int,
        names: Mapping[str, str] | None = None,
        lanes: int = MAX_LANES,
        ahead: int = AHEAD_ROUNDS,
    ) -> None:
        """Lay out the order; nothing is decrypted yet.

        Args:
            sources: Opened datasets with their weights.
            columns: Columns of the records to read; all when ``None``.
            seed: Seed of the order.
            names: Column of the records → name it gets in the stream.
            lanes: Decrypted record batches held at a time, at least one a source.
            ahead: Rounds each of the two threads works ahead; 0 does all when asked.

        Raises:
            SchemaMismatch: The sources do not have these columns.
            DataInvalid: There is no row.
        """
        self._sources = tuple(sources)
        self._projection = Projection(sources, columns, names)
        self._ahead = ahead
        self.schema = self._projection.schema
        self.order = Order(
            [source.dataset.batch_rows for source in sources],
            [source.weight for source in sources],
            seed=seed,
            lanes=lanes,
        )

    def rounds(
        self, start: int = 0, stop: int | None = None, *, rank: int = 0, world: int = 1
    ) -> Iterator[pa.RecordBatch]:
        """Rows ``start`` … ``stop`` as record batches of changing length: the fast path.

        Args:
            start: First row.
            stop: Row after the last; endless when ``None``.
            rank: Give only rows whose position leaves this remainder …
            world: … divided by this number. Together, all ranks read every row once.
        """
        yield from ahead(lambda: self._gathered(start, stop, rank, world), self._ahead)

    def batches(
        self, size: int, start: int = 0, stop: int | None = None, *, rank: int = 0, world: int = 1
    ) -> Iterator[pa.Table]:
        """Columns of exactly ``size`` rows at a time; a last partial batch is left out."""
        import pyarrow as pa

        held: list[pa.RecordBatch] = []
        count = 0
        for batch in self.rounds(start, stop, rank=rank, world=world):
            offset = 0
            while count + batch.num_rows - offset >= size:
                part = batch.slice(offset, size - count)
                offset += part.num_rows
                yield pa.Table.from_batches([*held, part])
                held, count = [], 0
            if offset < batch.num_rows:
                held.append(batch.slice(offset))
                count += batch.num_rows - offset

    def rows(self, start: int = 0, stop: int | None = None) -> Iterator[dict[str, Any]]:
        """Rows ``start`` … ``stop`` as dictionaries; endless when ``stop`` is ``None``."""
        for batch in self.rounds(start, stop):
            yield from batch.to_pylist()

    def _gathered(
        self, start: int, stop: int | None, rank: int, world: int
    ) -> Iterator[pa.RecordBatch]:
        """Second stage: put the rows of each round together."""
        import pyarrow as pa

        held: dict[int, pa.RecordBatch] = {}
        for current, fresh in ahead(lambda: self._decrypted(start, stop), self._ahead):
            low = max(0, start - current.start)
            high = current.rows if stop is None else min(current.rows, stop - current.start)
            low += (rank - current.start - low) % world
            pieces = []
            for pick, batch in zip(current.picks, fresh, strict=True):
                if batch is not None:
                    held[pick.lane] = batch
                pieces.append(held[pick.lane].slice(pick.start, pick.stop - pick.start))
            together = pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)
            if low < high:
                yield together.take(pa.array(current.order[low:high:world]))

    def _decrypted(
        self, start: int, stop: int | None
    ) -> Iterator[tuple[Round, list[pa.RecordBatch | None]]]:
        """First stage: rounds, with the shuffled batches that each is the first to touch."""
        held: dict[int, tuple[int, int]] = {}
        place = self.order.place(start)
        epoch, number = place.epoch, place.round
        while stop is None or start < stop:
            if number == self.order.rounds_in(epoch):
                epoch, number = epoch + 1, 0
            current = self.order.round(epoch, number)
            fresh: list[pa.RecordBatch | None] = []
            for pick in current.picks:
                wanted = pick.turn, pick.batch
                known = held.get(pick.lane) == wanted
                fresh.append(None if known else self._shuffled(pick))
                held[pick.lane] = wanted
            if current.rows:
                yield current, fresh
            number += 1
            start = current.start + current.rows

    def _shuffled(self, pick: Pick) -> pa.RecordBatch:
        import pyarrow as pa

        batch = self._sources[pick.source].dataset.batch(pick.batch)
        batch = self._projection.project(pick.source, batch)
        return batch.take(pa.array(self.order.shuffled(pick, batch.num_rows)))


def read_all(
    sources: Sequence[Source],
    columns: Sequence[str] | None = None,
    *,
    names: Mapping[str, str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Every record once, source after source, as sealed. For evaluation and statistics.

    Args:
        sources: Opened datasets; none gives nothing.
        columns: Columns of the records to read; all when ``None``.
        names: Column of the records → name it gets.

    Raises:
        SchemaMismatch: The sources do not have these columns.
    """
    if not sources:
        return
    projection = Projection(sources, columns, names)
    for number, source in enumerate(sources):
        for batch in range(len(source.dataset.batch_rows)):
            yield projection.project(number, source.dataset.batch(batch))
