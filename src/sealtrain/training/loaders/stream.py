"""Shuffled records of several owners, decrypted ahead of their use.

A stream is an endless order (``loaders.order``) over opened datasets. Reading it needs one
decrypted record batch per lane and a few rounds of rows; nothing is written anywhere. Position
``n`` is the same row for every reader, so a run is resumed by a number.

Decryption works ahead of the reader: in a process of its own where that helps (``loaders.aside``),
else together with the shuffling in a thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice, tee
from typing import TYPE_CHECKING, Any

from sealtrain.training.loaders.ahead import ahead
from sealtrain.training.loaders.aside import AHEAD_BATCHES, Aside
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
            ahead: Rounds to work ahead; 0 does all when asked, without a thread or process.

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
            caps=[source.max_records for source in sources],
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
        datasets = [one.dataset for one in self._sources]
        if self._ahead and Aside.helps(datasets):
            # A thread beside this one would wait milliseconds for the interpreter lock each turn.
            yield from self._gathered(start, stop, rank, world, aside=True)
        else:
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
        self, start: int, stop: int | None, rank: int, world: int, *, aside: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """The rows of each round, put together."""
        import pyarrow as pa

        held: dict[int, pa.RecordBatch] = {}
        rounds, beforehand = tee(self._touched(start, stop))
        picks = (pick for _, fresh in beforehand for pick in fresh if pick)
        with closing(self._shuffled(picks, aside=aside)) as shuffled:
            for current, fresh in rounds:
                pieces = []
                for pick, first in zip(current.picks, fresh, strict=True):
                    if first is not None:
                        held[pick.lane] = next(shuffled)
                    pieces.append(held[pick.lane].slice(pick.start, pick.stop - pick.start))
                low = max(0, start - current.start)
                high = current.rows if stop is None else min(current.rows, stop - current.start)
                low += (rank - current.start - low) % world
                together = pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)
                if low < high:
                    yield together.take(pa.array(current.order[low:high:world]))

    def _touched(self, start: int, stop: int | None) -> Iterator[tuple[Round, list[Pick | None]]]:
        """Rounds, each with those of its picks whose shuffled batch no earlier one had."""
        held: dict[int, tuple[int, int]] = {}
        place = self.order.place(start)
        epoch, number = place.epoch, place.round
        while stop is None or start < stop:
            if number == self.order.rounds_in(epoch):
                epoch, number = epoch + 1, 0
            current = self.order.round(epoch, number)
            fresh: list[Pick | None] = []
            for pick in current.picks:  # a lane may come to its next batch within one round
                wanted = pick.turn, pick.batch
                fresh.append(None if held.get(pick.lane) == wanted else pick)
                held[pick.lane] = wanted
            if current.rows:
                yield current, fresh
            number += 1
            start = current.start + current.rows

    def _shuffled(self, picks: Iterator[Pick], *, aside: bool) -> Generator[pa.RecordBatch]:
        """The whole batch of each pick, projected, its rows in the order of that pick's turn."""
        import pyarrow as pa

        with closing(self._opened(picks, aside=aside)) as opened:
            for pick, batch in opened:
                kept = self._projection.project(pick.source, batch)
                yield kept.take(pa.array(self.order.shuffled(pick, kept.num_rows)))

    def _opened(
        self, picks: Iterator[Pick], *, aside: bool
    ) -> Generator[tuple[Pick, pa.RecordBatch]]:
        """The decrypted batch of each pick."""
        datasets = [one.dataset for one in self._sources]
        # The first round, so that a run resumes at once; then with questions ahead of answers.
        for pick in islice(picks, MAX_LANES) if aside else picks:
            yield pick, datasets[pick.source].batch(pick.batch)
        if not aside:
            return
        asked: deque[Pick] = deque()
        with closing(Aside(datasets, slots=AHEAD_BATCHES + 2)) as decrypting:
            for pick in picks:
                decrypting.ask(pick.source, pick.batch)
                asked.append(pick)
                if len(asked) > AHEAD_BATCHES:
                    yield asked.popleft(), decrypting.answer()
            while asked:
                yield asked.popleft(), decrypting.answer()


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
