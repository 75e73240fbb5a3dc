"""A broker takes its chain file when it starts, and its deployment document pins it."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from carrying import carries
from release_world import chain_file, config_of, release_world
from world import OWNERS, founded

from sealtrain.base.clock import system_clock
from sealtrain.broker.serve import chain_gate
from sealtrain.consortium.members import Consortium
from sealtrain.errors import ChainUnreachable, TrustInvalid
from sealtrain_chain.chain_condition import open_gate


def consortium() -> Consortium:
    return founded("three")


def test_a_broker_asks_the_contract_of_its_chain_file(tmp_path: Path) -> None:
    path = tmp_path / "chain.yaml"
    path.write_text(chain_file(*OWNERS).to_yaml())
    config = config_of(tmp_path, chain=path)
    with chain_gate(config, consortium(), system_clock) as gate:
        assert gate is not None
        with pytest.raises(ChainUnreachable):
            gate.require_allowed("11" * 20, "33" * 32)
    with chain_gate(config_of(tmp_path), consortium(), system_clock) as none:
        assert none is None


def test_a_chain_file_of_other_owners_keeps_a_broker_from_starting(tmp_path: Path) -> None:
    path = tmp_path / "chain.yaml"
    path.write_text(chain_file(OWNERS[0], "somebody-else").to_yaml())
    with (
        pytest.raises(TrustInvalid, check=carries(check="chain file", got="somebody-else")),
        chain_gate(config_of(tmp_path, chain=path), consortium(), system_clock),
    ):
        pytest.fail("it started")


def asked(listener: socket.socket) -> int:
    """How many connected since it was asked last."""
    listener.setblocking(False)
    count = 0
    with suppress(BlockingIOError):
        while True:
            listener.accept()[0].close()
            count += 1
    return count


def test_who_waits_for_a_node_that_hangs_waits_once() -> None:
    """Many guests at once share one failure instead of queueing for one each."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        chain = chain_file(*OWNERS, url=url)
        failures: list[ChainUnreachable] = []
        with open_gate(chain, clock=system_clock, monotonic=time.monotonic) as gate:

            def ask() -> None:
                try:
                    gate.require_allowed("11" * 20, "33" * 32)
                except ChainUnreachable as error:
                    failures.append(error)

            askers = [threading.Thread(target=ask) for _ in range(8)]
            begun = time.monotonic()
            for asker in askers:
                asker.start()
            for asker in askers:
                asker.join(30)
            assert time.monotonic() - begun < 6
            assert asked(silent)
            with pytest.raises(ChainUnreachable):
                gate.ready()  # what was found just now, without asking again
            assert not asked(silent)
    assert len(failures) == 8
    assert len({id(failure) for failure in failures}) == 8


def test_a_broker_whose_chain_cannot_be_read_is_not_ready(tmp_path: Path) -> None:
    with (
        open_gate(chain_file(*OWNERS), clock=system_clock, monotonic=time.monotonic) as gate,
        release_world(tmp_path, chain=gate) as world,
        pytest.raises(ChainUnreachable),
    ):
        world.broker.condition.require()
    with release_world(tmp_path) as world:
        world.broker.condition.require()
