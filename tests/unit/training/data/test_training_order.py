from __future__ import annotations

import doctest
import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training_world import PlainDataset, numbered, source_of

from sealtrain.errors import DataInvalid
from sealtrain.sealing.errors import SchemaMismatch
from sealtrain.training.data import order as order_of_rows
from sealtrain.training.data.order import MAX_LANES, Order, divide
from sealtrain.training.data.rank_part import RankPart
from sealtrain.training.data.stream import FIRST_ROWS, RecordStream


def test_the_worked_example_holds() -> None:
    found = doctest.testmod(order_of_rows)
    assert (found.failed, found.attempted) == (0, 7)


SHAPES = [
    [[500]],
    [[1]],
    [[3], [5], [1]],
    [[100] * 50, [7] * 3, [1000]],
    [[1], [900] * 40],
    [[0, 10, 0, 5], [20]],
]


def ids(stream: RecordStream, start: int, stop: int) -> list[int]:
    return [row["id"] for row in stream.rows(start, stop)]


def by_position(stream: RecordStream, start: int, stop: int, world: int, step: int) -> list[int]:
    """What all ranks read together, in the order of the stream; no row is read twice."""
    found: dict[int, int] = {}
    for rank in range(world):
        part = RankPart(rank=rank, world=world, step=step)
        places = np.concatenate(list(stream.positions(start, stop, part=part)))
        read = [
            row["id"]
            for figures in stream.rounds(start, stop, part=part)
            for row in figures.to_pylist()
        ]
        assert not found.keys() & set(places.tolist())
        found |= dict(zip(places.tolist(), read, strict=True))
    return [found[position] for position in sorted(found)]


def stream_over(shape: list[list[int]], seed: int = 3) -> tuple[RecordStream, int]:
    sources, total = [], 0
    for sizes in shape:
        sources.append(source_of(numbered(sizes, total)))
        total += sum(sizes)
    return RecordStream(sources, seed=seed), total


class Counting(PlainDataset):
    """Knows how many batches were read."""

    reads = 0

    def batch(self, number: int) -> object:
        self.reads += 1
        return super().batch(number)


def counted_stream() -> tuple[RecordStream, Counting]:
    plain = numbered([50] * 64)
    counting = Counting([plain.batch(number) for number in range(64)])
    return RecordStream([source_of(counting)], seed=1, ahead=0), counting


@pytest.mark.parametrize("shape", SHAPES)
def test_every_epoch_holds_every_row_once(shape: list[list[int]]) -> None:
    stream, total = stream_over(shape)
    rows = ids(stream, 0, 3 * total)
    for epoch in range(3):
        assert sorted(rows[epoch * total : (epoch + 1) * total]) == list(range(total))


