"""A run that is started from its measured document: killed, started again, and finished."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stage import OWNERS, RECIPE, Stage, stage

from sealtrain.base.digests import sha256_hex
from sealtrain.manifest import form

pytestmark = [pytest.mark.slow, pytest.mark.claim("C130")]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("stage")) as made:
        yield made


@pytest.fixture(scope="module")
def proposed(world: Stage) -> Path:
    folder = world.propose("documented", RECIPE)
    world.approve(folder, *OWNERS)
    return folder


def start(world: Stage, proposed: Path, folder: str, **changed: Any) -> list[str | Path]:
    """The words that start the recipe's document in a guest's folder."""
    ticket = world.folder / f"{folder}.ticket.json"
    data = changed.get("data", proposed / "sealed")
    world.run(
        "deploy", "ticket", "--role", changed.get("role", "train"),
        "--broker", changed.get("broker", world.broker), "--data", data, "--out", ticket,
    )  # fmt: skip
    return [
        "deploy", "run", proposed / "app-compose.json", "--ticket", ticket,
        "--folder", folder, "--simulator", "root", *world.machine,
    ]  # fmt: skip


def test_a_killed_guest_started_again_finishes_the_same_run(world: Stage, proposed: Path) -> None:
    words = start(world, proposed, "killed")
    out = world.folder / "killed" / "out"
    with world.started(*words) as (process, _said):
        while not list((out / "checkpoints").glob("*.sealed")):
            assert process.poll() is None
        process.kill()
        process.wait()
    run_id = json.loads((out / "run.json").read_bytes())["run_id"]
    assert not (out / "manifest.json").exists()

    done = world.run(*words)
    assert done["run_id"] == run_id
    assert done["steps"] == RECIPE["trainer"]["max_steps"]
    whole = world.run(*start(world, proposed, "whole"))
    assert whole["metrics"] == done["metrics"]

    manifest = (out / "manifest.json").read_bytes()
    document = (proposed / "app-compose.json").read_bytes()
    assert form.read(manifest).predicate.deployment.compose_hash == sha256_hex(document)
    again = world.run(*words)
    assert again["manifest"] == str(out / "manifest.json")
    assert (out / "manifest.json").read_bytes() == manifest


@pytest.mark.claim("C133")
def test_lies_of_a_ticket_end_without_a_run(world: Stage, proposed: Path, tmp_path: Path) -> None:
    other = world.propose("others", RECIPE | {"name": "others"})
    pin = (world.folder / "broker.yaml").read_text()
    key = pin.split("signing_key: ", 1)[1].split("\n", 1)[0]
    (tmp_path / "mine.yaml").write_text(pin.replace(key, "A" * 43 + "="))
    lies: dict[str, tuple[dict[str, Any], str]] = {
        "other-data": ({"data": other / "sealed"}, ""),
        "no-data": ({"data": tmp_path}, ""),
        "another-broker": ({"broker": tmp_path / "mine.yaml"}, "broker-mismatch"),
        "another-role": ({"role": "evaluate"}, "ticket-invalid"),
    }
    for name, (lie, code) in lies.items():
        answer = world.try_run(*start(world, proposed, name, **lie))
        assert answer.code in (2, 3, 5), (name, answer.stdout, answer.stderr)
        assert not code or answer.error == code, (name, answer.error)
        assert not (world.folder / name / "out" / "manifest.json").exists()
