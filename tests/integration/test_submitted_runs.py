"""Runs that are submitted, taken by a runner, watched, stopped and fetched: every part for real."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from polling import wait_until
from stage import OWNERS, RECIPE, Stage, stage
from storage_world import Server, serving

import sealtrain
from sealtrain.cli.programs import SideProgram
from sealtrain.client.errors import RunNotCompleted, SubmissionConflict, SubmissionUnknown, WaitOver
from sealtrain.consortium.errors import SubmissionEnded
from sealtrain.errors import AlreadyExists, SignatureInvalid

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.claim("C180", "C182", "C183")]

ENGINEER, RUNNER = "engineer-e", "runner-one"
SHORT: dict[str, Any] = {
    **RECIPE,
    "name": "submitted",
    "trainer": {**RECIPE["trainer"], "max_steps": 15},
}
LONG: dict[str, Any] = {
    **RECIPE,
    "name": "long",
    "trainer": {**RECIPE["trainer"], "max_steps": 4000},
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("stage"), submitters=(ENGINEER,), runners=(RUNNER,)) as made:
        yield made


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("stores")) as running:
        yield running


def project(world: Stage, folder: Path, server: Server, store: str) -> Path:
    """Ticket and project file of an engineer."""
    ticket = folder / f"{store}.ticket.json"
    world.run(
        "deploy", "ticket", "--role", "train", "--broker", world.broker,
        "--data", folder / "sealed", "--store", f"{server.url}/runs/{store}",
        "--wait", "60", "--out", ticket,
    )  # fmt: skip
    place = world.folder / "sealtrain.toml"
    place.write_text(
        f"""version = 1
