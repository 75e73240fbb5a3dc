"""A runner with tickets that reach elsewhere, a second runner, a lost claim, a broker that is away.

Guests are an operator's program here: what a runner starts, when, and how often. Whole runs are in
``integration/test_submitted_runs.py``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from control_world import OTHER, RUNNER, SUBMITTER, ControlWorld, ticket
from release_world import TestClock, config_of, served_world
from world import identity

from sealtrain.broker.serve import listening
from sealtrain.broker.service.service import Broker
from sealtrain.cli.guest_starter import own_program
from sealtrain.cli.runner import Runner, RunnerSettings, runner_folder
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.errors import TicketInvalid
from sealtrain.client.pin import BrokerPin
from sealtrain.client.ticket import RunTicket, parse_ticket
from sealtrain.errors import AlreadyExists, UsageError
from sealtrain.owner.runs import RunDesk
from sealtrain.owner.ticket_places import Places

pytestmark = pytest.mark.long

ONCE = pytest.mark.claim("C180")
PLACES = pytest.mark.claim("C183")
GUEST = """#!/bin/bash
while [ $# -gt 0 ]; do case $1 in --folder) folder=$2;; esac; shift 2; done
mkdir -p "$folder"
echo started >> "$folder/said"
trap 'echo ended >> "$folder/said"; exit 143' TERM
while [ ! -e "$folder/../../quit" ]; do sleep 0.02; done
exit "$(cat "$folder/../../quit")"
"""


@dataclass(kw_only=True)
class Seconds:
    """A clock of a runner that counts what it is told."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(kw_only=True)
class Site:
    """A served broker, and runners on this machine."""

    control: ControlWorld
    url: str
    folder: Path
    stack: ExitStack
    seconds: Seconds = field(default_factory=Seconds)
    said: list[str] = field(default_factory=list)

    def desk(self, name: str, url: str | None = None) -> RunDesk:
        pin = self.control.world.pin
        kept = BrokerPin(**{**dict(pin), "url": url or self.url})
        clock: TestClock = self.control.world.clock
        client = self.stack.enter_context(
            BrokerClient(
                kept.url,
                signer=identity(name).signer,
                broker=kept.broker_id,
                clock=clock,
                timeout=5.0,
            )
        )
        return RunDesk(client=client, pin=kept, signer=identity(name).signer, clock=clock)

    def runner(self, name: str = RUNNER, place: str = "one", url: str | None = None) -> Runner:
        folder = self.folder / place
        instance = self.stack.enter_context(runner_folder(folder))
        document = self.control.world.folder / "app-compose.json"
        document.write_bytes(self.control.world.locked.compose_bytes)
        program = self.folder / "guest.sh"
        program.write_text(GUEST)
        program.chmod(0o755)
        settings = RunnerSettings(
            folder=folder,
            documents={self.control.world.locked.compose_hash: document},
            places=Places(("/sealed", "http://127.0.0.1:1")),
            program=own_program(program),
            claim_seconds=60,
        )
        made = Runner(
            self.desk(name, url), settings, instance, monotonic=self.seconds, say=self.said.append
        )
        self.stack.callback(made.end)
        return made

    def turns(self, runner: Runner, until: Callable[[], bool], seconds: float = 30.0) -> None:
        """Let a runner work until something holds; its clock goes on with the broker's."""
        ends = time.monotonic() + seconds
        while not until():
            assert time.monotonic() < ends, self.said
            self.pass_time(3)
            runner.turn()
            time.sleep(0.02)

    def pass_time(self, seconds: int) -> None:
        self.seconds.now += seconds
        self.control.world.clock.advance(seconds)

    def starts(self, submission_id: str) -> list[str]:
        """What guests of a submission said, wherever."""
        files = self.folder.glob(f"*/{submission_id}/guest/said")
        return [line for file in sorted(files) for line in file.read_text().splitlines()]

    def quit(self, status: int, place: str = "one") -> None:
        (self.folder / place).mkdir(exist_ok=True)
        (self.folder / place / "quit").write_text(f"{status}\n")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    (tmp_path / "runners").mkdir()
    with (
        served_world(tmp_path, submitters=(SUBMITTER,), runners=(RUNNER, OTHER)) as (world, url),
        ExitStack() as stack,
    ):
        yield Site(
            control=ControlWorld(world=world), url=url, folder=tmp_path / "runners", stack=stack
        )


@ONCE
def test_two_runners_start_a_submission_once(site: Site) -> None:
    posted = site.control.submit()
    one, two = site.runner(RUNNER, "one"), site.runner(OTHER, "two")
    for _ in range(4):
        for runner in (one, two):
            runner.turn()
        site.pass_time(3)
    site.turns(one, lambda: bool(site.starts(posted.submission_id)))
    assert site.starts(posted.submission_id) == ["started"]
    assert [len(one.holds), len(two.holds)] in ([1, 0], [0, 1])
    assert site.control.events().count("claimed") == 1


@ONCE
def test_a_submission_sent_again_while_it_runs_and_after_it_starts_nothing(site: Site) -> None:
    posted = site.control.submit()
    runner = site.runner()
    site.turns(runner, lambda: bool(site.starts(posted.submission_id)))
    site.control.submit()
    runner.turn()
    site.quit(7)
    site.turns(runner, lambda: not runner.holds)
    site.control.submit()
    for _ in range(4):
        site.pass_time(3)
        runner.turn()
    assert site.starts(posted.submission_id) == ["started"]
    shown = site.control.shown(posted.submission_id)
    assert shown.runner is not None
    assert (shown.state, shown.runner.code) == ("failed", "guest-lost")


@ONCE
def test_a_runner_whose_claim_another_took_over_stops_its_guest_and_says_nothing(
    site: Site,
) -> None:
    posted = site.control.submit(ticket=ticket(site.control.world, store="http://127.0.0.1:1/s"))
    runner = site.runner()
    site.turns(runner, lambda: "started" in site.control.events())
    site.control.world.clock.advance(61)  # the broker's clock only: its claim has ended there
    other = site.control.runner(OTHER)
    other.report(posted.submission_id, "claimed")
    other.report(posted.submission_id, "started")
    before = site.control.events()
    site.turns(runner, lambda: not runner.holds)
    assert site.starts(posted.submission_id) == ["started", "ended"]
    assert site.control.events() == before


@ONCE
def test_a_runner_that_cannot_renew_stops_its_guest_before_its_claim_ends(
    tmp_path: Path, site: Site
) -> None:
    world = site.control.world
    with listening(Broker(world.parts), config_of(tmp_path)) as url:
        runner = site.runner(url=url)
        posted = site.control.submit()
        site.turns(runner, lambda: "started" in site.starts(posted.submission_id))
    site.seconds.now += 58  # of 60, and no broker answers
    runner.turn()
    for _ in range(200):
        if "ended" in site.starts(posted.submission_id):
            break
        time.sleep(0.05)
    assert site.starts(posted.submission_id) == ["started", "ended"]


@ONCE
def test_a_broker_that_was_away_gets_the_end_of_a_run_once(tmp_path: Path, site: Site) -> None:
    world = site.control.world
    with listening(Broker(world.parts), config_of(tmp_path)) as url:
        runner = site.runner(url=url)
        posted = site.control.submit()
        site.turns(runner, lambda: "started" in site.control.events())
    site.quit(9)
    port = int(url.rpartition(":")[2])
    for _ in range(3):
        runner.turn()
        time.sleep(0.1)
    with listening(Broker(world.parts), config_of(tmp_path, port=port)):
        site.turns(runner, lambda: not runner.holds)
    assert site.control.events().count("failed") == 1
    assert site.starts(posted.submission_id) == ["started"]


@ONCE
def test_a_runner_that_died_goes_on_in_its_folder(site: Site) -> None:
    posted = site.control.submit()
    folder = site.folder / "one"
    with ExitStack() as mortal:
        first = Site(
            control=site.control, url=site.url, folder=site.folder, stack=mortal,
            seconds=site.seconds,
        )  # fmt: skip
        runner = first.runner()
        first.turns(runner, lambda: "started" in site.control.events())
    assert (folder / posted.submission_id / "guest").is_dir()
    again = site.runner()
    site.turns(again, lambda: site.starts(posted.submission_id).count("started") == 2)
    site.pass_time(61)
    other = site.runner(OTHER, "two")
    for _ in range(3):
        other.turn()
        site.pass_time(3)
    assert other.holds == ()  # no store: only the folder that has the run goes on


@ONCE
def test_a_folder_has_one_runner(site: Site) -> None:
    site.runner()
    with pytest.raises(AlreadyExists), runner_folder(site.folder / "one"):
        pass


@ONCE
def test_a_stop_ends_the_guest_and_is_reported(site: Site) -> None:
    posted = site.control.submit()
    runner = site.runner()
    site.turns(runner, lambda: "started" in site.control.events())
    site.control.stop(posted.submission_id)
    site.turns(runner, lambda: not runner.holds)
    assert site.starts(posted.submission_id) == ["started", "ended"]
    assert site.control.events()[-2:] == ["run-stop", "stopped"]


@ONCE
def test_a_full_disk_is_reported_and_starts_nothing(site: Site) -> None:
    posted = site.control.submit()
    runner = site.runner()
    (site.folder / "one" / posted.submission_id).write_bytes(b"")  # no folder can be made
    site.turns(runner, lambda: "failed" in site.control.events())
    shown = site.control.shown(posted.submission_id)
    assert shown.runner is not None
    assert shown.runner.code == "storage-failed"


@ONCE
def test_a_runner_that_says_completed_without_a_run_is_not_believed_by_itself(site: Site) -> None:
    """The guest's program ended with 0 and named no run."""
    posted = site.control.submit()
    runner = site.runner()
    site.quit(0)
    site.turns(runner, lambda: site.control.events()[-1] == "failed")
    shown = site.control.shown(posted.submission_id)
    assert shown.runner is not None
    assert shown.runner.code == "guest-lost"


@PLACES
def test_a_ticket_that_names_another_place_is_skipped(site: Site) -> None:
    posted = site.control.submit(ticket=ticket(site.control.world, data=["/etc"]))
    runner = site.runner()
    site.turns(runner, lambda: site.control.events()[-1] == "skipped")
    shown = site.control.shown(posted.submission_id)
    assert shown.runner is not None
    assert shown.runner.code == "ticket-invalid"
    assert site.starts(posted.submission_id) == []
    assert not (site.folder / "one" / posted.submission_id / "ticket.json").exists()


LISTED = ("https://store.example/runs", "127.0.0.1:8000", "peer.example:*")


BEFORE = {"manifest_digest": "ab" * 32, "number": 2}


@PLACES
@pytest.mark.parametrize(
    "changed",
    [
        {"data": ["{folder}/sealed/../secret"]},
        {"data": ["{folder}/sealed-too"]},
        {"data": ["{folder}/sealed/link/x"]},
        {"data": ["sealed"]},
        {"data": ["https://store.example/runs-of-others/x"]},
        {"data": ["https://store.example/runs/../private"]},
        {"data": ["https://store.example/runs/%2e%2e/private"]},
        {"data": ["https://store.example/runs/%2E%2E%2Fprivate"]},
        {"data": ["https://store.example.evil/runs/x"]},
        {"data": ["http://store.example/runs/x"]},
        {"data": ["https://STORE.example:444/runs/x"]},
        {"store": "s3://elsewhere/out"},
        {"base": "/"},
        {"collateral": "https://collateral.example/v4"},
        {"credentials": "http://lender.example:1"},
        {"health": "0.0.0.0:8000"},
        {"listen": "127.0.0.1:8001"},
        {"peers": {"accelerator": "other.example:1"}},
        {"models": {"m": {"address": "https://m.example/x", "files": {}}}},
        {"brokers": "http://broker.evil"},
        {"previous": "/runs/of/others", "continues": BEFORE},
        {"previous": "https://store.example/private/x", "continues": BEFORE},
    ],
)
def test_no_other_place_is_reached_however_it_is_written(
    tmp_path: Path, world: Any, changed: dict[str, Any]
) -> None:
    (tmp_path / "sealed").mkdir()
    (tmp_path / "secret").mkdir()
    (tmp_path / "sealed" / "link").symlink_to(tmp_path / "secret")
    fine = ticket(world, data=[str(tmp_path / "sealed")])
    places = Places((str(tmp_path / "sealed"), "http://127.0.0.1:1", *LISTED))
    places.require(_read(fine))
    for field_name, value in changed.items():
        if field_name == "brokers":
            fine["brokers"][0]["url"] = value
        elif field_name == "data":
            fine["data"] = [item.format(folder=tmp_path) for item in value]
        elif field_name == "models":
            files = {"a": {"size": 1, "sha256": ["00" * 32]}}
            fine["models"] = {"m": {"address": "https://m.example/x", "files": files}}
        else:
            fine[field_name] = value
    with pytest.raises(TicketInvalid):
        places.require(_read(fine))


@PLACES
def test_listed_places_are_reached(tmp_path: Path, world: Any) -> None:
    places = Places((str(tmp_path), "http://127.0.0.1:1", *LISTED))
    places.require(
        _read(
            ticket(
                world,
                data=[str(tmp_path / "a" / "b"), "https://store.example/runs/x%20y"],
                store="https://store.example/runs/out",
                previous=str(tmp_path / "runner" / "x"),
                continues=BEFORE,
                health="127.0.0.1:8000",
                peers={"accelerator": "peer.example:99"},
            )
        )
    )


@PLACES
def test_a_starter_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        own_program(tmp_path / "none")


def _read(fields: dict[str, Any]) -> RunTicket:
    return parse_ticket(json.dumps(fields).encode())
