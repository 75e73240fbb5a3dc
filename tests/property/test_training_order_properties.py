from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from training_world import numbered, source_of
from variants import examples

from sealtrain.training.data.order import Order
from sealtrain.training.data.stream import RecordStream

SHAPES = st.lists(
    st.lists(st.integers(0, 40), min_size=1, max_size=8), min_size=1, max_size=4
).filter(lambda shape: any(map(sum, shape)))
SEEDS = st.integers(0, 2**32 - 1)
WEIGHTS = st.sampled_from([0.3, 1.0, 1.5, 2.0])


def stream_over(shape: list[list[int]], seed: int, lanes: int) -> tuple[RecordStream, int]:
    sources, total = [], 0
    for sizes in shape:
        sources.append(source_of(numbered(sizes, total)))
        total += sum(sizes)
    return RecordStream(sources, seed=seed, lanes=lanes, ahead=0), total


def ids(stream: RecordStream, start: int, stop: int) -> list[int]:
    return [row["id"] for row in stream.rows(start, stop)]


@settings(max_examples=examples(40), deadline=None)
@given(shape=SHAPES, seed=SEEDS, lanes=st.integers(1, 40))
def test_no_row_is_lost_or_doubled_in_an_epoch(
    shape: list[list[int]], seed: int, lanes: int
) -> None:
    stream, total = stream_over(shape, seed, lanes)
    rows = ids(stream, 0, 2 * total)
    assert sorted(rows[:total]) == sorted(rows[total:]) == list(range(total))


@settings(max_examples=examples(40), deadline=None)
@given(shape=SHAPES, seed=SEEDS, data=st.data())
def test_a_stream_continues_exactly_from_any_position(
    shape: list[list[int]], seed: int, data: st.DataObject
) -> None:
    stream, total = stream_over(shape, seed, 32)
    start = data.draw(st.integers(0, 3 * total - 1))
    stop = data.draw(st.integers(start, 3 * total))
    assert ids(stream, start, stop) == ids(stream, 0, 3 * total)[start:stop]


@settings(max_examples=examples(40), deadline=None)
@given(shape=SHAPES, seed=SEEDS, epochs=st.integers(1, 4), data=st.data())
def test_rows_of_a_source_come_up_equally_often_and_by_weight(
    shape: list[list[int]], seed: int, epochs: int, data: st.DataObject
) -> None:
    weights = [data.draw(WEIGHTS) for _ in shape]
    order = Order(shape, weights, seed=seed)
    counts: Counter[tuple[int, int, int]] = Counter()
    for epoch in range(epochs):
        for number in range(order.rounds_in(epoch)):
            for pick in order.round(epoch, number).picks:
                rows = order.shuffle(pick, shape[pick.source][pick.batch])
                for row in rows[pick.start : pick.stop]:
                    counts[pick.source, pick.batch, int(row)] += 1
    least = min(w for w, sizes in zip(weights, shape, strict=True) if sum(sizes))
    for source, sizes in enumerate(shape):
        expected = epochs * weights[source] / least
        for batch, size in enumerate(sizes):
            for row in range(size):
                assert abs(counts[source, batch, row] - expected) < 1 + 1e-9


@settings(max_examples=examples(30), deadline=None)
@given(shape=SHAPES, seed=SEEDS, row=st.integers(0, 10**15))
def test_every_position_lies_in_the_round_that_is_found_for_it(
    shape: list[list[int]], seed: int, row: int
) -> None:
    order = Order(shape, [1.0] * len(shape), seed=seed)
    place = order.place(row)
    found = order.round(place.epoch, place.round)
    assert found.start <= row < found.start + found.rows