brokers = [{json.dumps(str(world.broker))}]
deployment = {json.dumps(str(folder / "app-compose.json"))}
identity = {json.dumps(str(world.identity(ENGINEER)))}
ticket = {json.dumps(str(ticket))}
"""
    )
    return ticket


def runner(world: Stage, folder: Path, server: Server, place: str = "runner") -> SideProgram:
    return world.part(
        "run", "serve", "--broker", world.broker, "--identity", world.identity(RUNNER),
        "--deployment", folder / "app-compose.json", "--folder", place,
        "--allow", folder / "sealed", "--allow", f"{server.url}/runs",
        "--simulator", "root", *world.machine, answers=False,
    )  # fmt: skip


def shown(world: Stage, name: str) -> Any:
    listed = world.run("run", "list", "--all")["data"]["submissions"]
    return next(listing for listing in listed if listing["name"] == name)


def test_from_submit_to_a_verified_model_with_one_word_each(world: Stage, server: Server) -> None:
    folder = world.propose("short", SHORT)
    world.approve(folder, *OWNERS)
    project(world, folder, server, "one")
    first = world.run("run", "submit", "nightly")
    again = world.run("run", "submit", "nightly")
    assert (first["status"], first["exit_code"], first["schema_version"]) == ("ok", 0, 1)
    assert (first["data"]["first"], again["data"]["first"]) == (True, False)
    assert first["data"]["submission_id"] == again["data"]["submission_id"]
    early = world.try_run("run", "wait", "nightly", "--timeout", "1")
    assert (early.code, early.data["exit_code"]) == (124, 124)
    assert early.data["error"]["error_code"] == "wait-over"

    with runner(world, folder, server) as serving_runs:
        assert serving_runs.place("runner ready", within=60)
        done = world.run("run", "wait", "nightly", "--timeout", "240")["data"]
        assert done["state"] == "completed"
        assert done["runner"]["name"] == RUNNER
        assert done["broker"]["manifest"]["digest"]
        assert serving_runs.end(signal.SIGTERM) == 0

    lines = world.try_run("run", "logs", "nightly")
    logged = [json.loads(line) for line in lines.stdout.splitlines()]
    assert {item["from"] for item in logged} == {"runner", "broker", "submitter", "store"}
    kinds = [thing.get("event", thing["kind"]) for thing in logged]
    for kind in ("submission", "claimed", "started", "release", "manifest", "completed"):
        assert kind in kinds

    got = world.run("run", "download", "nightly", "--out", "got")["data"]
    world.run(
        "trust", "new", "--consortium", "consortium.json", "--deployment",
        folder / "app-compose.json", "--policy", "policy.yaml", "--broker", world.broker,
        "--out", world.trust,
    )  # fmt: skip
    assert world.run("verify", got["manifest"], "--trust", world.trust)["accepted"]
    audited = world.run("log", "audit", "--consortium", "consortium.json", "--broker", world.broker,
                        "--trust", world.trust)  # fmt: skip
    assert audited["findings"] == []
    assert audited["unknown"] == {}

    run = sealtrain.SubmittedRun(broker=world.broker, name="nightly")
    assert (run.state, run.look().name) == ("completed", "nightly")
    left = run.wait(5)
    assert left.manifest_digest == done["broker"]["manifest"]["digest"]
    fetched = run.download(world.folder / "fetched")
    assert fetched.manifest.read_bytes() == (world.folder / "got" / "manifest.json").read_bytes()
    verified = fetched.verify(world.trust)
    assert verified.predicate.run.run_id == left.run_id
    with pytest.raises(AlreadyExists):
        run.download(world.folder / "fetched")
    with pytest.raises(SubmissionEnded):
        run.stop(world.identity(ENGINEER))
    with pytest.raises(SubmissionUnknown):
        sealtrain.SubmittedRun(broker=world.broker, name="nobody-asked").wait(1)

    # Another run of the same store is none, and a store that gives back another manifest is found.
    shutil.copytree(server.root / "runs" / "one", server.root / "runs" / "forged")
    forged = server.root / "runs" / "forged" / "manifest.json"
    forged.write_bytes(forged.read_bytes().replace(b"1", b"2", 1))
    refused = world.try_run(
        "run", "download", "nightly", "--out", "no", "--store", f"{server.url}/runs/forged"
    )
    assert refused.error == "output-store-invalid"
    assert not (world.folder / "no").exists()


def test_a_run_is_asked_for_once_and_stopped_from_python(world: Stage, server: Server) -> None:
    """It waits for a runner that never comes; nobody else stops it, and what is asked is kept."""
    folder = world.folder / "short"
    ticket = project(world, folder, server, "python")
    locked = sealtrain.LockedRecipe.load(folder / "app-compose.json")
    asked = {"broker": world.broker, "identity": world.identity(ENGINEER)}
    run = sealtrain.SubmittedRun.submit(locked, ticket, **asked)
    again = sealtrain.SubmittedRun.submit(locked, ticket, **asked)
    assert (run, run.state) == (again, "waiting")
    assert run.name.startswith("submitted-")
    with pytest.raises(SubmissionConflict):
        sealtrain.SubmittedRun.submit(locked, ticket, name="nightly", **asked)
    with pytest.raises(SignatureInvalid):
        run.stop(world.identity(RUNNER))
    changes: list[str] = []
    with pytest.raises(WaitOver):
        run.wait(0.5, on_change=lambda shown: changes.append(shown.state))
    with pytest.raises(RunNotCompleted):
        run.download(world.folder / "nothing")
    run.stop(world.identity("clinic-a"))
    with pytest.raises(RunNotCompleted):
        run.wait(5)
    assert (run.state, changes) == ("stopped", ["waiting"])
    assert not (world.folder / "nothing").exists()


def test_a_ticket_that_names_another_place_starts_nothing(world: Stage, server: Server) -> None:
    folder = world.folder / "short"
    ticket = project(world, folder, server, "two")
    elsewhere = json.loads(ticket.read_bytes()) | {"store": f"{server.url}/others/two"}
    ticket.write_text(json.dumps(elsewhere))
    world.run("run", "submit", "elsewhere")
    with runner(world, folder, server, "careful"):
        ended = world.try_run("run", "wait", "elsewhere", "--timeout", "60")
    assert ended.code == 1
    assert ended.data["error"]["error_code"] == "run-not-completed"
    word = shown(world, "elsewhere")["runner"]
    assert (word["event"], word["code"]) == ("skipped", "ticket-invalid")
    assert not list((world.folder / "careful").rglob("guest*"))
    assert not (server.root / "others").exists()


@pytest.mark.nightly
def test_a_run_outlives_its_runner_and_stops_when_told(world: Stage, server: Server) -> None:
    folder = world.propose("long", LONG)
    world.approve(folder, *OWNERS)
    project(world, folder, server, "three")
    world.run("run", "submit", "long")

    def stored() -> bool:
        index = server.root / "runs" / "three" / "index.json"
        return index.exists() and b"checkpointed" in index.read_bytes()

    with runner(world, folder, server, "mortal") as first:
        wait_until(stored)
        wait_until(lambda: (shown(world, "long")["runner"] or {}).get("run_id"))
        run_id = shown(world, "long")["runner"]["run_id"]
        first.kill()
    with runner(world, folder, server, "mortal"):
        wait_until(lambda: shown(world, "long")["runner"]["event"] == "started")
        world.run("run", "stop", "long", "--identity", world.identity("clinic-a"))
        ended = world.try_run("run", "wait", "long", "--timeout", "60")
    assert ended.code == 1
    last = shown(world, "long")
    assert (last["state"], last["runner"]["run_id"]) == ("stopped", run_id)
    assert last["stop"]["signer"] == "clinic-a"
    assert last["broker"]["manifest"] is None
    assert last["broker"]["checkpoint"] is not None
