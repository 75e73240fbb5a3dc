from __future__ import annotations

import copy
import os
import pickle
from itertools import islice
from pathlib import Path

import pytest
from carrying import carries
from collecting import COLLECTING
from training_world import numbered, seal_records, source_of, write_records

from sealtrain.errors import DataInvalid, UsageError
from sealtrain.guest.sandbox.landlock import restrict
from sealtrain.training.data.stream import RecordStream

if not COLLECTING:
    from sealtrain.training.data.hugging import (
        Positioned,
        as_iterable_dataset,
        as_map_style_dataset,
        find_positioned,
    )


def positioned(rows: int = 60, stop: int | None = None) -> Positioned:
    return Positioned(RecordStream([source_of(numbered([rows]))], seed=1), stop=stop)


def test_an_iterable_dataset_gives_the_rows_of_the_stream() -> None:
    stream = positioned()
    dataset = as_iterable_dataset(stream)
    expected = list(stream.stream.rows(0, 100))
    assert list(islice(dataset, 100)) == expected
    assert dataset.column_names == ["id"]


def test_it_is_endless_unless_told_where_to_stop() -> None:
    assert len(list(islice(as_iterable_dataset(positioned(5)), 50))) == 50
    assert len(list(as_iterable_dataset(positioned(5, stop=7)))) == 7


def test_it_needs_no_shared_memory(tmp_path: Path) -> None:
    """A run that may not mount writes into its own folder there, and into nothing beside it."""
    if (child := os.fork()) == 0:
        restrict([tmp_path], connect=[])
        try:
            dataset = as_iterable_dataset(positioned(stop=5)).map(lambda row: row)
            dataset.set_epoch(3)
            os._exit(len(list(dataset)))
        finally:
            os._exit(99)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5


def test_an_iteration_begins_where_the_position_says() -> None:
    stream = positioned()
    dataset = as_iterable_dataset(stream)
    whole = [row["id"] for row in islice(dataset, 90)]
    stream.start = 70
    assert [row["id"] for row in islice(dataset, 20)] == whole[70:]


def test_the_position_follows_the_newest_reader() -> None:
    stream = positioned()
    reader = iter(as_iterable_dataset(stream))
    for count in range(1, 6):
        next(reader)
        assert stream.position == count


def test_the_state_of_a_dataset_is_a_row_number() -> None:
    dataset = as_iterable_dataset(positioned())
    reader = iter(dataset)
    for _ in range(33):
        next(reader)
    state = copy.deepcopy(dataset.state_dict())
    expected = [row["id"] for row in islice(reader, 10)]
    fresh = as_iterable_dataset(positioned())
    fresh.load_state_dict(state)
    assert [row["id"] for row in islice(fresh, 10)] == expected
    assert len(str(state)) < 200


def test_the_stream_is_found_under_maps_and_filters() -> None:
    stream = positioned()
    dataset = (
        as_iterable_dataset(stream)
        .map(lambda row: {"twice": 2 * row["id"]})
        .filter(lambda row: row["twice"] % 3)
    )
    assert find_positioned(dataset) is stream


@pytest.mark.claim("C267")
@pytest.mark.parametrize("start", [0, 7, 10_000])
def test_a_filter_that_keeps_nothing_of_an_endless_stream_ends_it(start: int) -> None:
    stream = positioned(10)
    stream.start = start
    rows = as_iterable_dataset(stream).filter(lambda _row: False)
    with pytest.raises(DataInvalid):
        next(iter(rows.map(lambda row: row)))
    assert stream.position - start < 40


def test_a_filter_that_keeps_one_row_gives_it_in_every_epoch() -> None:
    rows = as_iterable_dataset(positioned(50)).filter(lambda row: row["id"] == 3)
    assert [row["id"] for row in islice(rows, 20)] == [3] * 20


def test_a_filter_that_keeps_nothing_of_a_stream_with_an_end_gives_nothing() -> None:
    rows = as_iterable_dataset(positioned(10, stop=10)).filter(lambda _row: False)
    assert list(rows) == []


def test_other_data_has_no_stream() -> None:
    assert find_positioned([1, 2]) is None


def test_a_trainers_epoch_does_not_reshuffle() -> None:
    dataset = as_iterable_dataset(positioned())
    first = list(islice(dataset, 30))
    dataset.set_epoch(3)
    assert list(islice(dataset, 30)) == first


def test_a_sealed_stream_refuses_to_be_pickled() -> None:
    with pytest.raises(UsageError, check=carries(code="usage")):
        pickle.dumps(as_iterable_dataset(positioned()))


def test_map_style_records_lie_in_memory_only(tmp_path: Path) -> None:
    datasets = seal_records(write_records(tmp_path), tmp_path)
    dataset = as_map_style_dataset([source_of(datasets["hospital-a.records"])], ["prompt"])
    assert len(dataset) == 40
    assert dataset.column_names == ["prompt"]
    assert dataset.cache_files == []
    longer = dataset.map(lambda row: {"length": len(row["prompt"])})
    assert longer.cache_files == []
