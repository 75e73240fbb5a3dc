"""Batches are opened evenly, within bounds, and no further than the reader asks for."""

from __future__ import annotations

from collections.abc import Generator

import pyarrow as pa
import pytest

from sealtrain.training.data import opening
from sealtrain.training.data.opening import Evenly, Turned


class Source:
    """Counts what is opened of so many batches of 800 bytes."""

    def __init__(self, count: int) -> None:
        self.count, self.opened, self.closed = count, 0, False

    def turned(self) -> Generator[Turned]:
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
    evenly = Evenly(source.turned())
    seen = [first_id(evenly.take())]
    evenly.work_ahead(3)
    assert source.opened == 4
    seen += [first_id(evenly.take()) for _ in range(5)]
    assert source.opened == 6
    evenly.work_ahead(100)
    assert source.opened == 9
    seen += [first_id(evenly.take()) for _ in range(3)]
    assert seen == list(range(9))


def test_what_waits_is_bounded_by_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "AHEAD_BYTES", 2000)
    source = Source(100)
    evenly = Evenly(source.turned())
    for _ in range(5):
        evenly.work_ahead(10)
    assert source.opened == 3
    evenly.take()
    evenly.work_ahead(10)
    assert source.opened == 4


def test_closing_lets_go_of_the_source() -> None:
    source = Source(10)
    evenly = Evenly(source.turned())
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
