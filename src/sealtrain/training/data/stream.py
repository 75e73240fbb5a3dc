"""Shuffled records of several owners, decrypted ahead of their use.

A stream is an endless order (``training.data.order``) over opened datasets. Reading it needs one
decrypted record batch per lane, up to as many that are prepared ahead, and a few rounds of rows;
nothing is written anywhere. Position ``n`` is the same row for every reader, so a run is resumed by
a number.

Batches are opened ahead of the reader in one of three ways (``training.data.opening``). A reader
that begins, as after a resume, gets its first rows as soon as the batches that hold them are open.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import islice, tee
from typing import TYPE_CHECKING, Any

from sealtrain.recipe.conversations import read_rows
from sealtrain.training.data.columns import Projection
from sealtrain.training.data.fetching import far, fetch_ahead
from sealtrain.training.data.opening import BatchOpener, Evenly, Turned, largest_batch, opener_for
from sealtrain.training.data.order import MAX_LANES, Order, Pick, Round
from sealtrain.training.data.prefetch import prefetch
from sealtrain.training.data.prefetch_process import PrefetchProcess
from sealtrain.training.data.rank_part import WHOLE, RowShare

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from sealtrain.training.data.sources import Source

    Indices = npt.NDArray[np.int64]

AHEAD_ROUNDS = 2
# Rows that are given before the rest of the first round: for a small batch, then a larger one.
FIRST_ROWS = (16, 48)


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
            columns: Columns to read, under the recipe's names; all when ``None``.
            seed: Seed of the order.
            names: Recipe's name of a column → its name in the stream.
            lanes: Decrypted record batches held at a time, at least one a source.
            ahead: Rounds to work ahead; 0 does all when asked, without a thread or process.

        Raises:
            SchemaMismatch: The sources do not have these columns.
            DataInvalid: There is no row.
        """
        self._datasets = [source.dataset for source in sources]
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
        batches = sum(len(dataset.batch_rows) for dataset in self._datasets)
        rows = sum(sum(dataset.batch_rows) for dataset in self._datasets)
        self._batches_a_round = -(-batches * self.order.round_rows // rows)

    def rounds(
        self, start: int = 0, stop: int | None = None, *, part: RowShare = WHOLE
    ) -> Iterator[pa.RecordBatch]:
        """Rows ``start`` … ``stop`` as record batches of changing length: the fast path.

        Args:
            start: First row.
            stop: Row after the last; endless when ``None``.
            part: Give only the rows of one rank. Together, all ranks read every row once.
        """
        opener = opener_for(self._datasets, ahead=self._ahead > 0)
        depth = self._ahead if opener.prefetches else 0
        yield from prefetch(lambda: self._read(start, stop, part, opener), depth)

    def positions(
        self, start: int = 0, stop: int | None = None, *, part: RowShare = WHOLE
    ) -> Iterator[Indices]:
        """Positions in the stream of the rows that ``rounds`` gives, and nothing is decrypted.

        Arguments as ``rounds``; an array int64 for each round of the order.
        """
        for current in self._rounds(start, stop):
            yield current.start + part.places(current, start, stop)

    def own_positions(self, start: int = 0, *, part: RowShare) -> Iterator[tuple[int, Indices]]:
        """As ``positions``, endless, with the position behind each round of the order."""
        for current in self._rounds(start, None):
            yield current.start + current.rows, current.start + part.places(current, start)

    def batches(
        self, size: int, start: int = 0, stop: int | None = None, *, part: RowShare = WHOLE
    ) -> Iterator[pa.Table]:
        """Columns of exactly ``size`` rows at a time; a last partial batch is left out."""
        import pyarrow as pa

        held: list[pa.RecordBatch] = []
        count = 0
        for batch in self.rounds(start, stop, part=part):
            offset = 0
            while count + batch.num_rows - offset >= size:
                piece = batch.slice(offset, size - count)
                offset += piece.num_rows
                yield pa.Table.from_batches([*held, piece])
                held, count = [], 0
            if offset < batch.num_rows:
                held.append(batch.slice(offset))
                count += batch.num_rows - offset

    def rows(self, start: int = 0, stop: int | None = None) -> Iterator[dict[str, Any]]:
        """Rows ``start`` … ``stop`` as dictionaries; endless when ``stop`` is ``None``."""
        for batch in self.rounds(start, stop):
            yield from read_rows(batch)

    def _read(
        self, start: int, stop: int | None, part: RowShare, opener: BatchOpener
    ) -> Iterator[pa.RecordBatch]:
        """A few rows as soon as the batches that hold them are open, then the rest."""
        batches = _OpenBatches(self._projection, self.order)
        for current in islice(self._rounds(start, stop), 1):
            for many in FIRST_ROWS:
                few = part.places(current, start, stop)[:many]
                if len(few):
                    rows = _few_rows(current, current.order[few], batches, opener.threads)
                    start = current.start + int(few[-1]) + 1
                    yield rows
        yield from self._whole_rounds(self._visits(start, stop, part), batches, opener)

    def _whole_rounds(
        self, visits: Iterator[_Visit], batches: _OpenBatches, opener: BatchOpener
    ) -> Iterator[pa.RecordBatch]:
        """The rows of each round, of which every batch that holds one is opened."""
        import pyarrow as pa

        held: dict[int, Turned] = {}
        visits, beforehand = tee(visits)
        picks = (pick for visit in beforehand for pick, is_new in visit.picks if is_new)
        with closing(Evenly(opener.open(picks, batches))) as opening:
            for visit in visits:
                pieces = []
                for pick, is_new in visit.picks:
                    if is_new:
                        held[pick.lane] = opening.take()
                    pieces.append(held[pick.lane].part(pick.start, pick.stop))
                for lane in visit.left:
                    del held[lane]
                if len(visit.rows):
                    joined = pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)
                    yield joined.take(pa.array(visit.rows))
                if self._ahead:
                    opening.work_ahead(self._batches_a_round)

    def _rounds(self, start: int, stop: int | None) -> Iterator[Round]:
        """Rounds from the one that holds ``start`` on."""
        place = self.order.place(start)
        epoch, number = place.epoch, place.round
        while stop is None or start < stop:
            if number == self.order.rounds_in(epoch):
                epoch, number = epoch + 1, 0
            current = self.order.round(epoch, number)
            if current.rows:
                yield current
            number += 1
            start = current.start + current.rows

    def _visits(self, start: int, stop: int | None, part: RowShare) -> Iterator[_Visit]:
        """What a reader needs of each round."""
        held: dict[int, tuple[int, int]] = {}
        for current in self._rounds(start, stop):
            rows = current.order[part.places(current, start, stop)]
            # Alone, a reader needs every batch: there is nothing to look for.
            picks, rows = (current.picks, rows) if part.world == 1 else _pick_needed(current, rows)
            found, last = [], {pick.lane: (pick.turn, pick.batch) for pick in current.picks}
            for pick in picks:  # a lane may come to its next batch within one round
                wanted = pick.turn, pick.batch
                found.append((pick, held.get(pick.lane) != wanted))
                held[pick.lane] = wanted
            left = [lane for lane, batch in held.items() if last.get(lane, batch) != batch]
            for lane in left:
                del held[lane]
            yield _Visit(rows=rows, picks=found, left=left)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Visit:
    """What a reader needs of one round.

    Attributes:
        rows: Its rows, as places in the picks put together.
        picks: Those that hold them, by lane, and whether no earlier round had the same batch.
        left: Lanes that went on to a batch of which the reader needs nothing yet.
    """

    rows: Indices
    picks: Sequence[tuple[Pick, bool]]
    left: Sequence[int]


