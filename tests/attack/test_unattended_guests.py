"""Guests that are started from their measured document, come and go, and are lied to."""

from __future__ import annotations

import json
import os
import shutil
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from polling import wait_until
from ports import free_port
from stage import CANARY, DEADLINE_SECONDS, OWNERS, RECIPE, Stage, stage
from storage_world import Server, serving
from warm import process_of

from sealtrain.base.digests import sha256_hex
from sealtrain.manifest import form

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.claim("C130", "C136")]

LONG = RECIPE | {"name": "stored", "trainer": RECIPE["trainer"] | {"max_steps": 60}}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("stage")) as made:
        yield made


@pytest.fixture(scope="module")
def proposed(world: Stage) -> Path:
    return world.propose("stored", LONG)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("stores")) as running:
        yield running


def words(
    world: Stage, proposed: Path, folder: str, *more: str | Path, **changed: Any
) -> list[str | Path]:
    """The words that start the recipe's document in a guest's folder."""
    ticket = world.folder / f"{folder}.ticket.json"
    world.run(
        "deploy", "ticket", "--role", changed.get("role", "train"),
        "--broker", changed.get("broker", world.broker),
        "--data", changed.get("data", proposed / "sealed"), "--out", ticket, *more,
    )  # fmt: skip
    return [
        "deploy", "run", "--deployment", proposed / "app-compose.json", "--ticket", ticket,
        "--folder", folder, "--simulator", "root", *world.machine,
    ]  # fmt: skip


def index_of(store: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((store / "index.json").read_bytes())
    except (OSError, ValueError):  # between two writes of the server
        return {"state": None, "files": {}, "attempts": 0}
    return found


def checkpoints(store: Path) -> list[int]:
    names = index_of(store)["files"]
    return sorted(int(name.split("-")[1]) for name in names if name.startswith("checkpoints/"))


def run_process(guest: int) -> int:
    """The process that trains: the guest's child that is no server."""
    outside = process_of(guest)
    children = Path(f"/proc/{outside}/task/{outside}/children").read_text().split()
    return max(map(int, children))


def told(health: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(f"http://{health}/healthz", timeout=5) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, None
    except OSError:
        return 0, None


def test_a_run_waits_for_its_owners_outlives_a_kill_and_ends_on_another_guest(
    world: Stage, proposed: Path, server: Server
) -> None:
    store = server.root / "runs" / "one"
    url = f"{server.url}/runs/one"
    health = f"127.0.0.1:{free_port()}"
    lasting = ("--store", url, "--wait", "120", "--restarts", "2", "--health", health)
    with world.part(*words(world, proposed, "first", *lasting)) as guest:
        wait_until(lambda: index_of(store).get("code") == "approvals-missing")
        assert told(health)[1]["state"] == "waiting"
        world.approve(proposed, *OWNERS)
        wait_until(lambda: len(checkpoints(store)) > 0)
        older = world.folder / "older"
        shutil.copytree(store, older)
        before = index_of(store)
        os.kill(run_process(guest.pid), signal.SIGKILL)
        wait_until(
            lambda: (
                index_of(store)["attempts"] > before["attempts"]
                and index_of(store)["state"] == "checkpointed"
                and min(checkpoints(store), default=0) > max(checkpoints(older))
            )
        )
        run_id = index_of(store)["run_id"]
        assert run_id == before["run_id"]
        keeper = Path("/proc") / str(run_process(guest.pid))
        guest.kill()
    wait_until(lambda: not keeper.exists())  # it ends by itself, and writes into its folder so long
    assert index_of(store)["state"] == "checkpointed"
    shutil.rmtree(world.folder / "first")
    everything = b"".join(path.read_bytes() for path in store.rglob("*") if path.is_file())
    assert CANARY.encode() not in everything

    # An operator's store that shows an older state gets no run.
    shutil.copytree(older, server.root / "runs" / "older")
    back = world.try_run(*words(world, proposed, "back", "--store", f"{server.url}/runs/older"))
    assert back.error == "checkpoint-refused"

    done = world.run(*words(world, proposed, "second", "--store", url))
    assert done["run_id"] == run_id
    assert index_of(store)["state"] == "completed"
    assert (store / "manifest.json").read_bytes() == (
        world.folder / "second" / "out" / "manifest.json"
    ).read_bytes()
    whole = words(world, proposed, "whole")
    assert world.run(*whole)["metrics"] == done["metrics"]
    document = (proposed / "app-compose.json").read_bytes()
    manifest = world.folder / "whole" / "out" / "manifest.json"
    proved = manifest.read_bytes()
    assert form.read(proved).predicate.deployment.compose_hash == sha256_hex(document)
    assert world.run(*whole)["manifest"] == str(manifest)
    assert manifest.read_bytes() == proved
    assert len(form.read((store / "manifest.json").read_bytes()).predicate.run.resumes) >= 2

    # A guest that comes later finds the run finished.
    late = world.run(*words(world, proposed, "late", "--store", url))
    assert late["manifest"].endswith("late/out/manifest.json")


@pytest.mark.nightly
def test_a_run_of_two_ranks_outlives_a_kill_unattended(
    world: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks are forked before PyTorch is loaded, also from a process that starts them again."""
    monkeypatch.setattr(world, "anew", True)
    recipe = LONG | {"name": "ranks", "backend": {"name": "trl", "ranks": 2}}
    proposed = world.propose("ranks", recipe)
    world.approve(proposed, *OWNERS)
    lasting = ("--wait", "120", "--restarts", "2")
    out = world.folder / "in-ranks" / "out"
    with world.part(*words(world, proposed, "in-ranks", *lasting)) as guest:
        # A checkpoint counts once its journal is there.
        wait_until(lambda: any((out / "journal").glob("*.sealed")) or guest.gone)
        assert not guest.gone, guest.read_stderr()
        os.kill(run_process(guest.pid), signal.SIGKILL)
        done = guest.wait_for_end(within=DEADLINE_SECONDS)
    assert done["steps"] == 60
    proved = form.read((out / "manifest.json").read_bytes())
    assert proved.predicate.run.environment["world_size"] == "2"
    assert len(proved.predicate.run.resumes) == 1


@pytest.mark.nightly
def test_a_store_that_is_away_for_a_while_costs_nothing(
    world: Stage, proposed: Path, server: Server
) -> None:
    world.approve(proposed, *OWNERS)
    server.failures = 2
    done = world.run(
        *words(world, proposed, "away", "--store", f"{server.url}/runs/away", "--wait", "60")
    )
    assert done["steps"] == 60
    assert index_of(server.root / "runs" / "away")["state"] == "completed"


def test_a_store_of_lies_ends_before_any_key_is_asked_for(
    world: Stage, proposed: Path, server: Server
) -> None:
    lies = server.root / "runs" / "lies"
    lies.mkdir(parents=True)
    (lies / "index.json").write_text('{"version": 1}')
    answer = world.try_run(*words(world, proposed, "lied", "--store", f"{server.url}/runs/lies"))
    assert answer.error == "output-store-invalid"
    assert answer.code == 3
    assert (lies / "index.json").read_text() == '{"version": 1}'
    assert not (world.folder / "lied" / "out" / "run.json").exists()


@pytest.mark.nightly
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
        answer = world.try_run(*words(world, proposed, name, **lie))
        assert answer.code in (2, 3, 5), (name, answer.stdout, answer.stderr)
        assert not code or answer.error == code, (name, answer.error)
        assert not (world.folder / name / "out" / "manifest.json").exists()
