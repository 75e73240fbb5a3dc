"""A holder's datasets as one row of tokens: any part of it, in any order, or a refusal."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sealtrain.errors import DataInvalid, LeaseStale
from sealtrain.sealing.errors import RecordInvalid, SchemaMismatch
from sealtrain.training.data.sources import Source
from sealtrain_together.travelling.guest.tokens import HeldTokens


class Records:
    """Record batches in memory; counts how often one is opened."""

    def __init__(self, batches: list[list[list[int]]], kind: pa.DataType | None = None) -> None:
        kind = pa.uint16() if kind is None else kind
        self.schema = pa.schema([pa.field("tokens", pa.list_(kind))])
        self._batches = [
            pa.record_batch([pa.array(rows, pa.list_(kind))], schema=self.schema)
            for rows in batches
        ]
        self.dataset_id, self.root = "0" * 32, "0" * 64
        self.batch_rows = tuple(batch.num_rows for batch in self._batches)
        self.opened: list[int] = []

    def batch(self, number: int) -> pa.RecordBatch:
        self.opened.append(number)
        return self._batches[number]


def source(records: Any) -> Source:
    return Source(role="train", owner="clinic", name="notes", weight=1.0, dataset=records)


def permitted() -> None:
    return None


def held(*records: Any, column: str = "tokens") -> HeldTokens:
    return HeldTokens([source(record) for record in records], column, permitted)


def read(tokens: HeldTokens, offset: int, count: int) -> list[int]:
    view = memoryview(bytearray(2 * count))
    done = tokens.read_into(offset, view)
    return np.frombuffer(view[:done], "<u2").tolist()


FIRST = [[[1, 2, 3], [4]], [[5, 6]]]
SECOND = [[[], [7]], [[8, 9, 10, 65_535]]]


def test_datasets_follow_one_another_and_any_part_can_be_read() -> None:
    tokens = held(Records(FIRST), Records(SECOND))
    everything = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 65_535]
    assert tokens.size == 22
    for begin in (*range(11), 3, 0):
        for count in (0, 1, 4, 11):
            assert read(tokens, 2 * begin, count) == everything[begin : begin + count]
    assert read(tokens, 22, 1) == []


def test_tokens_of_more_than_65536_words_have_four_bytes() -> None:
    tokens = HeldTokens(
        [source(Records([[[1, 70_000]], [[3]]], pa.uint32()))], "tokens", permitted, width=4
    )
    assert tokens.size == 12
    view = memoryview(bytearray(8))
    assert tokens.read_into(4, view) == 8
    assert np.frombuffer(view, "<u4").tolist() == [70_000, 3]


def test_in_order_each_batch_is_opened_once() -> None:
    first = Records(FIRST)
    first.tokens = 6  # type: ignore[attr-defined]  # as the owner counted
    tokens = held(first)
    for at in range(6):
        assert read(tokens, 2 * at, 1) == [at + 1]
    assert first.opened == [0, 1]


def test_wider_tokens_fit_or_are_refused() -> None:
    assert read(held(Records([[[1, 65_535]]], pa.uint32())), 0, 2) == [1, 65_535]
    for rows, kind in (([[[65_536]]], pa.uint32()), ([[[-1]]], pa.int64())):
        with pytest.raises(RecordInvalid):
            held(Records(rows, kind))
    with pytest.raises(RecordInvalid):
        held(Records([[[1, None]]]))  # type: ignore[list-item]


def empty(schema: pa.Schema | None) -> SimpleNamespace:
    return SimpleNamespace(schema=schema, batch_rows=())


WITHOUT_TOKENS: dict[str, Callable[[], Any]] = {
    "fractions": lambda: Records([[[1]]], pa.float32()),
    "no table": lambda: empty(None),
    "no lists": lambda: empty(pa.schema([("tokens", pa.uint16())])),
    "text": lambda: empty(pa.schema([("text", pa.string())])),
}


@pytest.mark.parametrize("kind", WITHOUT_TOKENS)
def test_what_holds_no_lists_of_tokens_is_refused(kind: str) -> None:
    with pytest.raises(SchemaMismatch):
        held(WITHOUT_TOKENS[kind]())


def test_half_tokens_are_not_read() -> None:
    tokens = held(Records(FIRST))
    for offset, size in ((1, 2), (0, 3), (-2, 2)):
        with pytest.raises(DataInvalid):
            tokens.read_into(offset, memoryview(bytearray(size)))


def test_nothing_is_read_once_the_lease_has_ended() -> None:
    allowed = [True]

    def permit() -> None:
        if not allowed:
            raise LeaseStale("the lease on the keys has ended")

    tokens = HeldTokens([source(Records(FIRST))], "tokens", permit)
    assert read(tokens, 0, 1) == [1]
    allowed.clear()
    with pytest.raises(LeaseStale):
        read(tokens, 0, 1)
