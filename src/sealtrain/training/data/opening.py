"""Opened record batches in the order of their picks, shuffled for their turn.

Three ways to open them, by where the data lies and what the machine has:

- ``OpenHere`` opens one after the other;
- ``OpenInProcess`` has a forked process open them;
- ``OpenFetched`` has several fetched at a time from a store elsewhere.

Lanes whose batches have equally many rows all come to their next batch in the same round. With
``Evenly`` a few are opened in every round, and none has to wait for all of them then.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from sealtrain.training.data.fetching import AT_A_TIME, far, fetch_ahead
from sealtrain.training.data.order import Pick
from sealtrain.training.data.prefetch_process import PrefetchProcess

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from sealtrain.training.data.sources import BatchedRecords

    Indices = npt.NDArray[np.int64]

AHEAD_BYTES: Final = 8 << 20
"""Opened batches that wait for their round, in bytes."""
_FIRST_THREADS: Final = 4


class Turned:
    """A record batch in the order of its turn.

    Attributes:
        rows: All rows of the batch.
        order: Their order, or ``None`` where they are in it.
    """

    __slots__ = ("order", "rows")

    def __init__(self, rows: pa.RecordBatch, order: Indices | None = None) -> None:
        self.rows, self.order = rows, order

    def part(self, start: int, stop: int) -> pa.RecordBatch:
        """Rows ``start`` … ``stop`` of the order."""
        import pyarrow as pa

        if self.order is None:
            return self.rows.slice(start, stop - start)
        return self.rows.take(pa.array(self.order[start:stop]))

    def whole(self) -> Turned:
        """The same with its rows in place: picking all at once costs less than part by part."""
        return Turned(self.part(0, self.rows.num_rows))

    def at(self, places: Indices) -> pa.RecordBatch:
        """The rows at these places of the order."""
        import pyarrow as pa

        return self.rows.take(pa.array(places if self.order is None else self.order[places]))


class Batches(Protocol):
    """What a stream knows of its batches."""

    def open(self, pick: Pick) -> pa.RecordBatch:
        """The batch of a pick as it was sealed, in the stream's columns. In any thread."""

    def turn(self, pick: Pick, batch: pa.RecordBatch) -> Turned:
        """That batch in the order of the pick's turn."""

    def waiting(self, pick: Pick) -> Turned | None:
        """The batch of a pick where it is open already. It is given once."""


class BatchOpener(Protocol):
    """One of the ways to open the batches of a stream."""

    @property
    def threads(self) -> int:
        """Threads that open the batches of a reader's first rows, for which it waits anyway."""

    @property
    def prefetches(self) -> bool:
        """Whether the reader's own work may run ahead in a thread."""

    def open(self, picks: Iterator[Pick], batches: Batches) -> Generator[Turned]:
        """The shuffled batches of picks, in their order.

        Args:
            picks: An iterator that no other part of this process has begun.
            batches: Of the stream.
        """


@dataclass(frozen=True, slots=True)
class OpenHere:
    """Opens in the reader's thread, when asked."""

    threads: int = 1
    prefetches: bool = True

    def open(self, picks: Iterator[Pick], batches: Batches) -> Generator[Turned]:
        """As ``BatchOpener.open``."""
        for pick in picks:
            yield batches.waiting(pick) or batches.turn(pick, batches.open(pick)).whole()


@dataclass(frozen=True, slots=True)
class OpenInProcess:
    """Has a forked process open batches, which also shuffles those for which it has the time.

    Attributes:
        largest: Bytes of a batch, as a rule at most.
    """

    largest: int
    threads: int = 1
    # A thread beside the reader would wait milliseconds for the interpreter lock each turn.
    prefetches: bool = False

    def open(self, picks: Iterator[Pick], batches: Batches) -> Generator[Turned]:
        """As ``BatchOpener.open``."""
        # The process iterates a copy of both of these, and what waits here waits there too.
        missing = (pick for pick in picks if batches.waiting(pick) is None)
        process = PrefetchProcess(
            missing,
            batches.open,
            finish=lambda pick, batch: batches.turn(pick, batch).whole().rows,
            largest=self.largest,
        )
        with closing(process):
            for pick in picks:
                waiting = batches.waiting(pick)
                if waiting is not None:
                    yield waiting
                    continue
                batch, finished = process.take()
                yield Turned(batch) if finished else batches.turn(pick, batch).whole()


@dataclass(frozen=True, slots=True)
class OpenFetched:
    """Has several batches fetched at a time in threads, because each answer is waited for."""

    threads: int = AT_A_TIME
    prefetches: bool = True

    def open(self, picks: Iterator[Pick], batches: Batches) -> Generator[Turned]:
        """As ``BatchOpener.open``."""

        def turn(pick: Pick) -> Turned:
            return batches.waiting(pick) or batches.turn(pick, batches.open(pick)).whole()

        return fetch_ahead(turn, picks)


def opener_for(datasets: Sequence[BatchedRecords], *, ahead: bool) -> BatchOpener:
    """The way to open batches of these datasets on this machine.

    Args:
        datasets: All of a stream.
        ahead: Work ahead of the reader; else everything is done when the reader asks for it.
    """
    if not ahead:
        return OpenHere()
    if far(datasets):
        return OpenFetched()
    threads = min(_FIRST_THREADS, os.cpu_count() or 1)
    if PrefetchProcess.helps(datasets):
        return OpenInProcess(largest_batch(datasets), threads)
    return OpenHere(threads)


def largest_batch(datasets: Sequence[BatchedRecords]) -> int:
    """Bytes of the longest batch, 0 where the datasets do not say."""
    return max(getattr(dataset, "largest_batch", 0) for dataset in datasets)


class Evenly:
    """Takes batches when they are needed, and some before."""

    def __init__(self, turned: Generator[Turned], *, ahead_bytes: int = AHEAD_BYTES) -> None:
        """Open nothing yet.

        Args:
            turned: From ``BatchOpener.open``.
            ahead_bytes: Bytes of batches that may wait; the last one may exceed it.
        """
        self._turned = turned
        self._ahead_bytes = ahead_bytes
        self._ready: deque[Turned] = deque()
        self._bytes = 0

    def take(self) -> Turned:
        """The next batch; raises what opening it raised."""
        if not self._ready:
            return next(self._turned)
        turned = self._ready.popleft()
        self._bytes -= turned.rows.nbytes
        return turned

    def work_ahead(self, batches: int) -> None:
        """Open up to so many batches that were not taken yet, unless enough wait already."""
        for _ in range(batches):
            turned = next(self._turned, None) if self._bytes < self._ahead_bytes else None
            if turned is None:
                return
            self._bytes += turned.rows.nbytes
            self._ready.append(turned)

    def close(self) -> None:
        """Let go of everything opened."""
        self._ready.clear()
        self._turned.close()
