"""A broker that is told to stop: what it began is answered, idle callers do not hold it up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from release_world import ReleaseWorld, config_of, release_world

from sealtrain.broker.serve import listening
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.errors import BrokerUnreachable
from sealtrain.client.grant import Grant


class Gate:
    """Holds a call inside the broker until it is opened."""

    def __init__(self, act: Callable[..., Any]) -> None:
        self._act = act
        self._entered, self.opened = threading.Semaphore(0), threading.Event()

    def __call__(self, *given: Any) -> Any:
        self._entered.release()
        assert self.opened.wait(20)
        return self._act(*given)

    def reached_by(self, calls: int) -> bool:
        return all(self._entered.acquire(timeout=20) for _ in range(calls))


def asking(world: ReleaseWorld, url: str, pool: ThreadPoolExecutor) -> Future[Grant]:
    attested = world.attest()

    def ask() -> Grant:
        with BrokerClient(url, timeout=20.0) as client:
            return world.obtain(wire=client, attested=attested)

    return pool.submit(ask)


def test_releases_that_were_begun_are_answered_before_it_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with release_world(tmp_path) as world, ThreadPoolExecutor(3) as pool:
        size = world.ledger.size
        gate = Gate(world.broker.release)
        monkeypatch.setattr(world.broker, "release", gate)
        with listening(world.broker, config_of(tmp_path)) as url:
            asked = [asking(world, url, pool) for _ in range(3)]
            assert gate.reached_by(3)
            threading.Timer(0.5, gate.opened.set).start()
        # The block was left at once; the answers came after that.
        grants = [future.result(timeout=20) for future in asked]
        assert gate.opened.is_set()
        assert len({grant.run_id for grant in grants}) == 3
        assert [entry["kind"] for entry in world.ledger.entries(size)] == ["release"] * 3
        with pytest.raises(BrokerUnreachable), BrokerClient(url, timeout=2.0) as client:
            client.health()


def test_an_idle_connection_does_not_hold_it_up(tmp_path: Path) -> None:
    with release_world(tmp_path) as world, httpx2.Client(trust_env=False) as client:
        with listening(world.broker, config_of(tmp_path)) as url:
            assert client.get(f"{url}/v1/health").status_code == 200
            began = time.monotonic()
        assert time.monotonic() - began < 3


def test_a_request_that_does_not_end_is_given_up_without_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with release_world(tmp_path) as world, ThreadPoolExecutor(1) as pool:
        gate = Gate(world.broker.release)
        monkeypatch.setattr(world.broker, "release", gate)
        try:
            with listening(world.broker, config_of(tmp_path), stop_seconds=1) as url:
                asked = asking(world, url, pool)
                assert gate.reached_by(1)
                began = time.monotonic()
            assert time.monotonic() - began < 6
            with pytest.raises(BrokerUnreachable):
                asked.result(timeout=20)
        finally:
            gate.opened.set()
            with suppress(BrokerUnreachable):
                asked.result(timeout=20)
