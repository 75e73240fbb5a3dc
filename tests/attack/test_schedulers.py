"""Schedulers beside a real broker: two at once, killed, told a wrong time, and at rest."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from polling import wait_until
from processes import runs
from stage import OWNERS, RECIPE, Stage, records, stage

from sealtrain.base.clock import from_rfc3339, to_rfc3339
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.pin import load_pin
from sealtrain.recipe.duetimes import name_of, read_due_name

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.claim("C194", "C196")]

SCHEDULER = "scheduler-s"
DAY = 86_400
FIRST = from_rfc3339("2027-01-04T03:00:00Z")
SCHEDULED: dict[str, Any] = {
    **RECIPE,
    "name": "scheduled",
    "schedule": {
        "when": "cron",
        "cron": "0 3 * * *",
        "continue": "base",
        "runs": 20,
        "starts_at": to_rfc3339(FIRST),
        "ends_at": to_rfc3339(FIRST + 30 * DAY),
    },
}


FRESH: dict[str, Any] = {
    **SCHEDULED,
    "name": "fresh",
    "schedule": {
        **{key: value for key, value in SCHEDULED["schedule"].items() if key != "cron"},
        "when": "new-data",
        "least_seconds": 3600,
    },
}


class World:
    """A stage with a locked schedule, and the commands of its scheduler."""

    def __init__(self, stage: Stage, recipe: dict[str, Any] = SCHEDULED) -> None:
        self.stage = stage
        self.folder = stage.propose(recipe["name"], recipe)
        self.ticket = stage.folder / "train.ticket.json"
        self.clock = stage.folder / "clock.txt"
        self.recipe_hash = self._recipe_hash()
        stage.run(
            "deploy", "ticket", "--role", "train", "--broker", stage.broker,
            "--data", self.folder / "sealed", "--out", self.ticket,
        )  # fmt: skip

    def _recipe_hash(self) -> str:
        from sealtrain.recipe.lock import LockedRecipe

        return LockedRecipe.load(self.folder / "app-compose.json").recipe_hash

    def words(self, *more: str) -> list[str]:
        return [
            *map(str, (
                "run", "schedule", self.folder / "app-compose.json",
                "--broker", self.stage.broker, "--identity", self.stage.identity(SCHEDULER),
                "--ticket", self.ticket, "--insecure-simulated-clock", self.clock,
            )),
            *more,
        ]  # fmt: skip

    def at(self, day: int, seconds: int = 0) -> None:
        fresh = self.clock.with_suffix(".new")
        fresh.write_text(to_rfc3339(FIRST + day * DAY + seconds))
        fresh.replace(self.clock)

    def popen(self, *more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.stage.command(*self.words(*more)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.stage.folder,
            env=self.stage.environment(),
        )

    def of(self, day: int) -> list[tuple[str, str | None]]:
        """State and code of what was submitted for a day."""
        with BrokerClient(load_pin(self.stage.broker).url) as client:
            found = client.submissions(name=name_of(self.recipe_hash, FIRST + day * DAY))
        return [
            (state.state, None if state.runner is None else state.runner.code) for state in found
        ]

    def submitted(self) -> int:
        with BrokerClient(load_pin(self.stage.broker).url) as client:
            return len(client.submissions())


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    names = (SCHEDULER,)
    with stage(tmp_path_factory.mktemp("stage"), submitters=names, runners=names) as made:
        yield World(made)


class Fresh(World):
    """A schedule that waits for data, on one that owners add."""

    def seal(self, owner: str, name: str = "notes") -> str:
        source = self.stage.folder / f"{owner}-{name}.jsonl"
        source.write_text(records(owner))
        out = self.folder / f"{owner}-{os.urandom(4).hex()}.sealed"
        made = self.stage.run(
            "seal", source, "--name", name, "--identity", self.stage.identity(owner),
            "--deployment", self.folder / "app-compose.json", "--broker", self.stage.broker,
            "--out", out,
        )  # fmt: skip
        return str(made["dataset_id"])

    def ends(self) -> list[tuple[str, str | None]]:
        """How each due time stands, oldest first."""
        with BrokerClient(load_pin(self.stage.broker).url) as client:
            found = client.submissions()
        mine = [item for item in found if read_due_name(item.name, self.recipe_hash) is not None]
        return [
            (entry.state, None if entry.runner is None else entry.runner.code)
            for entry in sorted(mine, key=lambda one: one.index)
        ]


def test_before_the_owners_approved_a_due_time_is_skipped_by_name(world: World) -> None:
    world.at(0)
    answer = world.stage.run(*world.words("--once"))
    assert [refusal["code"] for refusal in answer["decided"]] == ["approvals-missing"]
    assert world.of(0) == [("skipped", "approvals-missing")]
    assert answer["next"] == to_rfc3339(FIRST + DAY)


def test_two_schedulers_at_once_submit_once(world: World) -> None:
    world.stage.approve(world.folder, *OWNERS)
    world.at(1)
    both = [world.popen("--once", "--json") for _ in range(2)]
    told = [json.loads(process.communicate(timeout=120)[0]) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert world.of(1) == [("waiting", None)]
    assert world.submitted() == 2
    assert {decision["name"] for answer in told for decision in answer["decided"]} == {
        name_of(world.recipe_hash, FIRST + DAY)
    }


def test_downtime_ends_in_the_ledger_day_by_day_and_the_run_before_still_waits(
    world: World,
) -> None:
    world.at(4)
    world.stage.run(*world.words("--once"))
    assert [world.of(day) for day in (2, 3, 4)] == [
        [("skipped", "late")],
        [("skipped", "late")],
        [("skipped", "still-running")],
    ]


def test_a_clock_that_is_set_back_submits_nothing_and_is_named(world: World) -> None:
    before = world.submitted()
    world.at(2, seconds=60)
    answer = world.stage.try_run(*world.words("--once"))
    assert (answer.code, answer.data["decided"]) == (0, [])
    assert to_rfc3339(FIRST + 4 * DAY) in answer.stderr
    assert world.submitted() == before


def test_a_ticket_of_a_skipped_day_starts_nothing_anywhere(world: World) -> None:
    """Its one place for data is no place, whoever claims it first."""
    with BrokerClient(load_pin(world.stage.broker).url) as client:
        [shown] = client.submissions(name=name_of(world.recipe_hash, FIRST + 2 * DAY))
        envelope = client.submission(shown.submission_id).envelope

    ticket = json.loads(base64.b64decode(envelope.to_dict()["payload"]))["ticket"]
    assert ticket["data"] == ["/skipped/late"]
    assert not Path(ticket["data"][0]).exists()


@pytest.mark.nightly
def test_a_scheduler_at_rest_is_small_and_wakes_for_the_next_day(world: World) -> None:
    world.at(4, seconds=120)
    process = world.popen()
    try:
        assert process.stderr is not None
        wait_until(
            lambda: "scheduler ready" in (process.stderr.readline() if process.stderr else "")
        )
        resting = psutil.Process(process.pid)
        assert resting.children() == []
        assert resting.memory_info().rss < 60 << 20
        world.at(5)
        wait_until(lambda: world.of(5) == [("skipped", "still-running")])
        process.kill()  # -9: it has no state to lose
        process.wait()
        world.at(6)
        world.stage.run(*world.words("--once"))
        assert world.of(5) == world.of(6) == [("skipped", "still-running")]
    finally:
        process.kill()
        process.communicate()


def test_a_simulated_clock_is_for_the_simulator_alone(world: World) -> None:
    hardware = {
        "platforms": ["dstack", "simulator"],
        "tier": "processor",
        "image": f"registry.example/sealtrain:1@sha256:{'5a' * 32}",
        "key_provider": "none",
        "key_provider_id": None,
    }
    folder = world.stage.folder / "elsewhere"
    folder.mkdir()

    (folder / "recipe.yaml").write_text(
        yaml.safe_dump({**SCHEDULED, "name": "elsewhere", "hardware": hardware})
    )
    world.stage.run("lock", folder / "recipe.yaml", "--broker", world.stage.broker, "--out", folder)
    words = world.words("--once")
    words[2] = str(folder / "app-compose.json")
    refused = world.stage.try_run(*words)
    assert (refused.code, refused.error) == (2, "usage")


def test_the_runners_folder_goes_with_runs_that_follow_each_other(world: World) -> None:
    """Named for a recipe that begins anew, or left out where a run needs the model before it."""
    refused = world.stage.try_run(*world.words("--once", "--folder", "runner"))
    assert (refused.code, refused.error) == (2, "usage")
    folder = world.stage.folder / "follows"
    folder.mkdir()
    schedule = SCHEDULED["schedule"] | {"continue": "last"}
    (folder / "recipe.yaml").write_text(
        yaml.safe_dump({**SCHEDULED, "name": "follows", "schedule": schedule, "peft": None})
    )
    world.stage.run("lock", folder / "recipe.yaml", "--broker", world.stage.broker, "--out", folder)
    words = world.words("--once")
    words[2] = str(folder / "app-compose.json")
    refused = world.stage.try_run(*words)
    assert (refused.code, refused.error) == (2, "usage")
    before = world.submitted()
    world.at(0)
    answer = world.stage.run(*words, "--folder", "runner")
    # Owners approved another recipe, where the tests before this one had them.
    [decided] = answer["decided"]
    assert decided["code"] in {"approvals-missing", "recipe-changed"}
    assert world.submitted() == before + 1


def test_a_key_that_is_no_runner_cannot_skip(world: World) -> None:
    """An owner may submit, and records no event: the day stays open for the real scheduler."""
    world.at(7)
    words = world.words("--once")
    words[words.index("--identity") + 1] = str(world.stage.identity(OWNERS[0]))
    refused = world.stage.try_run(*words)
    assert refused.error == "signature-invalid"
    world.stage.run(*world.words("--once"))
    assert world.of(7) == [("skipped", "still-running")]


@pytest.mark.claim("C273")
def test_what_a_scheduler_decides_by_ends_with_it(world: World) -> None:
    """Its child is held in the middle of a decision; a kill of the scheduler ends that, too."""
    world.at(8)
    process = world.popen()
    found: list[psutil.Process] = []

    def decides() -> bool:
        found[:] = [
            child for child in psutil.Process(process.pid).children() if "--once" in child.cmdline()
        ]
        return bool(found)

    try:
        wait_until(decides)
        [deciding] = found
        deciding.suspend()
        process.kill()
        process.wait()
        wait_until(lambda: not runs(deciding), 20)
    finally:
        for item in found:
            if runs(item):
                item.kill()
        process.kill()
        process.communicate()


def test_of_several_brokers_the_first_alone_keeps_a_schedule(world: World) -> None:
    """Two of them would each submit every due time."""
    stage = world.stage
    stage.open_broker("second")
    files = (stage.broker, stage.folder / "second.yaml")
    brokers = {load_pin(file).broker_id: file for file in files}
    folder = stage.folder / "at-two"
    folder.mkdir()
    recipe = {**SCHEDULED, "name": "at-two"}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    named = [word for path in brokers.values() for word in ("--broker", path)]
    stage.run("lock", folder / "recipe.yaml", *named, "--out", folder)
    words = world.words("--once")
    words[2] = str(folder / "app-compose.json")
    first, second = (brokers[name] for name in sorted(brokers))
    world.at(0)
    place = words.index("--broker") + 1
    words[place] = str(second)
    refused = stage.try_run(*words)
    assert (refused.code, refused.error) == (2, "usage")
    words[place] = str(first)
    [decided] = stage.run(*words)["decided"]
    assert decided["code"] is not None


@pytest.fixture(scope="module")
def fresh(world: World) -> Fresh:
    made = Fresh(world.stage, FRESH)
    world.stage.run(
        "approve", "--deployment", made.folder / "app-compose.json", "--broker",
        world.stage.broker, "--identity", world.stage.identity(OWNERS[0]), "--unpinned", "--yes",
    )  # fmt: skip
    return made


@pytest.mark.nightly
@pytest.mark.claim("C232")
def test_new_data_is_tried_soon_and_each_refusal_is_a_skip_with_its_reason(fresh: Fresh) -> None:
    """A scheduler that rests, and a withdrawn dataset: never a failed run, nor silence."""
    stage = fresh.stage
    fresh.at(0)
    first = stage.run(*fresh.words("--once"))
    assert [refusal["code"] for refusal in first["decided"]] == ["approvals-missing"]
    for owner in OWNERS[1:]:
        stage.run(
            "approve", "--deployment", fresh.folder / "app-compose.json", "--broker",
            stage.broker, "--identity", stage.identity(owner), "--unpinned", "--yes",
        )  # fmt: skip
    stage.run(
        "withdraw", fresh.folder / "sealed" / f"{OWNERS[1]}.notes.sealed",
        "--identity", stage.identity(OWNERS[1]), "--broker", stage.broker,
        "--consortium", "consortium.json", "--yes",
    )  # fmt: skip
    fresh.at(0, 3600)
    second = stage.run(*fresh.words("--once"))
    assert [refusal["code"] for refusal in second["decided"]] == ["dataset-withdrawn"]
    assert second["watch"] is None
    fresh.seal(OWNERS[1])
    fresh.at(0, 7200)
    third = stage.run(*fresh.words("--once"))
    assert [refusal["code"] for refusal in third["decided"]] == [None]
    skips = [("skipped", "approvals-missing"), ("skipped", "dataset-withdrawn")]
    assert fresh.ends() == [*skips, ("waiting", None)]
    assert third["watch"].startswith(load_pin(stage.broker).url)

    fresh.at(0, 3 * 3600)
    process = fresh.popen()
    try:
        assert process.stderr is not None
        line = ""
        while "scheduler ready" not in line:
            line = process.stderr.readline()
            assert line
        resting = psutil.Process(process.pid)
        before = len(fresh.ends())
        wait_until(lambda: resting.children() == [])
        fresh.seal(OWNERS[2])
        wait_until(lambda: len(fresh.ends()) > before)
        wait_until(lambda: fresh.ends()[-1] == ("skipped", "still-running"))
    finally:
        process.kill()
        process.communicate()
