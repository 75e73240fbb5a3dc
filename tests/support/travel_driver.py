"""An accelerator and what drives it step by step, in place of an orchestrator's run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest
from travel_world import PATIENCE, PROGRAM, RUN_ID, Tokens, TravelWorld, travel_world

from sealtrain.base.canonical import JsonValue
from sealtrain_together.travelling import programs as kinds_of_programs
from sealtrain_together.travelling.accelerator import CONTROL_PURPOSE
from sealtrain_together.travelling.capability import WriteCapability, write_chunk
from sealtrain_together.travelling.control import AcceleratorLane, Turn, TurnResult, WipeChallenge
from sealtrain_together.travelling.program import TravellingModel


def filling(chunk: bytes) -> Callable[[int, memoryview], None]:
    def fill(start: int, part: memoryview) -> None:
        part[:] = chunk[start : start + len(part)]

    return fill


class Driver:
    """An orchestrator of one holder, step by step."""

    def __init__(self, world: TravelWorld, stack: ExitStack, session: str = "01" * 16) -> None:
        self.world = world
        self.work = stack.enter_context(lane_to(world, session, "work"))
        self.loaded = self.work.load(PROGRAM, os.urandom(32))
        self.loans = stack.enter_context(lane_to(world, session, "loans"))

    def filled(self, trip: int, challenge: WipeChallenge | None = None) -> Turn:
        """A chunk of one step, written to the half of a trip; what is asked for then."""
        start = trip % 2 * (self.world.buffer_bytes // 2)
        size = PROGRAM.step_bytes
        capability = WriteCapability.make(trip, start, start + size, os.urandom)
        self.loans.lend(capability, challenge)
        data = Tokens("clinic-a", 512).data[:size]
        written = write_chunk(self.world.writes, capability, size, filling(data), timeout=PATIENCE)
        return Turn(
            start=start, end=start + size, id=capability.id, written=written,
            nonce=os.urandom(32), seed=os.urandom(32),
        )  # fmt: skip

    def trained(self, turn: Turn) -> TurnResult:
        self.work.turn(turn)
        return self.work.wait_trained()


def lane_to(world: TravelWorld, session: str, name: str) -> Any:
    context: dict[str, JsonValue] = {"run_id": RUN_ID, "session": session, "lane": name}
    parties = world.parties()
    talk = parties.conversation(CONTROL_PURPOSE, context, parties.accept_accelerator, os.urandom)
    return closing(AcceleratorLane.open(world.control, talk, timeout=PATIENCE))


@contextmanager
def driven(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Driver, TravellingModel]]:
    """An accelerator that trained on one chunk and waits, and its program."""
    programs: list[TravellingModel] = []

    def built(*given: Any) -> TravellingModel:
        programs.append(TravellingModel(*given))
        return programs[-1]

    monkeypatch.setattr(kinds_of_programs, "TravellingModel", built)
    with travel_world() as world, ExitStack() as stack:
        driver = Driver(world, stack)
        driver.trained(driver.filled(0))
        yield driver, programs[0]
