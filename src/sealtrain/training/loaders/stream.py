"""Shuffled records of several owners, decrypted ahead of their use.

A stream is an endless order (``loaders.order``) over opened datasets. Reading it needs one
decrypted record batch per lane, up to as many that are prepared ahead, as many again while lanes
change theirs, and a few rounds of rows; nothing is written anywhere. Position ``n`` is the same row
for every reader, so a run is resumed by a number.

Decryption works ahead of the reader: in a process of its own where that helps (``loaders.aside``),
which also puts the rows of each batch in the order of its turn; else together with all shuffling in
a thread, which asks a store elsewhere for several batches at a time (``loaders.fetching``). A
reader that begins, as after a resume, gets its first rows as soon as the batches that hold them are
open.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import tee
from typing import TYPE_CHECKING, Any, Protocol, cast

from sealtrain.training.loaders.ahead import ahead
from sealtrain.training.loaders.aside import AHEAD_BATCHES, AHEAD_BYTES, Aside
from sealtrain.training.loaders.columns import Projection
from sealtrain.training.loaders.fetching import AT_A_TIME, Fetching, far
from sealtrain.training.loaders.order import MAX_LANES, Order, Pick, Round

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from sealtrain.training.sources import Source

    Indices = npt.NDArray[np.int64]

__all__ = ["RecordStream", "read_all"]

AHEAD_ROUNDS = 2
# Rows that are given before the rest of the first round: for a small batch, then a larger one.
FIRST_ROWS = (16, 48)
_OPENING_THREADS = 4


class _Decrypting(Protocol):
    """Sealed records whose batches are decrypted into memory given."""

    batch_rows: tuple[int, ...]

    def batch_bytes(self, number: int) -> int: ...
    def decrypt_into(self, number: int, view: memoryview[Any]) -> tuple[int, int]: ...
    def parsed(self, number: int, data: pa.Buffer) -> pa.RecordBatch: ...


class _Turned:
    """A record batch in the order of its turn: rows already in place, or picked out when asked."""

    __slots__ = ("_order", "_rows")

    def __init__(self, rows: pa.RecordBatch, order: Indices | None) -> None:
        self._rows, self._order = rows, order

    def part(self, start: int, stop: int) -> pa.RecordBatch:
        import pyarrow as pa

        if self._order is None:
            return self._rows.slice(start, stop - start)
        return self._rows.take(pa.array(self._order[start:stop]))

    def whole(self) -> pa.RecordBatch:
        return self.part(0, self._rows.num_rows)

    def at(self, places: Indices) -> pa.RecordBatch:
        import pyarrow as pa

        return self._rows.take(pa.array(places if self._order is None else self._order[places]))


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
        """The rows of each round, put together; of the first one a few before the rest."""
        import pyarrow as pa

        held: dict[int, _Turned] = {}
        early: dict[Pick, pa.RecordBatch] = {}
        rounds, beforehand = tee(self._touched(start, stop))
        picks = (pick for _, fresh in beforehand for pick in fresh if pick)
        with closing(self._shuffled(picks, early, aside=aside)) as shuffled:
            for current, fresh in rounds:
                low = max(0, start - current.start)
                high = current.rows if stop is None else min(current.rows, stop - current.start)
                low += (rank - current.start - low) % world
                for many in () if held else FIRST_ROWS:
                    few = current.order[low:high:world][:many]
                    if len(few):
                        yield self._beginning(current, few, early)
                        low += len(few) * world
                pieces = []
                for pick, first in zip(current.picks, fresh, strict=True):
                    if first is not None:
                        held[pick.lane] = next(shuffled)
                    pieces.append(held[pick.lane].part(pick.start, pick.stop))
                if low < high:
                    together = pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)
                    yield together.take(pa.array(current.order[low:high:world]))

    def _beginning(
        self, current: Round, few: Indices, early: dict[Pick, pa.RecordBatch]
    ) -> pa.RecordBatch:
        """Some rows of a round, of which only the batches that hold them are opened.

        Args:
            current: The round.
            few: Places of the rows in its picks, put together.
            early: Gets the opened batches.
        """
        import numpy as np
        import pyarrow as pa

        ends = np.cumsum([pick.stop - pick.start for pick in current.picks])
        which = np.searchsorted(ends, few, side="right")
        numbers = np.unique(which)
        picks = [current.picks[number] for number in numbers]
        new = [pick for pick in picks if pick not in early]
        early.update(zip(new, self._at_once(new), strict=True))
        pieces = []
        for number, pick in zip(numbers, picks, strict=True):
            inside = few[which == number] - ends[number] + pick.stop
            pieces.append(self._turned(pick, early[pick]).at(inside))
        # The pieces hold the rows by pick; back into the order of the stream.
        back = np.argsort(np.argsort(which, kind="stable"))
        return pa.concat_batches(pieces).take(pa.array(back))

    def _at_once(self, picks: Sequence[Pick]) -> list[pa.RecordBatch]:
        """The decrypted batches of several picks, in threads: the reader waits for them anyway."""
        datasets = [one.dataset for one in self._sources]
        threads = AT_A_TIME if far(datasets) else min(_OPENING_THREADS, os.cpu_count() or 1)
        if not self._ahead or threads == 1 or len(picks) < 2:
            return [datasets[pick.source].batch(pick.batch) for pick in picks]
        with ThreadPoolExecutor(threads, thread_name_prefix="sealtrain-opening") as pool:
            return list(pool.map(lambda pick: datasets[pick.source].batch(pick.batch), picks))

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

    def _shuffled(
        self, picks: Iterator[Pick], early: dict[Pick, pa.RecordBatch], *, aside: bool
    ) -> Generator[_Turned]:
        """The whole batch of each pick, projected, its rows in the order of that pick's turn."""
        with closing(self._opened(picks, early, aside=aside)) as opened:
            for pick, batch, waited in opened:
                if waited:
                    # Its rows are picked out as they are needed: a resumed run waits for them.
                    yield self._turned(pick, batch)
                else:  # all at once costs less
                    yield _Turned(batch if aside else self._turned(pick, batch).whole(), None)

    def _turned(self, pick: Pick, batch: pa.RecordBatch) -> _Turned:
        kept = self._projection.project(pick.source, batch)
        return _Turned(kept, self.order.shuffled(pick, kept.num_rows))

    def _opened(
        self, picks: Iterator[Pick], early: dict[Pick, pa.RecordBatch], *, aside: bool
    ) -> Generator[tuple[Pick, pa.RecordBatch, bool]]:
        """The decrypted batch of each pick, and whether it was among the early ones.

        One of the process aside is projected, and its rows are in the order of its turn.
        """
        datasets = [one.dataset for one in self._sources]
        if not aside and not (self._ahead and far(datasets)):
            for pick in picks:
                waited = early.pop(pick, None)
                batch = datasets[pick.source].batch(pick.batch) if waited is None else waited
                yield pick, batch, waited is not None
            return
        helper: Aside[Pick] | Fetching[Pick]
        if aside:
            helper, most = self._turning()
        else:
            helper, most = Fetching(lambda pick: datasets[pick.source].batch(pick.batch)), AT_A_TIME
        asked: deque[tuple[Pick, pa.RecordBatch | None]] = deque()
        with closing(helper) as decrypting:

            def oldest() -> tuple[Pick, pa.RecordBatch, bool]:
                pick, waited = asked.popleft()
                batch = decrypting.answer() if waited is None else waited
                return pick, batch, waited is not None

            for pick in picks:
                waited = early.pop(pick, None)
                if waited is None:
                    decrypting.ask(pick)
                asked.append((pick, waited))
                if len(asked) > most:
                    yield oldest()
            while asked:
                yield oldest()

    def _turning(self) -> tuple[Aside[Pick], int]:
        """A process that decrypts the batches of picks and turns them; how many to ask ahead."""
        import pyarrow as pa

        datasets = [cast("_Decrypting", one.dataset) for one in self._sources]
        largest = max(
            one.batch_bytes(number) for one in datasets for number in range(len(one.batch_rows))
        )
        # One for all batches, whose rows are copied out of it: it stays in a cache.
        room = pa.allocate_buffer(largest)

        def turned(pick: Pick) -> pa.RecordBatch:
            dataset = datasets[pick.source]
            with memoryview(room) as given, given.cast("B") as view:
                begin, length = dataset.decrypt_into(pick.batch, view)
            return self._turned(pick, dataset.parsed(pick.batch, room.slice(begin, length))).whole()

        # Lanes whose batches have equally many rows come to the end of them together: without as
        # many that wait prepared, the reader would stand still then and the process in between;
        # and until that round is put together, the batches that came to their end are held too.
        most = max(AHEAD_BATCHES, min(self.order.lanes, AHEAD_BYTES // largest))
        return Aside(turned, slots=self.order.lanes + 2 * most + 2, largest=largest), most


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
    datasets = [source.dataset for source in sources]
    wanted = (
        (number, batch)
        for number, dataset in enumerate(datasets)
        for batch in range(len(dataset.batch_rows))
    )
    if not far(datasets):
        for number, batch in wanted:
            yield projection.project(number, datasets[number].batch(batch))
        return
    asked: deque[int] = deque()
    fetching: Fetching[tuple[int, int]] = Fetching(lambda one: datasets[one[0]].batch(one[1]))
    with closing(fetching):
        for place in wanted:
            fetching.ask(place)
            asked.append(place[0])
            if len(asked) > AT_A_TIME:
                yield projection.project(asked.popleft(), fetching.answer())
        while asked:
            yield projection.project(asked.popleft(), fetching.answer())
