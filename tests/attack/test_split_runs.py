"""An accelerator outside of the guest attacks a run: it lies, it is not there, it is another."""

from __future__ import annotations

import base64
import json
import math
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from carrying import carries
from collecting import COLLECTING
from stage import CANARY, OWNERS, RECIPE, Stage, stage

from sealtrain.base.hostport import host_and_port
from sealtrain.errors import EgressRefused, UsageError
from sealtrain.guest.helper_machines import addresses, expect_helpers
from sealtrain.guest.sandbox.network import confine_to
from sealtrain.guest.settings import RunSettings
from sealtrain.manifest.checks.collaborations.pads import read_pad_use
from sealtrain.recipe.collaborations.pads import Pads

if not COLLECTING:
    from pads_world import accelerating, recording

    from sealtrain_together.pads.field import HALF, PRIME
    from sealtrain_together.pads.wire import MATRIX, PRODUCT

pytestmark = pytest.mark.long

altered = pytest.mark.claim("C74")
seen_by = pytest.mark.claim("C60")
RANK = 4
PADS = {"kind": "pads", "pads": "own", "checks": 1}
PRODUCTS_BEFORE = 75
"""Of some seven steps; a checkpoint was sealed after five."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    # A short path: unix sockets allow about a hundred characters.
    with stage(tmp_path_factory.mktemp("split")) as made:
        yield made


@pytest.fixture(scope="module")
def engineer(world: Stage) -> Path:
    lora = {"method": "lora", "r": RANK, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"]}
    trainer = RECIPE["trainer"] | {"max_steps": 12}
    folder = world.propose(
        "engineer", RECIPE | {"collaboration": PADS, "peft": lora, "trainer": trainer}
    )
    world.approve(folder, *OWNERS)
    return folder


def statement_of(run: Path) -> Any:
    manifest = json.loads((run / "manifest.json").read_bytes())
    return json.loads(base64.b64decode(manifest["bundle"]["dsseEnvelope"]["payload"]))


def training(world: Stage, engineer: Path, accelerator: str) -> list[str | Path]:
    """The words that start the guest that trains, or start it again."""
    return world.guest_words(
        engineer, world.folder / "run", "train", brokers=[world.broker],
        data=(str(engineer / "sealed"),), peers={"accelerator": accelerator},
    )  # fmt: skip


@dataclass
class Played:
    """A run that a lying accelerator ended, and that went on with an honest one.

    Attributes:
        answer: Of the command that trained.
        left: Names in the run's folder when it had ended.
        said: What the guest said to each of the accelerators.
    """

    answer: Any
    left: set[str]
    said: list[bytearray]
    run: Path


@pytest.fixture(scope="module")
def played(world: Stage, engineer: Path) -> Iterator[Played]:
    liar, honest = (
        host_and_port(world.serve("accelerator ready", "split", "accelerator", *words))
        for words in (["--alter", str(PRODUCTS_BEFORE)], [])
    )
    run = world.folder / "run"
    with recording(liar) as (first, before), recording(honest) as (second, after):
        answer = world.try_run(*training(world, engineer, first))
        left = {path.name for path in run.iterdir()}
        world.run(*training(world, engineer, second))
        yield Played(answer, left, [*before, *after], run)


@pytest.mark.nightly
@pytest.mark.slow
@altered
def test_an_altered_product_ends_the_run_and_an_honest_machine_goes_on(
    world: Stage, played: Played
) -> None:
    assert (played.answer.code, played.answer.error) == (3, "product-altered")
    assert played.left.isdisjoint({"manifest.json", "model"})
    world.run(
        "trust", "new", "--consortium", "consortium.json", "--deployment", world.deployment,
        "--policy", "policy.yaml", "--broker", world.broker, "--out", world.trust,
    )  # fmt: skip
    report = world.run("verify", played.run / "manifest.json", "--trust", world.trust)
    assert report["accepted"]
    predicate = statement_of(played.run)["predicate"]
    entries = predicate["run_log"]["entries"]
    assert [entry["event"] for entry in entries].count("run.resumed") == 1
    found = read_pad_use(entries, Pads.model_validate(PADS))
    assert found.beginnings == 2
    assert found.layers["q_proj"] == found.layers["down_proj"] == 1
    limits = {limit["id"] for limit in predicate["limits"]}
    assert {"base-model-public", "outsourced-shapes", "dealer-apart"} <= limits
    assert CANARY not in json.dumps(predicate)


@pytest.mark.nightly
@pytest.mark.slow
@seen_by
def test_what_left_the_guest_is_the_base_model_and_even_chance(played: Played) -> None:
    assert len(played.said) == 2  # one connection a process
    rows: list[set[bytes]] = []
    for said in played.said:
        matrices, products = frames(said)
        assert {min(sides) for sides in matrices} >= {32}
        assert RANK not in {side for sides in matrices for side in sides}
        elements = np.frombuffer(b"".join(products), np.int32).astype(np.float64)
        places = np.sort((elements + HALF + 0.5) / PRIME)
        steps = np.arange(1, len(places) + 1) / len(places)
        # Dvoretzky, Kiefer, Wolfowitz: an even sample is further off once in 10^9 runs.
        assert np.abs(steps - places).max() < math.sqrt(math.log(2e9) / (2 * len(places))) + 1e-6
        rows.append({body[at : at + 64] for body in products for at in range(0, len(body), 64)})
    assert rows[0].isdisjoint(rows[1])  # steps that were repeated look like nothing that was


def frames(said: bytearray) -> tuple[set[tuple[int, int]], list[bytes]]:
    """Sides of the matrices, and elements of the products, that a guest sent."""
    matrices, products, at = set(), [], 0
    while at + 5 <= len(said):
        kind, length = struct.unpack_from(">BI", said, at)
        body = bytes(said[at + 5 : at + 5 + length])
        at += 5 + length
        assert kind in (MATRIX, PRODUCT)
        if kind == MATRIX:
            matrices.add(struct.unpack_from(">II", body))
        else:
            products.append(body[40:])
    assert at == len(said)
    return matrices, products


@pytest.mark.slow
def test_a_run_that_is_told_of_no_accelerator_asks_for_no_key(world: Stage, engineer: Path) -> None:
    answer = world.try_run(*world.train_words(engineer, "nowhere"))
    assert (answer.code, answer.error) == (2, "usage")
    assert not (world.folder / "nowhere").exists()


def settings(folder: Path, **named: str) -> RunSettings:
    return RunSettings(
        lock=folder / "recipe.lock.json",
        platform="simulator",
        guest="guest.sock",
        collateral=None,
        brokers=(),
        data=(),
        base=folder,
        out=folder / "run",
        **named,
    )


@pytest.mark.slow
def test_machines_that_the_recipe_has_no_use_for_are_refused(world: Stage, engineer: Path) -> None:
    expect_helpers(settings(engineer, accelerator="127.0.0.1:7000"))
    with pytest.raises(UsageError, check=carries(got="127.0.0.1:7001")):
        expect_helpers(settings(engineer, accelerator="127.0.0.1:7000", dealer="127.0.0.1:7001"))
    with pytest.raises(UsageError, check=carries(got="7000")):
        expect_helpers(settings(engineer, accelerator="7000"))


def test_only_the_named_machines_can_be_reached(tmp_path: Path) -> None:
    with accelerating() as named, accelerating() as other:
        told = settings(tmp_path, accelerator="{}:{}".format(*named))
        with confine_to(*addresses(told)):
            socket.create_connection(named).close()
            with socket.socket() as elsewhere, pytest.raises(EgressRefused):
                elsewhere.connect(other)
