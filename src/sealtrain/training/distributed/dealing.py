"""Training rows that several ranks prepare together: each record batch is opened by one rank.

A trainer deals rows out by their position: rows ``n`` … ``n + size`` of a step go to one rank,
whatever lane they come from, and a row that the trainer drops moves all rows after it. Read that
way, every rank opens every record batch and prepares every row, its own or not, and the work grows
with the number of ranks. Here each rank opens batches of its own (``OwnBatches``) and prepares
their rows. The ranks tell each other which rows were kept, and send each row to the rank that
trains on it: every rank trains on the rows that it would have found by itself, in the same order.

The stream is walked in windows of several steps' rows, the same in all ranks. In each:

1. a rank reads the rows of its own batches, and the trainer's maps and filters run over them;
2. all ranks learn the positions of the rows that were kept;
3. each row is sent to the rank of its position, over the group that also carries gradients.

Blocks of tokens (``cpt``) reach over records of all lanes, and which tokens a block holds follows
from the length of every record before it. There, every rank gets the tokens of every record from
the rank that opened it (``share_rows``). Where rows are prepared several at once (KTO's
unmatched answers, repeated prompts), every rank gets every record and prepares it
(``read_together``). Only scripts, whose ranks need not read alike, open every batch in every rank.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

import torch.utils.data
from datasets.iterable_dataset import (
    FilteredExamplesIterable,
    MappedExamplesIterable,
    SelectColumnsIterable,
)

from sealtrain.recipe.conversations import read_rows
from sealtrain.training.data.hugging import Positioned, nothing_kept
from sealtrain.training.data.rank_part import OwnBatches
from sealtrain.training.distributed.agreement import exchange_parcels, gather_values
from sealtrain.training.distributed.ranks import place

if TYPE_CHECKING:
    import pyarrow as pa

WINDOW_BATCHES: Final = 4
"""Batches of every rank that a window holds, where no row is dropped."""
_SHARED_ROWS: Final = 32
"""Rows of every rank in a window of ``share_rows``."""
_ONE_BY_ONE: Final = (MappedExamplesIterable, FilteredExamplesIterable, SelectColumnsIterable)

Value = TypeVar("Value")
Window = tuple[list[int], list["pa.RecordBatch"]]
"""Positions of some rows, ascending, and the rows."""


class DealtRows(torch.utils.data.IterableDataset[dict[str, Any]]):
    """This rank's rows of a dataset over a sealed stream, as the trainer would deal them out.

    Attributes:
        dataset: Maps and filters the rows of the stream, one at a time.
    """

    def __init__(self, dataset: Iterable[dict[str, Any]], stream: Positioned, size: int) -> None:
        """Read nothing yet.

        Args:
            dataset: Over ``stream``.
            stream: Its position will be the one behind the last batch of all ranks.
            size: Rows of a rank's batch.
        """
        self.dataset = dataset
        self._stream, self._size = stream, size

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """This rank's rows, one batch of all ranks after the other; all ranks take part.

        Raises:
            DataInvalid: No rank kept any row.
        """
        mine, size = place(), self._size
        step = size * mine.world
        waiting: deque[tuple[int, Any]] = deque()  # of all ranks; another rank's without its row
        given = dropped = 0
        full_turn = self._stream.stream.order.full_turn()
        for kept in self._windows(WINDOW_BATCHES * step):
            found = gather_values([position for position, _ in kept])
            of_all = sorted((at, rank) for rank, positions in enumerate(found) for at in positions)
            dropped = 0 if of_all else dropped + WINDOW_BATCHES * step
            if dropped > full_turn:
                raise nothing_kept()
            first = given + len(waiting)
            taker = {
                position: slot % step // size for slot, (position, _) in enumerate(of_all, first)
            }
            parcels: list[list[Any]] = [[] for _ in range(mine.world)]
            for position, row in kept:
                parcels[taker[position]].append(row)
            received = [iter(parcel) for parcel in exchange_parcels(parcels)]
            for position, opener in of_all:
                own = taker[position] == mine.rank
                waiting.append((position, next(received[opener]) if own else None))
            while len(waiting) >= step:
                batch = [waiting.popleft() for _ in range(step)]
                given += step
                self._stream.position = batch[-1][0] + 1
                for _, row in batch[mine.rank * size : (mine.rank + 1) * size]:
                    yield row

    def _windows(self, size: int) -> Iterator[list[tuple[int, dict[str, Any]]]]:
        """By window, the kept ones of this rank's own rows, with their positions."""
        stream = self._stream
        stream.divided = True
        for positions, batches in _own_windows(stream, stream.start, size):
            rows = [row for batch in batches for row in read_rows(batch)]
            stream.fed = zip(positions, rows, strict=True)
            # One row at a time goes through: the stream's position is behind the one just kept.
            yield [(stream.position - 1, row) for row in self.dataset]


