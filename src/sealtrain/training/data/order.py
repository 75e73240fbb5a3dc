"""The order of a training stream: a pure function of seed, batch sizes and weights.

The stream is endless. Each source's record batches are dealt once, by seed, to *lanes*. A lane
walks its batches in a fresh random order on every pass and permutes the rows inside each batch, so
one decrypted batch per lane is all a reader holds. *Rounds* of up to a few thousand rows take its
exact share from every lane and permute the result: neighbours in the stream come from all owners.

Promises:

1. With equal weights every epoch holds every row exactly once; nothing is dropped at its end.
2. A row of a source with weight 2w comes up twice as often as one of weight w, and all rows of a
   source equally often, give or take one. A capped source gives no epoch more rows than its cap;
   the next epoch goes on where this one stopped, so that in time every row comes up.
3. Any position is found in time that does not grow with it: the state of a run is one integer.
4. The order does not depend on how many processes read it.

An example: one owner has record batches of 3 and 2 rows and weight 1, another has one batch of 4
rows and weight 2. Each has one lane. An epoch holds 3 + 2 + 2 * 4 = 13 rows, which fit in one
round: the first lane walks both its batches, the second walks its only batch twice, in turns 0 and
1::

    >>> order = Order([[3, 2], [4]], [1.0, 2.0], seed=1, lanes=2)
    >>> order.epoch_rows()
    13
    >>> first = order.round(epoch=0, number=0)
    >>> [(pick.source, pick.batch, pick.turn, pick.start, pick.stop) for pick in first.picks]
    [(0, 0, 0, 0, 3), (0, 1, 0, 0, 2), (1, 0, 0, 0, 4), (1, 0, 1, 0, 4)]

Each pick's batch is shuffled for its turn, so the two turns of one batch differ::

    >>> [order.shuffle(pick, rows).tolist() for pick, rows in zip(first.picks, (3, 2, 4, 4))]
    [[0, 2, 1], [0, 1], [0, 2, 3, 1], [0, 1, 2, 3]]

The shuffled batches are concatenated, and the round's own permutation takes rows from them. The
stream begins with place 2, the last row of the first pick, and goes on with place 8, the last of
the third::

    >>> first.order.tolist()
    [2, 8, 11, 3, 0, 12, 10, 4, 6, 5, 9, 7, 1]

A run that was interrupted after 13 rows continues with the first round of the next epoch::

    >>> order.place(13)
    StreamPlace(epoch=1, round=0)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from sealtrain.errors import DataInvalid

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Indices = npt.NDArray[np.int64]
    Counts = npt.NDArray[np.uint32]

MAX_LANES = 32
MIN_ROUND_ROWS = 16
MAX_ROUND_ROWS = 4096
# Domain tags of the random streams, so that no two uses share one.
_LANES, _PASS, _ROWS, _ROUND = range(4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """Rows ``start`` … ``stop`` of one shuffled record batch.

    Attributes:
        lane: Which lane asks; a reader keeps one shuffled batch per lane.
        turn: Pass of the lane, which decides how the batch is shuffled.
        source: Position of the source.
        batch: Record batch of the source.
        start: First row of the shuffled batch.
        stop: Row after the last.
    """

    lane: int
    turn: int
    source: int
    batch: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """A stretch of the stream: concatenate the picks, then take ``order``.

    Attributes:
        start: Position of its first row in the stream.
        picks: By lane.
        order: Permutation of the concatenated rows, int64.
    """

    start: int
    picks: tuple[Pick, ...]
    order: Indices

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.order)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlace:
    """Where a stream position lies.

    Attributes:
        epoch: Number of whole epochs before it.
        round: Round of the epoch that holds it.
    """

    epoch: int
    round: int


class _Lane:
    """Some record batches of one source, walked again and again."""

    def __init__(
        self, number: int, source: int, batches: Counts, rows: Counts, share: Fraction, seed: int
    ) -> None:
        self.number, self.source = number, source
        self._batches, self._rows, self._seed = batches, rows, seed
        self._share = share
        self.total = int(rows.sum(dtype="int64"))
        self._pass: tuple[int, memoryview, memoryview] | None = None

    @property
    def epoch_rows(self) -> Fraction:
        """Rows it gives to an epoch, on average."""
        return self._share * self.total

    def before(self, epoch: int) -> int:
        """Rows of the lane's endless walk that lie before ``epoch``."""
        return int(epoch * self.epoch_rows)

    def picks(self, start: int, stop: int) -> list[Pick]:
        """Rows ``start`` … ``stop`` of the walk."""
        found = []
        while start < stop:
            turn, offset = divmod(start, self.total)
            walk, ends = self._walk(turn)
            at = bisect_right(ends, offset)
            begin = ends[at - 1] if at else 0
            count = min(ends[at] - offset, stop - start)
            first = offset - begin
            found.append(
                Pick(
                    lane=self.number,
                    turn=turn,
                    source=self.source,
                    batch=walk[at],
                    start=first,
                    stop=first + count,
                )
            )
            start += count
        return found

    def _walk(self, turn: int) -> tuple[memoryview, memoryview]:
        """The lane's batches in the order of a pass, and where each of them ends."""
        import numpy as np

        if self._pass is None or self._pass[0] != turn:
            generator = np.random.default_rng([self._seed, _PASS, self.number, turn])
            walk = generator.permutation(len(self._batches))
            ends = np.cumsum(self._rows[walk], dtype=np.int64)
            # One number at a time is looked up, which takes numpy ten times as long; lists would
            # take eight times the memory of the smaller numbers.
            self._pass = turn, self._batches[walk].data, ends.data
        return self._pass[1], self._pass[2]


