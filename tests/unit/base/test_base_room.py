"""Room is taken whole or not at all, by one thread at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from sealtrain.base.byte_budget import ByteBudget


def test_room_is_taken_whole_or_not_at_all() -> None:
    room = ByteBudget(10)
    assert room.take(7)
    assert not room.take(4)
    assert room.take(3)
    assert not room.take(1)
    room.give(7)
    assert room.take(7)


def test_threads_together_take_no_more_than_there_is() -> None:
    room = ByteBudget(1000)
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda _: room.take(3), range(2000)))
    assert sum(taken) == 333
