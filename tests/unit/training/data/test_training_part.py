"""How the rows of a step are divided among ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training_world import source_of
from variants import examples, variants

from sealtrain.errors import UsageError
from sealtrain.training.data.order import Order
from sealtrain.training.data.rank_part import WHOLE, RankPart
from sealtrain.training.data.stream import RecordStream

BATCHES, ROWS = 512, 80


class Opened:
    """Record batches that count how often each is opened."""

    dataset_id, root = "0" * 32, "0" * 64
    batch_rows = (ROWS,) * BATCHES

    def __init__(self) -> None:
        import pyarrow as pa

        self.schema = pa.schema([("id", pa.int64())])
        self.count = 0

    def batch(self, number: int) -> Any:
        import pyarrow as pa

        self.count += 1
        ids = np.arange(number * ROWS, (number + 1) * ROWS)
        return pa.record_batch([pa.array(ids)], schema=self.schema)


def opened_by(part: RankPart) -> int:
    """Batches that a rank opens for one epoch."""
    records = Opened()
    stream = RecordStream([source_of(records)], seed=1, ahead=0)
    for _ in stream.rounds(0, BATCHES * ROWS, part=part):
        pass
    return records.count


@pytest.mark.parametrize(
    ("world", "step"),
    variants(
        [(2, 128), (4, 256), (8, 512), (16, 1024), (32, 4096)],
        each_time=[(2, 128), (4, 256), (8, 512)],
    ),
)
def test_a_rank_opens_little_more_than_its_share_of_all_batches(world: int, step: int) -> None:
    opened = [opened_by(RankPart(rank=rank, world=world, step=step)) for rank in range(world)]
    # A lane in which the parts of two ranks meet is opened by both.
    assert sum(opened) <= BATCHES * 2.5
    assert max(opened) <= BATCHES / world * 4


def test_a_rank_that_is_alone_opens_every_batch_once() -> None:
    assert opened_by(WHOLE) == BATCHES


@settings(max_examples=examples(50), deadline=None)
@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=40),
    st.integers(1, 9),
    st.integers(1, 70),
    st.integers(0, 4),
)
def test_ranks_take_equal_shares_of_every_step(
    sizes: list[int], world: int, times: int, epoch: int
) -> None:
    step = world * times
    order = Order([sizes], [1.0], seed=7)
    taken: list[list[int]] = [[] for _ in range(world)]
    for number in range(order.rounds_in(epoch)):
        current = order.round(epoch, number)
        for rank in range(world):
            places = RankPart(rank=rank, world=world, step=step).places(current)
            assert (np.diff(places) > 0).all()
            taken[rank] += (current.start + places).tolist()
    first, last = order.before(epoch), order.before(epoch + 1)
    assert sorted(at for part in taken for at in part) == list(range(first, last))
    for begin in range(-(-first // step) * step, last - step + 1, step):
        shares = {sum(begin <= at < begin + step for at in part) for part in taken}
        assert shares == {times}


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(0, 999), st.integers(1, 1000), st.integers(1, 6), st.integers(1, 60))
def test_which_rank_reads_a_row_does_not_depend_on_where_reading_began(
    start: int, rows: int, world: int, times: int
) -> None:
    order = Order([[250] * 4], [1.0], seed=7)
    stop = start + rows
    for number in range(order.rounds_in(0)):
        current = order.round(0, number)
        part = RankPart(rank=world - 1, world=world, step=world * times)
        whole = current.start + part.places(current)
        some = current.start + part.places(current, start, stop)
        assert some.tolist() == [at for at in whole.tolist() if start <= at < stop]


@pytest.mark.parametrize(
    ("rank", "world", "step"), [(0, 3, 4), (2, 2, 2), (-1, 2, 2), (0, 1, 0), (0, 0, 1)]
)
def test_a_step_that_cannot_be_divided_is_refused(rank: int, world: int, step: int) -> None:
    with pytest.raises(UsageError) as refused:
        RankPart(rank=rank, world=world, step=step)
    assert refused.value.check == "part"
