"""Threads of a lane go to accounts in turn, and what would wait too long is refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from sealtrain.broker.http.lanes import Lane
from sealtrain.errors import TooManyRequests

pytestmark = pytest.mark.claim("C96")


def lane(**changed: Any) -> Lane:
    sizes: dict[str, Any] = {"threads": 1, "each": 1, "waiting": 100, "waiting_each": 100}
    return Lane("test", **(sizes | changed))


def run(act: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(act, 30))


def test_an_account_with_many_requests_waits_for_itself() -> None:
    async def act() -> None:
        one, done = lane(), []
        go = threading.Event()
        first = asyncio.create_task(one.run("loud", lambda: go.wait(20)))
        await asyncio.sleep(0)
        asked = ["loud"] * 5 + ["quiet", "other"] + ["loud"] * 5
        tasks = [
            asyncio.create_task(one.run(account, lambda account=account: done.append(account)))
            for account in asked
        ]
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(first, *tasks)
        assert set(done[:3]) == {"loud", "quiet", "other"}
        assert done[3:] == ["loud"] * 9

    run(act())


def test_one_account_has_so_many_threads() -> None:
    async def act() -> None:
        one = lane(threads=4, each=2)
        inside, most = 0, 0
        lock, go = threading.Lock(), threading.Event()

        def work() -> None:
            nonlocal inside, most
            with lock:
                inside += 1
                most = max(most, inside)
            go.wait(20)
            with lock:
                inside -= 1

        loud = [asyncio.create_task(one.run("loud", work)) for _ in range(4)]
        await asyncio.sleep(0.2)
        assert most == 2
        # The others are free for somebody else, at once.
        assert await one.run("quiet", lambda: "served") == "served"
        go.set()
        await asyncio.gather(*loud)
        assert most == 2

    run(act())


@pytest.mark.parametrize("sizes", [{"waiting": 2}, {"waiting_each": 2}])
def test_what_would_wait_too_long_is_refused(sizes: dict[str, int]) -> None:
    async def act() -> None:
        one, go = lane(**sizes), threading.Event()
        held = [asyncio.create_task(one.run("a", lambda: go.wait(20))) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(TooManyRequests):
            await one.run("a", int)
        if "waiting" in sizes:
            with pytest.raises(TooManyRequests):
                await one.run("b", int)
        go.set()
        await asyncio.gather(*held)
        assert await one.run("a", lambda: 7) == 7

    run(act())


def test_one_that_raises_gives_its_thread_back() -> None:
    async def act() -> None:
        one = lane()
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                await one.run("a", lambda: 1 // 0)
        assert await one.run("a", lambda: 7) == 7

    run(act())


def test_one_that_left_while_it_waited_takes_no_turn() -> None:
    async def act() -> None:
        one, go = lane(), threading.Event()
        held = asyncio.create_task(one.run("a", lambda: go.wait(20)))
        await asyncio.sleep(0)
        done: list[str] = []
        leaving = asyncio.create_task(one.run("b", lambda: done.append("b")))
        staying = asyncio.create_task(one.run("c", lambda: done.append("c")))
        await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        go.set()
        await asyncio.gather(held, staying)
        assert done == ["c"]
        assert await one.run("d", lambda: 7) == 7

    run(act())


@pytest.mark.claim("C592")
def test_a_caller_of_many_names_gives_way_to_one_that_was_served_less() -> None:
    async def act() -> None:
        one = lane(waiting=4, waiting_each=2, gives_way=True)
        names, go, done = [f"lease-{number}" for number in range(6)], threading.Event(), list[str]()

        async def asked(name: str) -> str:
            try:
                await one.run(name, lambda: done.append(name))
            except TooManyRequests:
                return "busy"
            return "served"

        for name in names:  # once each
            assert await asked(name) == "served"
        first = asyncio.create_task(one.run(names[0], lambda: go.wait(20)))
        await asyncio.sleep(0)
        flood = [asyncio.create_task(asked(name)) for name in names * 2]
        await asyncio.sleep(0)
        late = [asyncio.create_task(asked(name)) for name in ("quiet", "other")]
        await asyncio.sleep(0)
        go.set()
        await first
        assert [await task for task in late] == ["served", "served"]
        told = [await task for task in flood]
        assert told.count("served") == 2
        assert {"quiet", "other"} <= set(done)

    run(act())


@pytest.mark.claim("C592")
def test_among_equals_the_first_that_came_waits() -> None:
    async def act() -> None:
        one, go = lane(waiting=2, gives_way=True), threading.Event()
        held = [asyncio.create_task(one.run(name, lambda: go.wait(20))) for name in "abc"]
        await asyncio.sleep(0)
        with pytest.raises(TooManyRequests):
            await one.run("d", int)
        go.set()
        await asyncio.gather(*held)

    run(act())