class Order:
    """The stream over several sources."""

    def __init__(
        self,
        batch_rows: Sequence[Sequence[int]],
        weights: Sequence[float],
        *,
        seed: int,
        lanes: int = MAX_LANES,
        caps: Sequence[int | None] | None = None,
    ) -> None:
        """Deal the batches to lanes.

        Args:
            batch_rows: Rows of each record batch, by source.
            weights: Relative frequency of each source's rows; above 0.
            seed: 0 … 2**64 - 1.
            lanes: Lanes over all sources; every source has at least one.
            caps: Most rows of each source in an epoch; ``None`` where its weight decides alone.

        Raises:
            DataInvalid: There is no row at all.
        """
        import numpy as np

        self._seed = seed
        counts = [np.asarray(rows, dtype=np.uint32) for rows in batch_rows]
        filled = [source for source, rows in enumerate(counts) if rows.any()]
        if not filled:
            raise DataInvalid("training data holds no record", hint="the sealed datasets are empty")
        # Decimal text, so that a weight of 0.1 is a tenth and not its nearest binary fraction.
        exact = [Fraction(repr(float(weight))) for weight in weights]
        least = min(exact[source] for source in filled)
        self._lanes: list[_Lane] = []
        self._groups: list[tuple[list[_Lane], int | None]] = []
        for source in filled:
            rows = counts[source]
            generator = np.random.default_rng([seed, _LANES, source])
            dealt = generator.permutation(np.flatnonzero(rows)).astype(np.uint32)
            count = min(len(dealt), max(1, lanes // len(filled)))
            for first in range(count):
                mine = dealt[first::count]
                share = exact[source] / least
                self._lanes.append(_Lane(len(self._lanes), source, mine, rows[mine], share, seed))
            own = self._lanes[-count:]
            cap = caps[source] if caps else None
            wanted = sum((lane.epoch_rows for lane in own), Fraction(0))
            self._groups.append((own, cap if cap is not None and cap < wanted else None))
        self._laid_out: tuple[int, list[int], list[int]] | None = None
        self._epoch_rows = sum(
            (
                sum((lane.epoch_rows for lane in own), Fraction(0))
                if cap is None
                else Fraction(cap)
                for own, cap in self._groups
            ),
            Fraction(0),
        )
        largest = max(int(rows.max(initial=0)) for rows in counts)
        self.round_rows = min(MAX_ROUND_ROWS, max(MIN_ROUND_ROWS, 4 * largest))

    @property
    def lanes(self) -> int:
        """Lanes over all sources."""
        return len(self._lanes)

    def before(self, epoch: int) -> int:
        """Rows of the stream that lie before ``epoch``."""
        return sum(self._starts(epoch))

    def epoch_rows(self, epoch: int = 0) -> int:
        """Rows of one epoch; with fractional weights epochs differ by a row or two."""
        return sum(self._epoch(epoch)[1])

    def full_turn(self) -> int:
        """So many rows, from any position on, hold every row of every source."""
        # The first row of a pass may be the last of the next, and a position may cut an epoch.
        epochs = [
            -(-2 * sum(lane.total for lane in own) // cap)
            for own, cap in self._groups
            if cap is not None
        ]
        return self.before(max([2, *epochs]) + 1)

    def place(self, row: int) -> StreamPlace:
        """Find a position of the stream."""
        epoch = int(row / self._epoch_rows)
        while self.before(epoch + 1) <= row:
            epoch += 1
        while self.before(epoch) > row:
            epoch -= 1
        offset = row - self.before(epoch)
        _starts, counts = self._epoch(epoch)
        number = offset // self.round_rows
        while sum(self._count_given(counts, number + 1)) <= offset:
            number += 1
        while sum(self._count_given(counts, number)) > offset:
            number -= 1
        return StreamPlace(epoch=epoch, round=number)

    def rounds_in(self, epoch: int) -> int:
        """Number of rounds of an epoch."""
        return -(-self.epoch_rows(epoch) // self.round_rows)

    def round(self, epoch: int, number: int) -> Round:
        """One round of an epoch; the last one may be short."""
        import numpy as np

        starts, counts = self._epoch(epoch)
        lows, highs = self._count_given(counts, number), self._count_given(counts, number + 1)
        picks: list[Pick] = []
        for lane, start, low, high in zip(self._lanes, starts, lows, highs, strict=True):
            picks.extend(lane.picks(start + low, start + high))
        generator = np.random.default_rng([self._seed, _ROUND, epoch, number])
        return Round(
            start=sum(starts) + sum(lows),
            picks=tuple(picks),
            order=generator.permutation(sum(highs) - sum(lows)),
        )

    def shuffle(self, pick: Pick, rows: int) -> Indices:
        """How the batch of a pick is shuffled: a permutation of its ``rows`` rows, int64."""
        import numpy as np

        generator = np.random.default_rng([self._seed, _ROWS, pick.lane, pick.turn, pick.batch])
        return generator.permutation(rows)

    def _epoch(self, epoch: int) -> tuple[list[int], list[int]]:
        """Where every lane's walk is at the beginning of an epoch, and its rows in it."""
        if self._laid_out is None or self._laid_out[0] != epoch:
            starts, ends = self._starts(epoch), self._starts(epoch + 1)
            counts = [end - start for start, end in zip(starts, ends, strict=True)]
            self._laid_out = epoch, starts, counts
        return self._laid_out[1], self._laid_out[2]

    def _starts(self, epoch: int) -> list[int]:
        """Rows of every lane's walk that lie before an epoch."""
        starts: list[int] = []
        for own, cap in self._groups:
            if cap is None:
                starts.extend(lane.before(epoch) for lane in own)
            else:
                starts.extend(divide(epoch * cap, [lane.total for lane in own]))
        return starts

    def _count_given(self, counts: list[int], rounds: int) -> list[int]:
        """Rows of each lane in the first ``rounds`` rounds of an epoch.

        Every lane's share is rounded by itself and so never runs backwards, as shares that are
        made to sum up would; rounds differ from ``round_rows`` by half a row per lane at most.
        """
        total = sum(counts)
        passed = min(rounds * self.round_rows, total)
        return [(2 * count * passed + total) // (2 * total) for count in counts]


def divide(amount: int, sizes: Sequence[int]) -> list[int]:
    """Parts of ``amount`` in proportion to ``sizes``.

    The parts sum up to ``amount`` and each grows, or stays, as ``amount`` grows: Webster's method
    of equal proportions. Rounding each part by itself misses the sum; correcting the sum makes a
    part run backwards now and then.

    Args:
        amount: What to divide, ≥ 0.
        sizes: Above 0; at least one.
    """
    # A party's next seat goes to the highest size / (2 seats + 1), the lower position on a tie.
    whole, rest = divmod(amount, sum(sizes))  # whole rounds give everybody exactly their size
    parts = [rest * size // sum(sizes) for size in sizes]
    while sum(parts) < rest:
        parts[_next(parts, sizes)] += 1
    # Beginning at the lower quota may give a party more than the method does: give back, then on.
    while any(parts):
        last = _last(parts, sizes)
        following = _next(parts, sizes)
        if _claim(parts[following], sizes[following], following) <= _claim(
            parts[last] - 1, sizes[last], last
        ):
            break
        parts[last] -= 1
        parts[following] += 1
    return [whole * size + part for size, part in zip(sizes, parts, strict=True)]


def _claim(part: int, size: int, position: int) -> tuple[Fraction, int]:
    """How strongly a party of ``part`` seats asks for the next one; the greatest gets it."""
    return Fraction(size, 2 * part + 1), -position


def _next(parts: Sequence[int], sizes: Sequence[int]) -> int:
    return max(range(len(sizes)), key=lambda at: _claim(parts[at], sizes[at], at))


def _last(parts: Sequence[int], sizes: Sequence[int]) -> int:
    holders = [at for at in range(len(sizes)) if parts[at]]
    return min(holders, key=lambda at: _claim(parts[at] - 1, sizes[at], at))
