"""Batches are opened evenly, within bounds, and no further than the reader asks for."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pyarrow as pa
import pytest

from sealtrain.training.data.opening import (
    Evenly,
    OpenFetched,
    OpenHere,
    OpenInProcess,
    Turned,
    opener_for,
)
from sealtrain.training.data.prefetch_process import PrefetchProcess


class Source:
    """Counts what is opened of so many batches of 800 bytes."""

    def __init__(self, count: int) -> None:
        self.count, self.opened, self.closed = count, 0, False

    def turn(self) -> Generator[Turned]:
        try:
            for number in range(self.count):
                self.opened += 1
                yield Turned(pa.record_batch({"id": [number] * 100}))
        finally:
            self.closed = True


def first_id(turned: Turned) -> int:
    number: int = turned.rows.column("id")[0].as_py()
    return number


def test_batches_come_in_order_whether_they_were_opened_before_or_not() -> None:
    source = Source(9)
    evenly = Evenly(source.turn())
    seen = [first_id(evenly.take())]
    evenly.work_ahead(3)
    assert source.opened == 4
    seen += [first_id(evenly.take()) for _ in range(5)]
    assert source.opened == 6
    evenly.work_ahead(100)
    assert source.opened == 9
    seen += [first_id(evenly.take()) for _ in range(3)]
    assert seen == list(range(9))


def test_what_waits_is_bounded_by_its_bytes() -> None:
    source = Source(100)
    evenly = Evenly(source.turn(), ahead_bytes=2000)
    for _ in range(5):
        evenly.work_ahead(10)
    assert source.opened == 3
    evenly.take()
    evenly.work_ahead(10)
    assert source.opened == 4


def test_closing_lets_go_of_the_source() -> None:
    source = Source(10)
    evenly = Evenly(source.turn())
    evenly.work_ahead(2)
    evenly.close()
    assert source.closed
    assert source.opened == 2


def test_rows_are_those_of_the_order() -> None:
    import numpy as np

    rows = pa.record_batch({"id": list(range(5))})
    turned = Turned(rows, np.array([4, 2, 0, 1, 3]))
    for way in (turned, turned.whole()):
        assert way.part(1, 3).column("id").to_pylist() == [2, 0]
        assert way.at(np.array([0, 4])).column("id").to_pylist() == [4, 3]
    assert turned.whole().order is None


class Placed:
    """A dataset of 100 small batches, on this machine or elsewhere."""

    def __init__(self, *, local: bool) -> None:
        self.local = local
        self.batch_rows = (10,) * 100
        self.largest_batch = 800


@pytest.mark.parametrize(
    ("local", "ahead", "helps", "way", "prefetches"),
    [
        ((True, True), False, True, OpenHere, True),
        ((True, True), True, False, OpenHere, True),
        ((True, True), True, True, OpenInProcess, False),
        ((True, False), True, False, OpenFetched, True),
        ((True, False), False, False, OpenHere, True),
    ],
)
def test_the_way_to_open_follows_from_where_data_lies(
    monkeypatch: pytest.MonkeyPatch,
    local: tuple[bool, bool],
    ahead: bool,
    helps: bool,
    way: type,
    prefetches: bool,
) -> None:
    monkeypatch.setattr(PrefetchProcess, "helps", staticmethod(lambda _: helps))
    datasets: Any = [Placed(local=there) for there in local]
    opener = opener_for(datasets, ahead=ahead)
    assert type(opener) is way
    assert opener.prefetches == prefetches
    assert ahead or opener.threads == 1
