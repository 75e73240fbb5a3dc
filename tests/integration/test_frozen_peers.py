"""A process that is stopped, or a network that swallows its words, is told by name and in time."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import psutil
import pytest
from collecting import COLLECTING
from polling import wait_until
from relays import altering, carried

from sealtrain.errors import AcceleratorUnreachable, SealtrainError
from sealtrain.manifest.checks.collaborations.travelling import check_trips
from sealtrain_together.errors import DealerUnreachable

if not COLLECTING:
    import torch
    from pads_world import dealing, dealt, random_entries, random_matrix
    from travel_world import TERMS, travel_world

    from sealtrain_together.pads.accelerator import RemoteAccelerator
    from sealtrain_together.pads.engine import Inside, UnderPads
    from sealtrain_together.pads.matrix import PublicMatrix
    from sealtrain_together.pads.serving import Served, start_accelerator

pytestmark = [pytest.mark.long, pytest.mark.claim("C286")]
SECONDS = 1.0
if not COLLECTING:
    MATRIX = random_matrix()
    ENTRIES = random_entries(MATRIX, "forward")
    EXPECTED = Inside().product(MATRIX, "forward", ENTRIES)
    LONG = PublicMatrix(torch.zeros(8192, 8192, dtype=torch.int8))
    """Longer than what the sockets on its way hold."""


class Swallowing:
    """A network that carries all, and from some moment on nothing."""

    def __init__(self) -> None:
        self._quiet = threading.Event()

    def begin(self) -> None:
        self._quiet.set()

    def passing(self, data: bytes) -> bytes:
        return b"" if self._quiet.is_set() else data


@contextmanager
def frozen(process: int) -> Iterator[None]:
    os.kill(process, signal.SIGSTOP)
    wait_until(lambda: psutil.Process(process).status() == psutil.STATUS_STOPPED)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


@pytest.fixture(scope="module")
def there() -> Iterator[Served]:
    with start_accelerator() as found:
        yield found


def expect_in_time(error: type[SealtrainError], of: str, act: Callable[[], object]) -> None:
    began = time.monotonic()
    with pytest.raises(error, match=of):
        act()
    assert time.monotonic() - began < 20 * SECONDS  # not its patience with a slow one: seconds


@pytest.mark.parametrize("longer", [False, True], ids=["asked", "still being sent"])
def test_an_accelerator_that_is_stopped(there: Served, longer: bool) -> None:
    accelerator = RemoteAccelerator(there.host, there.port, seconds=SECONDS)
    with closing(accelerator), closing(UnderPads(accelerator)) as engine:
        engine.admit(MATRIX)
        assert torch.equal(engine.product(MATRIX, "forward", ENTRIES), EXPECTED)
        with frozen(there.process):
            expect_in_time(
                AcceleratorUnreachable,
                "accelerator",
                lambda: (
                    engine.admit(LONG) if longer else engine.product(MATRIX, "forward", ENTRIES)
                ),
            )
    # Going on, it serves the next one; what it was asked before is nobody's.
    with closing(RemoteAccelerator(there.host, there.port, seconds=60)) as again:
        engine = UnderPads(again)
        engine.admit(MATRIX)
        assert torch.equal(engine.product(MATRIX, "forward", ENTRIES), EXPECTED)


def test_an_accelerator_that_is_stopped_before_it_is_reached(there: Served) -> None:
    with (
        frozen(there.process),
        closing(RemoteAccelerator(there.host, there.port, seconds=SECONDS)) as accelerator,
    ):
        expect_in_time(AcceleratorUnreachable, "accelerator", lambda: accelerator.admit(MATRIX))


def test_a_dealer_whose_answers_stop_coming(there: Served) -> None:
    quiet = Swallowing()
    with (
        dealing() as address,
        carried(address, altering(), altering(quiet.passing)) as (through, _),
        closing(dealt(through, seconds=SECONDS)) as dealer,
        closing(RemoteAccelerator(there.host, there.port)) as accelerator,
    ):
        engine = UnderPads(accelerator, supplier=dealer, prefetch=0)
        engine.admit(MATRIX)
        assert torch.equal(engine.product(MATRIX, "forward", ENTRIES), EXPECTED)
        quiet.begin()
        expect_in_time(
            DealerUnreachable, "dealer", lambda: engine.product(MATRIX, "forward", ENTRIES)
        )


def test_a_holder_whose_answers_stop_coming_loses_its_turns_and_no_other() -> None:
    quiet = Swallowing()
    with (
        travel_world() as world,
        carried(world.holders["clinic-b"], altering(), altering(quiet.passing)) as (through, _),
    ):
        holders = world.holders | {"clinic-b": through}
        with world.orchestrator(
            parties=world.parties(holders=holders, timeout=SECONDS),
            on_trip=lambda trip, _loss: quiet.begin(),
        ) as orchestrator:
            orchestrator.run()
        entries = orchestrator.log.entries
    came = check_trips(entries, TERMS)
    assert set(came.refused.values()) == {"clinic-b"}
    assert came.tokens["clinic-a"] == came.tokens["clinic-c"] == 512 > came.tokens["clinic-b"]


def test_an_accelerator_that_travels_and_says_nothing_any_more() -> None:
    quiet = Swallowing()
    with (
        travel_world() as world,
        carried(world.control, altering(), altering(quiet.passing)) as (through, _),
        world.orchestrator(
            parties=world.parties(accelerator=through, patience=SECONDS),
            on_trip=lambda trip, _loss: quiet.begin(),
        ) as orchestrator,
    ):
        expect_in_time(AcceleratorUnreachable, "does not answer", orchestrator.run)