def _pick_needed(current: Round, rows: Indices) -> tuple[Sequence[Pick], Indices]:
    """The picks that hold some rows of a round, and those rows as places in these picks alone."""
    import numpy as np

    sizes = np.array([pick.stop - pick.start for pick in current.picks])
    ends = np.cumsum(sizes)
    pick_of_row = np.searchsorted(ends, rows, side="right")
    numbers = np.unique(pick_of_row)
    shift = (ends - sizes)[numbers] - (np.cumsum(sizes[numbers]) - sizes[numbers])
    back = shift[np.searchsorted(numbers, pick_of_row)]
    return [current.picks[number] for number in numbers], rows - back


class _OpenBatches:
    """The batches of a stream for one reader; those of its first rows wait here for the rest."""

    def __init__(self, projection: Projection, order: Order) -> None:
        self._projection, self._order = projection, order
        self._kept: dict[tuple[int, int], pa.RecordBatch] = {}

    def open(self, pick: Pick) -> pa.RecordBatch:
        return self._projection.read(pick.source, pick.batch)

    def turn(self, pick: Pick, batch: pa.RecordBatch) -> Turned:
        return Turned(batch, self._order.shuffle(pick, batch.num_rows))

    def waiting(self, pick: Pick) -> Turned | None:
        kept = self._kept.pop((pick.source, pick.batch), None)
        return None if kept is None else self.turn(pick, kept)

    def keep(self, picks: Sequence[Pick], threads: int) -> list[Turned]:
        """The batches of several picks, opened in threads where they are not open."""
        missing = [pick for pick in picks if (pick.source, pick.batch) not in self._kept]
        if threads == 1 or len(missing) < 2:
            opened = [self.open(pick) for pick in missing]
        else:
            with ThreadPoolExecutor(threads, thread_name_prefix="sealtrain-opening") as pool:
                opened = list(pool.map(self.open, missing))
        for pick, batch in zip(missing, opened, strict=True):
            self._kept[pick.source, pick.batch] = batch
        return [self.turn(pick, self._kept[pick.source, pick.batch]) for pick in picks]


