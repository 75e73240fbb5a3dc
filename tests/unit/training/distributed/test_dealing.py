"""Ranks that prepare rows together train on the rows that each would have found by itself."""

from __future__ import annotations

from itertools import islice, product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from collecting import COLLECTING
from training_world import source_of
from variants import variants

from sealtrain.errors import DataInvalid
from sealtrain.sealing.errors import RecordInvalid
from sealtrain.training.data.order import Order
from sealtrain.training.data.rank_part import OwnBatches
from sealtrain.training.data.stream import RecordStream
from sealtrain.training.distributed.agreement import exchange_parcels, gather_values

if not COLLECTING:
    import torch.utils.data
    from accelerate.data_loader import prepare_data_loader
    from gloo_ranks import in_gloo_ranks

    from sealtrain.training.data.hugging import Positioned, as_iterable_dataset
    from sealtrain.training.distributed.dealing import (
        DealtRows,
        deal_rows,
        read_together,
        share_rows,
    )

SIZE = 3
pytestmark = [pytest.mark.long, pytest.mark.claim("C260")]


class Records:
    """Record batches that note which of them were opened, and how often."""

    dataset_id, root = "0" * 32, "0" * 64

    def __init__(self, sizes: list[int]) -> None:
        self.schema = pa.schema([("id", pa.int64())])
        self.batch_rows = tuple(sizes)
        self.opened: list[int] = []

    def batch(self, number: int) -> Any:
        self.opened.append(number)
        first = sum(self.batch_rows[:number])
        ids = np.arange(first, first + self.batch_rows[number])
        return pa.record_batch([pa.array(ids)], schema=self.schema)


class Reader:
    """One rank's loader over a stream whose rows are mapped and filtered."""

    def __init__(self, sizes: list[int], rank: int, world: int, *, start: int = 0) -> None:
        self.records = Records(sizes)
        self.stream = Positioned(RecordStream([source_of(self.records)], seed=3, ahead=0))
        self.stream.start = start
        self.prepared: list[int] = []
        self.batches: list[tuple[list[int], int]] = []
        dataset = as_iterable_dataset(self.stream).map(self._mapped)
        dataset = dataset.filter(lambda row: row["id"] % 4 != 1)
        loader = torch.utils.data.DataLoader(dataset, batch_size=SIZE, collate_fn=self._collated)
        self.loader = prepare_data_loader(
            loader, num_processes=world, process_index=rank, dispatch_batches=False
        )

    def _mapped(self, row: dict[str, Any]) -> dict[str, Any]:
        self.prepared.append(row["id"])
        return {"twice": 2 * row["id"]}

    def _collated(self, rows: list[dict[str, Any]]) -> Any:
        assert all(row["twice"] == 2 * row["id"] for row in rows)
        self.batches.append(([row["id"] for row in rows], self.stream.position))
        return {"id": torch.tensor([row["id"] for row in rows])}

    def read(self, count: int) -> list[tuple[list[int], int]]:
        """Rows and marks of so many batches."""
        list(islice(self.loader, count))
        return self.batches[:count]


def read_both_ways(sizes: list[int], world: int, count: int, start: int = 0) -> list[Any]:
    """Of each rank: by itself, dealt out, batches opened, rows prepared."""

    def work(rank: int) -> Any:
        alone, dealt = (Reader(sizes, rank, world, start=start) for _ in range(2))
        expected = alone.read(count)
        deal_rows(dealt.loader, dealt.stream)
        assert isinstance(dealt.loader.dataset.dataset, DealtRows)
        return expected, dealt.read(count), dealt.records.opened, dealt.prepared

    return in_gloo_ranks(world, work)


@pytest.mark.parametrize(
    ("start", "world"), variants(product([0, 77], [2, 3, 8]), each_time=[(0, 3), (77, 2)])
)
def test_every_rank_trains_on_the_rows_of_a_rank_that_reads_everything(
    world: int, start: int
) -> None:
    for expected, dealt, _, _ in read_both_ways([9, 40, 1, 17, 30, 5, 22] * 3, world, 20, start):
        assert len(expected) == 20
        assert dealt == expected