@pytest.mark.parametrize("shape", SHAPES)
def test_any_position_is_reached_without_reading_what_lies_before(shape: list[list[int]]) -> None:
    stream, total = stream_over(shape)
    whole = ids(stream, 0, 3 * total)
    for start in {0, 1, total // 2, total - 1, total, 2 * total + total // 3}:
        stop = min(start + 40, 3 * total)
        assert ids(stream, start, stop) == whole[start:stop]


def test_a_far_position_costs_no_more_batches_than_a_near_one() -> None:
    stream, counting = counted_stream()
    costs = []
    for start in (0, 1_000_003 * 3200 + 17):
        counting.reads = 0
        next(stream.rows(start))
        costs.append(counting.reads)
    assert max(costs) <= MAX_LANES * 2


@pytest.mark.parametrize("world", [2, 3, 4, 8])
def test_ranks_together_read_what_one_reads_alone(world: int) -> None:
    stream, total = stream_over([[100] * 5, [77]])
    for start, step in ((5, world), (0, 24), (48, 24), (5, 5000 * world)):
        assert by_position(stream, start, 2 * total, world, step) == ids(stream, start, 2 * total)


def test_the_order_is_a_function_of_the_seed() -> None:
    first, total = stream_over([[400]])
    again, _ = stream_over([[400]])
    other, _ = stream_over([[400]], seed=4)
    assert ids(first, 0, total) == ids(again, 0, total)
    assert ids(first, 0, total) != ids(other, 0, total)


def test_two_epochs_differ() -> None:
    stream, total = stream_over([[400]])
    rows = ids(stream, 0, 2 * total)
    assert rows[:total] != rows[total:]


def test_one_small_batch_is_shuffled_well() -> None:
    stream, total = stream_over([[500]])
    rows = ids(stream, 0, total)
    neighbours = sum(abs(a - b) == 1 for a, b in itertools.pairwise(rows))
    assert neighbours < 10
    moved = sum(abs(row - position) for position, row in enumerate(rows)) / total
    assert 120 < moved < 210  # a uniform permutation moves a row by total / 3 on average


def test_a_batch_of_sixteen_comes_from_every_owner() -> None:
    stream, _ = stream_over([[500], [500], [500]])
    rows = ids(stream, 0, 1600)
    owners = [{row // 500 for row in rows[start : start + 16]} for start in range(0, 1600, 16)]
    # Drawn at random, one batch in two hundred would lack an owner.
    assert sum(found == {0, 1, 2} for found in owners) >= 95


def test_a_row_of_twice_the_weight_comes_twice_as_often() -> None:
    sources = [
        source_of(numbered([100, 50]), weight=2.5),
        source_of(numbered([80], 1000), weight=1.0),
        source_of(numbered([9], 5000), weight=0.1),
    ]
    stream = RecordStream(sources, seed=1)
    counts: dict[int, int] = {}
    for row in stream.rows(0, stream.order.before(4)):
        counts[row["id"]] = counts.get(row["id"], 0) + 1
    assert {counts[row] for row in range(150)} == {100}
    assert {counts[row] for row in range(1000, 1080)} == {40}
    assert {counts[row] for row in range(5000, 5009)} == {4}


def test_a_fraction_of_a_weight_is_spread_over_all_rows() -> None:
    stream = RecordStream(
        [source_of(numbered([10]), weight=1.5), source_of(numbered([10], 100))], seed=1
    )
    counts = dict.fromkeys(range(10), 0)
    for row in stream.rows(0, stream.order.before(3)):
        if row["id"] < 10:
            counts[row["id"]] += 1
    assert sorted(set(counts.values())) == [4, 5]
    assert sum(counts.values()) == 45


def test_no_row_at_all_is_refused() -> None:
    with pytest.raises(DataInvalid):
        Order([[], [0]], [1.0, 1.0], seed=1)


def test_a_capped_source_gives_exactly_its_cap_to_every_epoch() -> None:
    sources = [
        source_of(numbered([40] * 5 + [7]), max_records=30),
        source_of(numbered([50], 1000)),
    ]
    stream = RecordStream(sources, seed=1)
    epochs = []
    for epoch in range(14):
        rows = ids(stream, stream.order.before(epoch), stream.order.before(epoch + 1))
        capped = [row for row in rows if row < 1000]
        assert len(capped) == 30
        assert len(set(capped)) > 25  # a row may come twice where two passes meet
        assert sorted(set(rows) - set(capped)) == list(range(1000, 1050))
        epochs.append(capped)
    # 14 epochs of 30 are two passes over 207 rows and a few more: all come up, equally often.
    counts = [sum(epoch.count(row) for epoch in epochs) for row in range(207)]
    assert min(counts) >= 1
    assert max(counts) <= 3
    assert epochs[0] != ids(RecordStream(sources, seed=2), 0, 30)


@pytest.mark.parametrize(
    ("weights", "caps"),
    [([1.0, 1.0], [None, None]), ([1.0, 2.5], [None, None]), ([1.0, 1.0], [7, None])],
)
def test_a_full_turn_from_any_position_holds_every_row(
    weights: list[float], caps: list[int | None]
) -> None:
    data = [numbered([9, 4, 30]), numbered([11, 3], first=1000)]
    sources = [
        source_of(dataset, weight=weight, max_records=cap)
        for dataset, weight, cap in zip(data, weights, caps, strict=True)
    ]
    stream = RecordStream(sources, ["id"], seed=5)
    turn = stream.order.full_turn()
    rows = ids(stream, 0, 300 + turn)
    everything = set(range(43)) | set(range(1000, 1014))
    assert all(set(rows[start : start + turn]) == everything for start in range(300))


def test_a_cap_above_what_the_weight_gives_changes_nothing() -> None:
    plain = RecordStream([source_of(numbered([40])), source_of(numbered([9], 100))], seed=5)
    capped = RecordStream(
        [source_of(numbered([40]), max_records=40), source_of(numbered([9], 100), max_records=99)],
        seed=5,
    )
    assert ids(plain, 0, 200) == ids(capped, 0, 200)


@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_ranks_read_a_capped_stream_in_the_same_order(world: int) -> None:
    sources = [source_of(numbered([30] * 40), max_records=100), source_of(numbered([60], 5000))]
    stream = RecordStream(sources, seed=1)
    alone = ids(stream, 10, 900)
    assert by_position(stream, 10, 900, world, 8) == alone
    assert ids(stream, 777, 900) == alone[767:]


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=9), st.integers(0, 3000), st.integers(1, 50)
)
def test_parts_sum_up_and_never_shrink(sizes: list[int], amount: int, more: int) -> None:
    before, after = divide(amount, sizes), divide(amount + more, sizes)
    assert sum(before) == amount
    assert sum(after) == amount + more
    assert all(low <= high for low, high in zip(before, after, strict=True))
    total = sum(sizes)
    assert divide(total, sizes) == sizes
    assert all(
        abs(part - amount * size / total) < 2 for part, size in zip(before, sizes, strict=True)
    )


def test_an_owner_may_call_columns_otherwise() -> None:
    theirs = source_of(numbered([5]), columns={"id": "number"})
    ours = PlainDataset(
        [batch.rename_columns(["number"]) for batch in [numbered([3], 100).batch(0)]]
    )
    stream = RecordStream([theirs, source_of(ours)], seed=1)
    assert sorted(row["number"] for row in stream.rows(0, 8)) == [0, 1, 2, 3, 4, 100, 101, 102]
    with pytest.raises(SchemaMismatch) as missing:
        source_of(numbered([5]), columns={"key": "number"})
    assert (missing.value.check, missing.value.expected) == ("columns", "key")
    both = PlainDataset([pa.RecordBatch.from_pydict({"id": [1], "number": [2]})])
    with pytest.raises(SchemaMismatch) as taken:
        source_of(both, columns={"id": "number"})
    assert (taken.value.check, taken.value.expected) == ("columns", None)


def test_a_column_is_renamed_from_the_owners_name_to_the_trainers() -> None:
    source = source_of(numbered([5]), columns={"id": "number"})
    assert source.schema is not None
    assert source.schema.names == ["number"]
    assert source.rename(source.dataset.batch(0)).schema.names == ["number"]
    stream = RecordStream([source], ["number"], seed=1, names={"number": "prompt"})
    assert stream.schema.names == ["prompt"]
    assert sorted(row["prompt"] for row in stream.rows(0, 5)) == [0, 1, 2, 3, 4]


def test_a_reader_that_begins_opens_no_more_than_its_first_rows_need() -> None:
    stream, counting = counted_stream()
    whole = ids(stream, 1000, 1000 + stream.order.round_rows)
    opened = []
    for rows in (8, 64, stream.order.round_rows):
        counting.reads = 0
        batches = stream.batches(rows, 1000)
        assert next(batches).column("id").to_pylist() == whole[:rows]
        opened.append(counting.reads)
        batches.close()  # type: ignore[attr-defined]
    assert opened[0] <= FIRST_ROWS[0] < opened[1] < opened[2]
