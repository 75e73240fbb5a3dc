"""A federation over Flower's real processes, which carry what they cannot read."""

from __future__ import annotations

import random
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from federated_world import START, FederatedWorld, rounds, values
from polling import wait_until

from sealtrain.signing.runlog import RunLog
from sealtrain_together.federated.app import FLWR_VERSION
from sealtrain_together.federated.carrier import Carrier
from sealtrain_together.federated.flower import Flower

PLACES = ("clinic-a", "clinic-b")


def test_the_app_asks_for_the_flower_that_the_extra_brings(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    wanted = f"flwr=={FLWR_VERSION}"
    assert project["optional-dependencies"]["federated"] == [wanted]
    assert wanted in (repository / "tools" / "flower" / "pins.txt").read_text().splitlines()


@pytest.mark.flower
@pytest.mark.slow
@pytest.mark.timeout(280)
@pytest.mark.nightly
def test_flower_carries_the_rounds_of_two_parties(tmp_path: Path) -> None:
    with carried(tmp_path) as (world, _flower):
        plan = rounds(rounds=1, min_parties=2, round_seconds=100, parties=PLACES)
        merged = world.federation(plan).run(START)
        assert values(merged.state) == [1.5] * 4
        assert merged.counts == {name: {"hits": 1} for name in PLACES}
        assert not world.events("party.left")


@pytest.mark.flower
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.nightly
@pytest.mark.claim("C244")
def test_a_killed_supernode_ends_no_run(tmp_path: Path) -> None:
    with carried(tmp_path) as (world, flower):

        def merged(number: int) -> None:
            wait_until(lambda: len(world.events("round.merged")) >= number, 600)

        def kills() -> None:
            merged(1)
            flower.kill_node(PLACES[0])
            flower.add_node(PLACES[0], world.folder / f"{PLACES[0]}.sock")

        thread = threading.Thread(target=kills, daemon=True)
        thread.start()
        plan = rounds(rounds=3, min_parties=2, round_seconds=300, parties=PLACES)
        state = world.federation(plan).run(START).state
        thread.join(60)
        assert values(state) == [4.5] * 4
        assert [event["parties"] for event in world.events("round.merged")] == [list(PLACES)] * 3
        lost = world.events("party.left")
        assert {loss["party"] for loss in lost} == {PLACES[0]}
        assert {refusal["code"] for refusal in lost} == {"peer-unreachable"}


@pytest.mark.flower
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.nightly
@pytest.mark.claim("C265")
@pytest.mark.parametrize("moves", [False, True])
def test_a_killed_superlink_ends_no_run(tmp_path: Path, moves: bool) -> None:
    """Its supervisor starts it again, at its address or another one; it is killed twice."""
    drawn = random.Random()  # noqa: S311  # a moment, no secret
    with carried(tmp_path) as (world, flower):
        flower.watch()
        killed: list[int] = []

        def kills() -> None:
            for number in (1, 2):
                wait_until(lambda n=number: len(world.events("round.merged")) >= n, 600)
                time.sleep(drawn.uniform(0.0, 2.0))
                flower.kill_link(moves=moves)
                killed.append(number)

        thread = threading.Thread(target=kills, daemon=True)
        thread.start()
        plan = rounds(
            rounds=4, min_parties=2, round_seconds=60, joining_seconds=86400, parties=PLACES
        )
        state = world.federation(plan).run(START).state
        thread.join(60)
        assert killed == [1, 2]
        assert values(state) == [6.0] * 4
        assert [event["parties"] for event in world.events("round.merged")] == [list(PLACES)] * 4
        assert {event["code"] for event in world.events("party.left")} <= {"peer-unreachable"}


@contextmanager
def carried(tmp_path: Path) -> Iterator[tuple[FederatedWorld, Flower]]:
    """Two parties behind Flower's processes, which talk over TLS."""
    pytest.importorskip("flwr", reason="needs sealtrain[federated]")
    with ExitStack() as stack:
        # A socket's path is short, wherever the tests lie.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fed-")))
        carrier = stack.enter_context(Carrier(folder / "lead.sock"))
        carrier.serve()
        flower = stack.enter_context(Flower(tmp_path / "flower"))
        world = FederatedWorld(
            folder=folder, stack=stack, log=RunLog("4f" * 16), carrier=carrier, relay=None
        )
        flower.open_link()
        for name in PLACES:
            world.party(name, patience=900.0)
            flower.add_node(name, folder / f"{name}.sock")
        flower.run_app(folder / "lead.sock")
        yield world, flower


@pytest.mark.flower
@pytest.mark.slow
@pytest.mark.claim("C265")
def test_a_superlink_that_ends_before_it_is_called_is_started_again(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="needs sealtrain[federated]")
    with Flower(tmp_path / "flower") as flower:
        flower.open_link()
        flower.kill_link()
        flower.run_app(tmp_path / "lead.sock")  # raises where no SuperLink takes it
