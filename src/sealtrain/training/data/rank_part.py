"""Which rows of every step one of several ranks reads, so that few of them need one record batch.

A step takes the same rows of the stream for any number of ranks. Rows of a round come from all
lanes at once. Dealt out by position, each rank would need every record batch, and the work of
opening them would grow with the number of ranks. So the rows of a step are put in the order of
their lanes, and each rank takes one stretch of that: of *n* ranks each opens little more than an
*n*-th of all batches, up to as many ranks as there are lanes.

A step may reach over rounds. Of each piece, the rows of one step in one round, a rank takes as many
as positions of the piece leave its number when they are divided by the number of ranks; these add
up to an equal share of the step. Which rank reads a row follows from the row's position, the rows
of a step and the number of ranks, and from nothing that was read before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from sealtrain.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from sealtrain.training.data.order import Round

    Indices = npt.NDArray[np.int64]


class RowShare(Protocol):
    """Rows of the stream that one reader of several takes."""

    @property
    def world(self) -> int:
        """Number of readers; one reader takes every row."""

    def places(self, current: Round, start: int = 0, stop: int | None = None) -> Indices:
        """Places in a round of the reader's rows, ascending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPart:
    """The rows that one rank reads.

    Attributes:
        rank: 0 … ``world`` - 1.
        world: Number of ranks, ≥ 1.
        step: Rows that all ranks together take in a step: a multiple of ``world``.

    Raises:
        UsageError: The ranks cannot take equal shares of a step, or there is no such rank.
    """

    rank: int = 0
    world: int = 1
    step: int = 1

    def __post_init__(self) -> None:
        """Refuse a part that leaves rows to no rank."""
        if not 0 <= self.rank < self.world or self.step < 1 or self.step % self.world:
            raise UsageError(
                "a step cannot be divided among these ranks",
                check="part",
                got=f"rank {self.rank} of {self.world}, {self.step} rows a step",
                expected="rows of a step that are a multiple of the number of ranks",
            )

    def places(self, current: Round, start: int = 0, stop: int | None = None) -> Indices:
        """Places in a round of the rank's rows, ascending.

        Args:
            start: Position in the stream of the first row that counts.
            stop: Position after the last; the whole round when ``None``.
        """
        import numpy as np

        low = max(0, start - current.start)
        high = current.rows if stop is None else min(current.rows, stop - current.start)
        if self.world == 1:
            return np.arange(low, high)
        places = self._of_round(current)
        return places[np.searchsorted(places, low) : np.searchsorted(places, high)]

    def _of_round(self, current: Round) -> Indices:
        """All of the rank's places in a round."""
        import numpy as np

        begun = current.start % self.step  # rows of its first step that earlier rounds gave
        head = min(-current.start % self.step, current.rows)
        steps, tail = divmod(current.rows - head, self.step)
        behind = current.rows - tail
        whole = current.order[head:behind].reshape(steps, self.step)
        return np.concatenate(
            [
                self._of_pieces(current.order[:head][None], begun),
                head + self._of_pieces(whole, 0),
                behind + self._of_pieces(current.order[behind:][None], 0),
            ]
        )

    def _of_pieces(self, pieces: Indices, before: int) -> Indices:
        """The rank's places in equally long pieces of steps, one after the other.

        Args:
            pieces: Rows as places in the picks of their round, which are in the order of lanes;
                (pieces, rows of a piece).
            before: Rows of the same step that came before a piece.
        """
        import numpy as np

        number, size = pieces.shape
        first = self._below(before + size) - self._below(before)
        after = self._below(before + size, 1) - self._below(before, 1)
        mine: Indices = np.sort(np.argsort(pieces, axis=1)[:, first:after], axis=1)
        mine += np.arange(number)[:, None] * size
        return mine.ravel()

    def _below(self, rows: int, more: int = 0) -> int:
        """How many of the first rows of a step go to ranks below ``rank + more``."""
        ranks = self.rank + more
        return rows // self.world * ranks + min(rows % self.world, ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnBatches:
    """The rows of the record batches that one rank opens; no batch belongs to two ranks.

    A batch belongs to the same rank in every pass. Of ``lanes`` that are a multiple of ``world``
    each rank has equally many; with more ranks than lanes, a lane's next batch is another rank's.

    Attributes:
        rank: 0 … ``world`` - 1.
        world: Number of ranks, ≥ 1.
        lanes: Of the order, ≥ 1.
    """

    rank: int
    world: int
    lanes: int

    def places(self, current: Round, start: int = 0, stop: int | None = None) -> Indices:
        """As ``RankPart.places``."""
        import numpy as np

        low = max(0, start - current.start)
        high = current.rows if stop is None else min(current.rows, stop - current.start)
        ends = np.cumsum([pick.stop - pick.start for pick in current.picks])
        mine = np.array(
            [
                (pick.lane + self.lanes * pick.batch) % self.world == self.rank
                for pick in current.picks
            ]
        )
        picks = np.searchsorted(ends, current.order[low:high], side="right")
        return low + np.flatnonzero(mine[picks])


WHOLE = RankPart()
"""Every row: the part of a rank that is alone."""
