"""A submitted run from Python: asked for once, looked at, waited for, stopped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from release_world import ReleaseWorld, served_world
from world import identity

import sealtrain
from sealtrain.client.errors import (
    RunNotCompleted,
    SubmissionConflict,
    SubmissionUnknown,
    TicketInvalid,
    WaitOver,
)
from sealtrain.client.pin import BrokerPin
from sealtrain.client.ticket import RunTicket
from sealtrain.consortium.errors import SubmissionEnded
from sealtrain.errors import SignatureInvalid, Unreachable
from sealtrain.ledger.ledger import Ledger
from sealtrain.release.errors import AnswerInvalid

pytestmark = pytest.mark.long

ENGINEER, STRANGER, OWNER = "engineer-e", "stranger-s", "hospital-a"


class World:
    """A broker with a submitter, and its broker file."""

    def __init__(self, made: ReleaseWorld, url: str, folder: Path) -> None:
        self.made = made
        self.pin: BrokerPin = made.pin.model_copy(update={"url": url})
        self.broker = folder / "broker.yaml"
        self.broker.write_text(self.pin.to_yaml())
        self.ticket = RunTicket(
            version=1, role="train", brokers=(self.pin,), data=("/data",), store=f"{url}/none"
        )

    def submit(self, name: str | None = None, **changed: RunTicket) -> sealtrain.SubmittedRun:
        return sealtrain.SubmittedRun.submit(
            self.made.locked,
            changed.get("ticket", self.ticket),
            broker=self.broker,
            identity=identity(ENGINEER),
            name=name,
            within=600,
            clock=self.made.clock,
        )

    def run(self, name: str) -> sealtrain.SubmittedRun:
        return sealtrain.SubmittedRun(broker=self.broker, name=name, clock=self.made.clock)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with served_world(tmp_path, submitters=(ENGINEER,)) as (made, url):
        yield World(made, url, tmp_path)


def test_the_same_run_is_asked_for_once(world: World) -> None:
    first, again = world.submit(), world.submit()
    assert first == again
    assert world.made.kinds().count("submission") == 1
    assert (first.state, first.look().submitter) == ("waiting", ENGINEER)
    shown = first.look()
    assert world.run(shown.submission_id).look() == shown


def test_a_name_means_one_run(world: World) -> None:
    world.submit("nightly")
    other = world.ticket.model_copy(update={"data": ("/other",)})
    with pytest.raises(SubmissionConflict):
        world.submit("nightly", ticket=other)
    assert world.submit(ticket=other).name != world.submit().name


def test_a_brokers_ticket_is_no_run(world: World) -> None:
    with pytest.raises(TicketInvalid):
        world.submit(ticket=RunTicket(version=1, role="broker"))
    assert "submission" not in world.made.kinds()


def test_it_is_stopped_by_its_submitter_or_an_owner_and_by_nobody_else(world: World) -> None:
    for name, who in (("one", ENGINEER), ("two", OWNER)):
        run = world.submit(name)
        with pytest.raises(SignatureInvalid):
            run.stop(identity(STRANGER))
        run.stop(identity(who))
        assert run.state == "stopped"
        with pytest.raises(RunNotCompleted):
            run.wait(5)


def test_waiting_ends_in_time_and_tells_each_state_once(world: World) -> None:
    now, told = [0.0], []
    run = world.submit()

    def sleep(seconds: float) -> None:
        now[0] += seconds

    with pytest.raises(WaitOver):
        run.wait(
            60, on_change=lambda one: told.append(one.state), monotonic=lambda: now[0], sleep=sleep
        )
    assert now[0] == pytest.approx(60)
    assert told == ["waiting"]


def test_what_nobody_claims_in_time_is_no_run(world: World) -> None:
    run = world.submit()
    world.made.clock.advance(601)
    assert run.state == "expired"
    with pytest.raises(RunNotCompleted):
        run.wait(5)
    with pytest.raises(SubmissionEnded):
        run.stop(identity(ENGINEER))


def test_nothing_is_fetched_before_the_broker_recorded_a_manifest(
    world: World, tmp_path: Path
) -> None:
    with pytest.raises(RunNotCompleted):
        world.submit().download(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_unknown_run_and_a_broker_that_is_gone_are_told_apart(
    world: World, tmp_path: Path
) -> None:
    with pytest.raises(SubmissionUnknown):
        world.run("never-asked").wait(5)
    gone = tmp_path / "gone.yaml"
    gone.write_text(world.pin.model_copy(update={"url": "http://127.0.0.1:1"}).to_yaml())
    with pytest.raises(Unreachable):
        sealtrain.SubmittedRun(broker=gone, name="nightly").look()


def test_an_answer_that_the_ledger_does_not_hold_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker shows another submission's entry in the place of this one's."""
    other, run = world.submit("other"), world.submit("mine")
    entry = other.look().index
    genuine = Ledger.proof

    def lying(ledger: Ledger, index: int) -> object:
        return genuine(ledger, entry if index == run_index else index)

    run_index = run.look().index
    run.stop(identity(ENGINEER))
    monkeypatch.setattr(Ledger, "proof", lying)
    with pytest.raises(AnswerInvalid):
        run.wait(5)