def deal_rows(loader: Any, stream: Positioned) -> None:
    """Have the ranks read the rows of a trainer's loader together, where that changes no batch.

    They prepare them together, too, where each row is prepared by itself.

    Args:
        loader: The trainer's, as Accelerate prepared it; not iterated yet.
        stream: The sealed stream that it reads.
    """
    from accelerate.data_loader import IterableDatasetShard

    shard = getattr(getattr(loader, "base_dataloader", loader), "dataset", None)
    if (
        isinstance(shard, IterableDatasetShard)
        and shard.num_processes == place().world > 1
        and not shard.split_batches
        and stream.stop is None
    ):
        if _one_by_one(shard.dataset, stream):
            shard.dataset = DealtRows(shard.dataset, stream, shard.batch_size)
            shard.num_processes, shard.process_index = 1, 0
        else:
            read_together(stream)


def read_together(stream: Positioned) -> None:
    """Have each rank open batches of its own, and all ranks get all rows of a stream.

    Args:
        stream: Endless; every rank reads it at the same pace.
    """
    if place().world > 1:
        stream.fed = _RowsOfAll(stream)


class _RowsOfAll:
    """All rows of a stream from its position on, with theirs."""

    def __init__(self, stream: Positioned) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        shared = share_rows(self._stream, read_rows)
        return enumerate(shared, self._stream.position)


def share_rows(
    stream: Positioned, prepare: Callable[[pa.RecordBatch], Iterable[Value]]
) -> Iterator[Value]:
    """The prepared rows of a stream from its position on, of which each rank prepares its own.

    Args:
        stream: The same, at the same position, in every rank; all ranks take part.
        prepare: Gives one value for each row.
    """
    for positions, batches in _own_windows(stream, stream.position, _SHARED_ROWS * place().world):
        values = [value for batch in batches for value in prepare(batch)]
        parts = gather_values((positions, values))
        of_all = [pair for part in parts for pair in zip(*part, strict=True)]
        for _, value in sorted(of_all, key=lambda pair: pair[0]):
            yield value


def _own_windows(stream: Positioned, start: int, size: int) -> Iterator[Window]:
    """This rank's own rows by window of ``size`` rows; ends when the stream is given a stop."""
    records = stream.stream
    mine = place()
    part = OwnBatches(rank=mine.rank, world=mine.world, lanes=records.order.lanes)
    ahead: deque[int] = deque()  # positions of own rows that are not read yet
    known, walk = start, records.own_positions(start, part=part)
    rows = _Rows(records.rounds(start, part=part))
    while stream.stop is None:
        start += size
        while known < start:
            known, positions = next(walk)
            ahead.extend(positions.tolist())
        window = []
        while ahead and ahead[0] < start:
            window.append(ahead.popleft())
        yield window, rows.take(len(window))


class _Rows:
    """Record batches of changing length, read in other lengths."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._rest: pa.RecordBatch | None = None

    def take(self, count: int) -> list[pa.RecordBatch]:
        """The next ``count`` rows."""
        taken = []
        while count:
            batch = next(self._batches) if self._rest is None else self._rest
            taken.append(batch.slice(0, count))
            self._rest = batch.slice(count) if batch.num_rows > count else None
            count -= taken[-1].num_rows
        return taken


def _one_by_one(dataset: Any, stream: Positioned) -> bool:
    """Whether a dataset gives, for each row of the stream by itself, one row or none."""
    examples: Any = getattr(dataset, "_ex_iterable", None)
    if getattr(dataset, "_formatting", None) is not None:
        return False
    while type(examples) in _ONE_BY_ONE:
        several = getattr(examples, "batched", False) or getattr(examples, "with_indices", False)
        if several or inspect.iscoroutinefunction(getattr(examples, "function", None)):
            return False
        examples = examples.ex_iterable
    return getattr(examples, "positioned", None) is stream