@pytest.mark.parametrize("world", variants([2, 8, 16], each_time=[2]))
def test_a_record_batch_is_opened_by_one_rank_and_its_rows_are_prepared_there(world: int) -> None:
    sizes = [20] * 64  # two for each lane
    steps = sum(sizes) * 3 // 4 // (SIZE * world)
    found = read_both_ways(sizes, world, steps)
    opened = [set(batches) for _, _, batches, _ in found]
    assert sum(map(len, opened)) == len(set.union(*opened)) == len(sizes)
    assert {len(batches) for batches in opened} == {len(sizes) // world}
    for batches, (_, _, _, prepared) in zip(opened, found, strict=True):
        assert {row // 20 for row in prepared} <= batches


def test_a_rank_without_a_batch_of_its_own_trains_like_the_others() -> None:
    found = read_both_ways([50], 3, 9)
    assert [bool(opened) for _, _, opened, _ in found].count(True) == 1
    assert all(dealt == expected for expected, dealt, _, _ in found)


def test_a_stream_that_is_over_gives_nothing() -> None:
    def work(rank: int) -> Any:
        reader = Reader([50], rank, 2)
        deal_rows(reader.loader, reader.stream)
        reader.stream.stop = 0
        return reader.read(3)

    assert in_gloo_ranks(2, work) == [[], []]


@pytest.mark.parametrize(
    ("start", "world"), variants(product([0, 77], [2, 8]), each_time=[(0, 2), (77, 2)])
)
def test_rows_that_are_prepared_several_at_once_are_read_together_and_prepared_by_all(
    world: int, start: int
) -> None:
    sizes = [20] * 64
    count = 14 if world == 8 else 50

    def work(rank: int) -> Any:
        alone, together = (Reader(sizes, rank, world, start=start) for _ in range(2))
        for reader in (alone, together):
            shard = reader.loader.dataset
            shard.dataset = shard.dataset.map(turned, batched=True, batch_size=4)
        expected = alone.read(count)
        deal_rows(together.loader, together.stream)
        assert not isinstance(together.loader.dataset.dataset, DealtRows)
        assert together.read(count) == expected
        return together.records.opened, len(set(together.prepared))

    found = in_gloo_ranks(world, work)
    opened = [set(batches) for batches, _ in found]
    assert sum(map(len, opened)) == len(set.union(*opened))
    assert max(map(len, opened)) <= len(sizes) // world
    assert {prepared for _, prepared in found} == {found[0][1]}


def turned(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """What a rank draws from rows of other lanes."""
    return {name: values[::-1] for name, values in rows.items()}


def test_a_stream_that_every_rank_gets_whole_is_opened_once() -> None:
    def work(rank: int) -> Any:
        reader = Reader([20] * 16, rank, 4, start=33)
        read_together(reader.stream)
        rows = list(islice(reader.stream.rows(), 200))
        return [row["id"] for row in rows], reader.stream.position, reader.records.opened

    rows = RecordStream([source_of(Records([20] * 16))], seed=3).rows(33, 233)
    expected = [row["id"] for row in rows]
    found = in_gloo_ranks(4, work)
    assert [(ids, position) for ids, position, _ in found] == [(expected, 233)] * 4
    opened = [number for _, _, batches in found for number in batches]
    assert sorted(opened) == list(range(16))


@pytest.mark.claim("C267")
@pytest.mark.parametrize("batched", [False, True])
def test_ranks_that_keep_no_row_of_any_end_together(batched: bool) -> None:
    def work(rank: int) -> Any:
        reader = Reader([10, 10], rank, 2)
        shard = reader.loader.dataset
        if batched:
            shard.dataset = shard.dataset.map(lambda rows: rows, batched=True, batch_size=2)
        shard.dataset = shard.dataset.filter(lambda row: row["id"] > 99)
        deal_rows(reader.loader, reader.stream)
        assert isinstance(shard.dataset, DealtRows) is not batched
        return reader.read(1)

    assert [type(rank) for rank in in_gloo_ranks(2, work)] == [DataInvalid] * 2


def test_a_rank_that_keeps_none_of_its_own_rows_trains_on_those_of_others() -> None:
    def work(rank: int) -> Any:
        reader = Reader([10, 10], rank, 2)
        shard = reader.loader.dataset
        shard.dataset = shard.dataset.filter(lambda row: row["id"] == 2)  # in one rank's batch
        deal_rows(reader.loader, reader.stream)
        assert isinstance(shard.dataset, DealtRows)
        return reader.read(9)

    for batches in in_gloo_ranks(2, work):
        assert [rows for rows, _ in batches] == [[2] * SIZE] * 9


def test_a_row_that_is_refused_ends_the_rank_that_prepared_it() -> None:
    def refused(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == 7:
            raise RecordInvalid("a record holds nothing to learn", check="columns")
        return row

    def work(rank: int) -> Any:
        reader = Reader([10, 10], rank, 2)
        reader.loader.dataset.dataset = as_iterable_dataset(reader.stream).map(refused)
        deal_rows(reader.loader, reader.stream)
        return reader.read(20)

    found = in_gloo_ranks(2, work)
    assert sum(isinstance(value, RecordInvalid) for value in found) == 1
    assert all(isinstance(value, Exception) for value in found)


def test_values_of_all_rows_reach_every_rank_in_the_order_of_the_stream() -> None:
    sizes = [30, 4, 11, 60]

    def work(rank: int) -> Any:
        records = Records(sizes)
        stream = Positioned(RecordStream([source_of(records)], seed=3, ahead=0))
        stream.position = 5
        values = share_rows(stream, lambda batch: batch["id"].to_pylist())
        return list(islice(values, 150)), set(records.opened)

    expected = RecordStream([source_of(Records(sizes))], seed=3).rows(5, 155)
    first, second = in_gloo_ranks(2, work)
    assert first[0] == second[0] == [row["id"] for row in expected]
    assert not first[1] & second[1]


def test_parcels_reach_the_ranks_that_they_are_for() -> None:
    def work(rank: int) -> Any:
        parcels = [f"{rank}>{to}" * (rank * to) for to in range(3)]
        return exchange_parcels(parcels), gather_values(rank)

    for to, (got, told) in enumerate(in_gloo_ranks(3, work)):
        assert got == [f"{rank}>{to}" * (rank * to) for rank in range(3)]
        assert told == [0, 1, 2]


@pytest.mark.parametrize(("batches", "world"), [(64, 8), (640, 100), (3, 5)])
def test_every_row_of_an_epoch_belongs_to_one_rank(batches: int, world: int) -> None:
    order = Order([[7] * batches], [1.0], seed=5)
    own: list[list[int]] = [[] for _ in range(world)]
    for number in range(order.rounds_in(0)):
        current = order.round(0, number)
        for rank in range(world):
            part = OwnBatches(rank=rank, world=world, lanes=order.lanes)
            own[rank] += (current.start + part.places(current)).tolist()
    assert sorted(at for rows in own for at in rows) == list(range(7 * batches))
    if batches > world:
        assert min(map(len, own)) > 0
