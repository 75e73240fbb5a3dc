"""Opened record batches in the order of their picks, shuffled for their turn.

Three ways to open them, by where the data lies and what the machine has:

- ``here`` opens one after the other;
- ``beside`` has a process open them, which also shuffles those for which it has the time;
- ``elsewhere`` has several fetched at a time, because each answer is waited for.

Lanes whose batches have equally many rows all come to their next batch in the same round. With
``Evenly`` a few are opened in every round, and none has to wait for all of them then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Final, Protocol

from sealtrain.training.data.fetching import fetched
from sealtrain.training.data.order import Pick
from sealtrain.training.data.prefetch_process import PrefetchProcess

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    Indices = npt.NDArray[np.int64]

__all__ = ["Batches", "Evenly", "Turned", "beside", "elsewhere", "here"]

AHEAD_BYTES: Final = 8 << 20
"""Opened batches that wait for their round, in bytes."""


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

    def opened(self, pick: Pick) -> pa.RecordBatch:
        """The batch of a pick as it was sealed, in the stream's columns. In any thread."""

    def turned(self, pick: Pick, batch: pa.RecordBatch) -> Turned:
        """That batch in the order of the pick's turn."""

    def waiting(self, pick: Pick) -> Turned | None:
        """The batch of a pick where it is open already. It is given once."""


def here(picks: Iterator[Pick], batches: Batches) -> Generator[Turned]:
    """Open in this thread, when asked."""
    for pick in picks:
        yield batches.waiting(pick) or batches.turned(pick, batches.opened(pick)).whole()


def beside(picks: Iterator[Pick], batches: Batches, *, largest: int) -> Generator[Turned]:
    """Have a forked process open batches.

    Args:
        picks: An iterator that no other part of this process has begun.
        batches: Of the stream.
        largest: Bytes of a batch, as a rule at most.
    """
    # The process iterates a copy of both of these, and what waits here waits there too.
    missing = (pick for pick in picks if batches.waiting(pick) is None)
    process = PrefetchProcess(
        missing,
        batches.opened,
        finish=lambda pick, batch: batches.turned(pick, batch).whole().rows,
        largest=largest,
    )
    with closing(process):
        for pick in picks:
            waiting = batches.waiting(pick)
            if waiting is not None:
                yield waiting
                continue
            batch, finished = process.take()
            yield Turned(batch) if finished else batches.turned(pick, batch).whole()


def elsewhere(picks: Iterator[Pick], batches: Batches) -> Generator[Turned]:
    """Have several batches fetched at a time, in threads."""

    def turned(pick: Pick) -> Turned:
        return batches.waiting(pick) or batches.turned(pick, batches.opened(pick)).whole()

    return fetched(turned, picks)


class Evenly:
    """Takes batches when they are needed, and some before."""

    def __init__(self, turned: Generator[Turned]) -> None:
        """Open nothing yet.

        Args:
            turned: From one of the functions above.
        """
        self._turned = turned
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
        """Open up to so many batches that were not taken yet, unless ``AHEAD_BYTES`` wait."""
        for _ in range(batches):
            turned = next(self._turned, None) if self._bytes < AHEAD_BYTES else None
            if turned is None:
                return
            self._bytes += turned.rows.nbytes
            self._ready.append(turned)

    def close(self) -> None:
        """Let go of everything opened."""
        self._ready.clear()
        self._turned.close()