def _few_rows(current: Round, few: Indices, batches: _OpenBatches, threads: int) -> pa.RecordBatch:
    """Some rows of a round, of which only the batches that hold them are opened.

    Args:
        few: Positions of the rows in the concatenated picks of the round.
        batches: Keeps the batches that were opened.
        threads: That open them.
    """
    import numpy as np
    import pyarrow as pa

    ends = np.cumsum([pick.stop - pick.start for pick in current.picks])
    pick_of_row = np.searchsorted(ends, few, side="right")
    numbers = np.unique(pick_of_row)
    picks = [current.picks[number] for number in numbers]
    pieces = []
    for number, pick, turned in zip(numbers, picks, batches.keep(picks, threads), strict=True):
        pieces.append(turned.at(few[pick_of_row == number] - ends[number] + pick.stop))
    # The pieces hold the rows by pick; back into the order of the stream.
    back = np.argsort(np.argsort(pick_of_row, kind="stable"))
    return pa.concat_batches(pieces).take(pa.array(back))


def read_all(
    sources: Sequence[Source],
    columns: Sequence[str] | None = None,
    *,
    names: Mapping[str, str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Every record once, source after source, as sealed. For evaluation and statistics.

    Args:
        sources: Opened datasets; none gives nothing.
        columns: Columns to read, under the recipe's names; all when ``None``.
        names: Recipe's name of a column → its name in the rows.

    Raises:
        SchemaMismatch: The sources do not have these columns.
    """
    if not sources:
        return
    projection = Projection(sources, columns, names)
    datasets = [source.dataset for source in sources]
    places = (
        (number, batch)
        for number, dataset in enumerate(datasets)
        for batch in range(len(dataset.batch_rows))
    )

    def read(place: tuple[int, int]) -> pa.RecordBatch:
        source, batch = place
        return projection.read(source, batch)

    if far(datasets):
        yield from fetch_ahead(read, places)
    elif PrefetchProcess.helps(datasets):
        with closing(PrefetchProcess(places, read, largest=largest_batch(datasets))) as process:
            yield from process
    else:
        yield from map(read, places)
