"""Opened record batches in the order of their picks, shuffled for their turn.

Two ways, by where the data lies:

- ``Here`` opens batches one by one. Lanes whose batches have equally many rows all come to their
  next batch in the same round, so it opens a few in every round and none has to open all of them.
- ``Elsewhere`` has several asked for at a time, because each answer is waited for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Protocol

from sealtrain.training.loaders.fetching import AT_A_TIME, Fetching
from sealtrain.training.loaders.order import Pick

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    Indices = npt.NDArray[np.int64]

__all__ = ["Elsewhere", "Here", "Opening", "Turned"]

AHEAD_BYTES: Final = 64 << 20
"""Opened batches that wait for their round, in bytes."""


class Turned:
    """A record batch in the order of its turn: rows already in place, or picked out when asked."""

    __slots__ = ("_order", "_rows")

    def __init__(self, rows: pa.RecordBatch, order: Indices | None) -> None:
        """Take the rows.

        Args:
            rows: All rows of the batch.
            order: Their order, or ``None`` where they are in it.
        """
        self._rows, self._order = rows, order

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        size: int = self._rows.nbytes
        return size

    def part(self, start: int, stop: int) -> pa.RecordBatch:
        """Rows ``start`` … ``stop`` of the order."""
        import pyarrow as pa

        if self._order is None:
            return self._rows.slice(start, stop - start)
        return self._rows.take(pa.array(self._order[start:stop]))

    def whole(self) -> Turned:
        """The same with its rows in place: picking all at once costs less than part by part."""
        return Turned(self.part(0, self._rows.num_rows), None)

    def at(self, places: Indices) -> pa.RecordBatch:
        """The rows at these places of the order."""
        import pyarrow as pa

        return self._rows.take(pa.array(places if self._order is None else self._order[places]))


class Opening(Protocol):
    """Where a stream gets its batches from."""

    def take(self) -> Turned:
        """The batch of the next pick; raises what opening it raised."""

    def work_ahead(self, batches: int) -> None:
        """Open up to so many batches that were not asked for yet."""

    def close(self) -> None:
        """Let go of everything opened."""


class Here:
    """Opens batches in this thread."""

    def __init__(self, picks: Iterator[Pick], open_batch: Callable[[Pick], Turned]) -> None:
        """Open nothing yet.

        Args:
            picks: In the order in which ``take`` is called for them.
            open_batch: Opens the batch of one.
        """
        self._picks, self._open = picks, open_batch
        self._ready: deque[Turned] = deque()
        self._bytes = 0

    def take(self) -> Turned:
        """As ``Opening``."""
        if not self._ready:
            return self._open(next(self._picks))
        turned = self._ready.popleft()
        self._bytes -= turned.nbytes
        return turned

    def work_ahead(self, batches: int) -> None:
        """As ``Opening``; stops where ``AHEAD_BYTES`` wait."""
        for _ in range(batches):
            if self._bytes >= AHEAD_BYTES or (pick := next(self._picks, None)) is None:
                return
            turned = self._open(pick)
            self._bytes += turned.nbytes
            self._ready.append(turned)

    def close(self) -> None:
        """As ``Opening``."""
        self._ready.clear()


class Elsewhere:
    """Has up to ``AT_A_TIME`` batches beyond the one that is taken fetched in threads."""

    def __init__(self, picks: Iterator[Pick], open_batch: Callable[[Pick], Turned]) -> None:
        """As ``Here``; ``open_batch`` is called in several threads."""
        self._picks = picks
        self._fetching: Fetching[Pick, Turned] = Fetching(open_batch)
        self._asked = 0

    def take(self) -> Turned:
        """As ``Opening``."""
        while self._asked <= AT_A_TIME and (pick := next(self._picks, None)) is not None:
            self._fetching.ask(pick)
            self._asked += 1
        self._asked -= 1
        return self._fetching.answer()

    def work_ahead(self, batches: int) -> None:
        """Nothing: as many as may be are under way."""

    def close(self) -> None:
        """As ``Opening``."""
        self._fetching.close()
