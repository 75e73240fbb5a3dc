"""A federation over Flower's real processes, which carry what they cannot read."""

from __future__ import annotations

import tempfile
import tomllib
from contextlib import ExitStack
from pathlib import Path

import pytest
from federated_world import START, FederatedWorld, rounds, values

from sealtrain.signing.runlog import RunLog
from sealtrain_collab.federated.app import FLWR_VERSION
from sealtrain_collab.federated.carrier import Carrier
from sealtrain_collab.federated.flower import Flower

PLACES = ("clinic-a", "clinic-b")


def test_the_app_asks_for_the_flower_that_the_extra_brings(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["federated"] == [f"flwr=={FLWR_VERSION}"]


@pytest.mark.slow
@pytest.mark.timeout(280)
@pytest.mark.nightly
def test_flower_carries_the_rounds_of_two_parties(tmp_path: Path) -> None:
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
            world.party(name)
            flower.add_node(name, folder / f"{name}.sock")
        flower.run_app(folder / "lead.sock")
        plan = rounds(rounds=1, min_parties=2, round_seconds=100, parties=PLACES)
        merged = world.federation(plan).run(START)
        assert values(merged.state) == [1.5] * 4
        assert merged.counts == {name: {"hits": 1} for name in PLACES}
        assert not world.events("party.left")
