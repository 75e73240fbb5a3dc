"""Run control over HTTP: whose key is good where, and answers that the ledger contradicts."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from control_world import RUNNER, SUBMITTER, ControlWorld, ticket
from owner_acts import approved
from release_world import served_world
from world import identity

from sealtrain.broker.store.recording import record
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.errors import RunNotCompleted, RunUnconfirmed, SubmissionUnknown, WaitOver
from sealtrain.client.pin import BrokerPin
from sealtrain.client.ticket import parse_ticket
from sealtrain.consortium.runevents import RunEvent
from sealtrain.consortium.submissions import Submission, sign_control
from sealtrain.errors import DataInvalid, SignatureInvalid
from sealtrain.owner.runs import RunDesk, Waiting
from sealtrain.release.errors import AnswerInvalid
from sealtrain.release.run_control import ManifestFact, ShownSubmission

pytestmark = pytest.mark.long

WHO = pytest.mark.claim("C181")
WHOSE = pytest.mark.claim("C182")


class Site:
    def __init__(self, control: ControlWorld, url: str) -> None:
        self.control, self.url = control, url

    @contextmanager
    def desk(self, name: str = SUBMITTER) -> Iterator[RunDesk]:
        pin = self.control.world.pin
        kept = BrokerPin(**{**dict(pin), "url": self.url})
        signer = identity(name).signer
        with BrokerClient(
            self.url, signer=signer, broker=kept.broker_id, clock=self.control.world.clock
        ) as client:
            yield RunDesk(client=client, pin=kept, signer=signer, clock=self.control.world.clock)

    def completed(self) -> tuple[ShownSubmission, str]:
        """A submission whose run has a manifest in the ledger."""
        world = self.control.world
        posted = self.control.submit()
        run_id = os.urandom(16).hex()
        world.obtain(
            wire=world.wire,
            attested=world.attest(),
            run_id=run_id,
            submission_id=posted.submission_id,
        )
        runner = self.control.runner()
        runner.report(posted.submission_id, "claimed")
        runner.report(posted.submission_id, "started", run_id=run_id)
        body: Any = {"run_id": run_id, "manifest_digest": "5a" * 32, "outputs": []}
        with world.store.transaction() as transaction:
            record(transaction, world.ledger, "manifest", body, now=world.clock())
        runner.report(posted.submission_id, "completed", run_id=run_id)
        return self.control.shown(posted.submission_id), run_id


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with served_world(tmp_path, submitters=(SUBMITTER,), runners=(RUNNER,)) as (world, url):
        yield Site(ControlWorld(world=world), url)


@WHO
def test_a_listed_key_is_good_on_its_own_paths_only(site: Site) -> None:
    submission = sign_control(site.control.submission(), identity(SUBMITTER).signer)
    decision = approved(site.control.world, "hospital-c")
    with site.desk(SUBMITTER) as desk:
        assert desk.client.post_control(Submission, submission).first
        with pytest.raises(SignatureInvalid):
            desk.client.hand_in("approval", decision)
    claim = site.control.runner().event(
        site.control.broker.newest(
            state="all", name="nightly", compose_hash=None, before=None, limit=1
        )
        .submissions[0]
        .submission_id,
        "claimed",
    )
    for name in (SUBMITTER, "hospital-a"):
        with site.desk(name) as desk, pytest.raises(SignatureInvalid):
            desk.client.post_control(RunEvent, claim)
    with site.desk(RUNNER) as desk:
        with pytest.raises(SignatureInvalid):
            desk.client.post_control(Submission, submission)
        with pytest.raises(SignatureInvalid):
            desk.client.hand_in("approval", decision)
        assert desk.client.post_control(RunEvent, claim).first
    assert site.control.events() == ["submission", "claimed"]


@WHO
def test_a_submission_is_proven_and_asking_again_gives_the_same(site: Site) -> None:
    given = parse_ticket(json.dumps(ticket(site.control.world)).encode())
    now = site.control.world.clock()
    with site.desk() as desk:
        asked = {"target": site.control.world.target, "name": "n", "ticket": given}
        document, first = desk.submit(**asked, not_after=now + 60)
        _, again = desk.submit(**asked, not_after=now + 60)
        assert (first.first, again.first) == (True, False)
        assert first.submission_id == again.submission_id == document.submission_id
        found = desk.find("n")
        assert desk.submission(found).ticket == ticket(site.control.world)
        with pytest.raises(SubmissionUnknown):
            desk.find("another")
        with pytest.raises(SubmissionUnknown):
            desk.find("00" * 16)


@WHOSE
def test_a_completed_run_is_proven(site: Site) -> None:
    shown, run_id = site.completed()
    with site.desk() as desk:
        done = desk.require_completed(shown)
    assert (done.run_id, done.manifest_digest) == (run_id, "5a" * 32)


def _manifest(shown: ShownSubmission, **changed: Any) -> ShownSubmission:
    assert shown.broker is not None
    assert shown.broker.manifest is not None
    manifest = ManifestFact(**{**dict(shown.broker.manifest), **changed})
    return shown.model_copy(
        update={"broker": shown.broker.model_copy(update={"manifest": manifest})}
    )


@WHOSE
@pytest.mark.parametrize("lie", ["digest", "entry", "run", "submission", "name"])
def test_an_answer_that_the_ledger_contradicts_completes_nothing(site: Site, lie: str) -> None:
    shown, _ = site.completed()
    other = site.control.submit("other")
    assert shown.broker is not None
    forged = {
        "digest": lambda: _manifest(shown, digest="00" * 32),
        "entry": lambda: _manifest(shown, index=shown.index),
        "run": lambda: shown.model_copy(
            update={"broker": shown.broker.model_copy(update={"run_id": "00" * 16})}
        ),
        "submission": lambda: shown.model_copy(update={"index": other.index}),
        "name": lambda: shown.model_copy(update={"name": "other"}),
    }[lie]()
    with site.desk() as desk, pytest.raises(AnswerInvalid):
        desk.require_completed(forged)


@WHOSE
def test_another_brokers_ledger_proves_nothing(site: Site) -> None:
    shown, _ = site.completed()
    with site.desk() as desk:
        pin = BrokerPin(
            **{**dict(desk.pin), "signing_key": identity("stranger").public.signing_key}
        )
        with pytest.raises(SignatureInvalid):
            replace(desk, pin=pin).require_completed(shown)


def _waiting(desk: RunDesk) -> Waiting:
    seconds = iter(range(0, 10_000, 7))
    return Waiting(desk=desk, monotonic=lambda: next(seconds), sleep=lambda _: None)


@WHOSE
def test_waiting_believes_no_runner(site: Site) -> None:
    posted = site.control.submit("lied")
    runner = site.control.runner()
    runner.report(posted.submission_id, "claimed")
    runner.report(posted.submission_id, "started")
    with site.desk() as desk, pytest.raises(WaitOver):
        _waiting(desk).until_ended("lied", 20)
    runner.report(posted.submission_id, "completed", run_id="77" * 16)
    with site.desk() as desk, pytest.raises(RunUnconfirmed):
        _waiting(desk).until_ended("lied", None)


@WHOSE
def test_a_run_that_waits_or_was_stopped_is_not_fetched(site: Site) -> None:
    posted = site.control.submit("waits")
    with site.desk() as desk:
        shown = desk.find("waits")
        with pytest.raises(RunNotCompleted, check=carries(check="state", got=shown.state)):
            desk.require_completed(shown)
    runner = site.control.runner()
    runner.report(posted.submission_id, "claimed")
    with site.desk() as desk, pytest.raises(RunNotCompleted):
        desk.require_completed(desk.find("waits"))


@WHOSE
def test_waiting_ends_with_the_brokers_record_though_the_runner_says_failed(site: Site) -> None:
    world = site.control.world
    posted = site.control.submit()
    run_id = os.urandom(16).hex()
    world.obtain(
        wire=world.wire, attested=world.attest(), run_id=run_id, submission_id=posted.submission_id
    )
    runner = site.control.runner()
    runner.report(posted.submission_id, "claimed")
    runner.report(posted.submission_id, "started", run_id=run_id)
    runner.report(posted.submission_id, "failed", code="guest-lost", run_id=run_id)
    with site.desk() as desk:
        with pytest.raises(RunNotCompleted, check=carries(check="state", got="failed guest-lost")):
            _waiting(desk).until_ended("nightly", None)
        body: Any = {"run_id": run_id, "manifest_digest": "5a" * 32, "outputs": []}
        with world.store.transaction() as transaction:
            record(transaction, world.ledger, "manifest", body, now=world.clock())
        assert _waiting(desk).until_ended("nightly", None).broker is not None


@WHOSE
@pytest.mark.claim("C451")
def test_a_client_takes_no_run_whose_keys_were_for_another_submission(site: Site) -> None:
    """The broker's host shows the record of another submission's run beside this one."""
    shown, run_id = site.completed()
    other = site.control.submit("another")
    runner = site.control.runner()
    runner.report(other.submission_id, "claimed")
    event = runner.event(other.submission_id, "started", run_id=run_id)
    world = site.control.world
    body: Any = {
        **RunEvent.from_bytes(event.payload).ledger_fields(),
        "by": RUNNER,
        "signing_key": identity(RUNNER).public.signing_key,
        "digest": event.digest,
        "envelope": event.to_dict(),
    }
    with world.store.transaction() as transaction:
        record(transaction, world.ledger, "run-event", body, now=world.clock())
    forged = site.control.shown(other.submission_id).model_copy(update={"broker": shown.broker})
    with site.desk() as desk:
        assert desk.require_completed(shown).run_id == run_id
        with pytest.raises(AnswerInvalid):
            desk.require_completed(forged)


def test_entries_are_found_by_what_they_name(site: Site) -> None:
    shown, run_id = site.completed()
    with site.desk() as desk:
        client = desk.client
        of_run = client.ledger_search(run_id=run_id)
        assert [entry.entry["kind"] for entry in of_run.entries] == [
            "release", "run-event", "manifest", "run-event",
        ]  # fmt: skip
        assert of_run.end is None
        for each_entry in of_run.entries:
            [entry] = client.ledger_entries(each_entry.index, 1)
            assert entry == each_entry.entry
        events = client.ledger_search(submission_id=shown.submission_id, kind="run-event", limit=2)
        assert [entry.entry["body"]["event"] for entry in events.entries] == ["claimed", "started"]
        assert events.end is not None
        rest = client.ledger_search(submission_id=shown.submission_id, kind="run-event",
                                    start=events.end)  # fmt: skip
        assert [entry.entry["body"]["event"] for entry in rest.entries] == ["completed"]
        assert len(client.ledger_search(kind="dataset").entries) == 3
        with pytest.raises(DataInvalid):
            client.ledger_search(run_id=run_id, submission_id=shown.submission_id)
        with pytest.raises(DataInvalid):
            client.ledger_search()
