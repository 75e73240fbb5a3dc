"""Submissions and run events at a broker: sent twice, swapped, replayed, by the wrong key."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from control_world import OTHER, RUNNER, SUBMITTER, ControlWorld, control_world, ticket
from release_world import audited, document_of
from world import identity

from sealtrain.base.canonical import canonical_json
from sealtrain.broker.service.controllers import Controllers
from sealtrain.broker.service.service import Broker
from sealtrain.broker.store import group_commit
from sealtrain.broker.store.database import commit
from sealtrain.broker.store.following import LedgerFollower
from sealtrain.broker.store.memory import Store
from sealtrain.client.errors import SubmissionConflict, SubmissionUnknown, TicketInvalid
from sealtrain.consortium.errors import (
    ClaimTaken,
    ConsortiumMismatch,
    RunEventRefused,
    SignerUnknown,
    SubmissionEnded,
)
from sealtrain.consortium.runevents import RunEvent
from sealtrain.consortium.submissions import RunStop, Submission, sign_control
from sealtrain.errors import (
    LimitExceeded,
    RunMismatch,
    SealtrainError,
    SignatureInvalid,
    UsageError,
)
from sealtrain.signing import dsse
from sealtrain.signing.errors import StatementInvalid

pytestmark = pytest.mark.long

ONCE = pytest.mark.claim("C180")
WHO = pytest.mark.claim("C181")
WHOSE = pytest.mark.claim("C182")


@pytest.fixture
def control(tmp_path: Path) -> Iterator[ControlWorld]:
    with control_world(tmp_path) as made:
        yield made
        assert audited(made.world).findings == ()


def anew(control: ControlWorld, name: str = "anew.sqlite") -> ControlWorld:
    """The same ledger with a database that lost everything."""
    world = control.world
    parts = replace(world.parts, store=Store(world.state / name))
    return ControlWorld(world=replace(world, broker=Broker(parts), store=parts.store, parts=parts))


@ONCE
def test_a_submission_signed_again_is_the_same_one(control: ControlWorld) -> None:
    first = control.submit()
    again = control.submit()
    control.world.clock.advance(60)
    by_an_owner = control.submit(by="hospital-b", not_after=control.world.clock() + 99)
    assert (first.first, again.first, by_an_owner.first) == (True, False, False)
    assert {submission.submission_id for submission in (first, again, by_an_owner)} == {
        first.submission_id
    }
    assert {entry.index for entry in (first, again, by_an_owner)} == {first.index}
    assert control.events() == ["submission"]


@ONCE
def test_simultaneous_copies_are_one_submission(control: ControlWorld) -> None:
    made = [document_of(sign_control(control.submission(), identity(SUBMITTER).signer))] * 4
    made += [document_of(sign_control(control.submission(), identity(SUBMITTER).signer))] * 4
    with ThreadPoolExecutor(8) as pool:
        posted = list(pool.map(control.broker.submit, made))
    assert sum(answer.first for answer in posted) == 1
    assert (
        len(
            {
                (submission.submission_id, submission.index, submission.digest)
                for submission in posted
            }
        )
        == 1
    )
    assert control.events() == ["submission"]


@ONCE
@pytest.mark.parametrize("other", ["ticket", "target"])
def test_another_run_under_the_same_name_is_refused(control: ControlWorld, other: str) -> None:
    control.submit()
    changed: dict[str, Any] = {"ticket": ticket(control.world, data=["/elsewhere"])}
    if other == "target":
        changed = {"target": replace(control.world.target, recipe_hash="ab" * 32)}
    with pytest.raises(SubmissionConflict):
        control.submit(**changed)
    assert control.events() == ["submission"]


@ONCE
def test_a_submission_and_its_claim_outlive_a_lost_database(control: ControlWorld) -> None:
    posted = control.submit()
    runner = control.runner()
    runner.report(posted.submission_id, "claimed")
    runner.report(posted.submission_id, "started", run_id="11" * 16)
    before = control.shown(posted.submission_id)
    other = anew(control)
    assert other.shown(posted.submission_id) == before
    assert not other.submit().first
    with pytest.raises(ClaimTaken):
        other.runner(OTHER).report(posted.submission_id, "claimed")
    other.world.store.close()


@ONCE
def test_a_store_that_is_full_records_a_submission_once(
    control: ControlWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is full behind the ledger's commit and before the database's; whoever asked, asks anew."""
    advance = LedgerFollower.advance
    reached: list[int] = []

    def noted(self: LedgerFollower, connection: Any, before: int, entries: Any) -> None:
        advance(self, connection, before, entries)
        reached.append(before)

    def full(connection: Any) -> None:
        if reached:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        commit(connection)

    with monkeypatch.context() as patched:
        patched.setattr(LedgerFollower, "advance", noted)
        patched.setattr(group_commit, "commit", full)
        with pytest.raises(SealtrainError) as caught:
            control.submit()
    assert reached
    assert caught.value.exit_code == 4
    posted = control.submit()
    assert control.events() == ["submission"]
    assert control.shown(posted.submission_id).state == "waiting"


@ONCE
def test_of_two_runners_one_gets_the_claim(control: ControlWorld) -> None:
    posted = control.submit()
    runners = [control.runner(RUNNER), control.runner(OTHER), control.runner(RUNNER)]
    claims = [document_of(runner.event(posted.submission_id, "claimed")) for runner in runners]

    def claim(document: Any) -> str:
        try:
            control.broker.report(document)
        except SealtrainError as error:
            return error.code
        return "got"

    with ThreadPoolExecutor(3) as pool:
        outcomes = sorted(pool.map(claim, claims))
    assert outcomes == ["claim-taken", "claim-taken", "got"]
    assert control.events() == ["submission", "claimed"]


@ONCE
def test_a_claim_that_ended_goes_to_another_runner_and_stays_lost(control: ControlWorld) -> None:
    posted = control.submit()
    one, two = control.runner(RUNNER), control.runner(OTHER)
    one.report(posted.submission_id, "claimed", claim_seconds=60)
    with pytest.raises(ClaimTaken):
        two.report(posted.submission_id, "claimed")
    control.world.clock.advance(61)
    two.report(posted.submission_id, "claimed")
    for event in ("started", "claimed"):
        with pytest.raises(ClaimTaken):
            one.report(posted.submission_id, event)
    control.world.clock.advance(-61)  # set back to when the first claim lasted
    with pytest.raises(ClaimTaken):
        one.report(posted.submission_id, "claimed")
    with pytest.raises(ClaimTaken):
        one.report(posted.submission_id, "started")


@ONCE
def test_a_started_run_is_taken_over_only_where_its_state_is_stored(control: ControlWorld) -> None:
    kept = control.submit("kept", ticket=ticket(control.world, store="s3://bucket/out"))
    lost = control.submit("lost")
    one, two = control.runner(RUNNER), control.runner(OTHER)
    for posted in (kept, lost):
        one.report(posted.submission_id, "claimed", claim_seconds=60)
        one.report(posted.submission_id, "started")
    control.world.clock.advance(61)
    assert control.shown(lost.submission_id).state == "silent"
    with pytest.raises(ClaimTaken):
        two.report(lost.submission_id, "claimed")
    one.report(lost.submission_id, "claimed")  # its own folder has the run
    two.report(kept.submission_id, "claimed")
    two.report(kept.submission_id, "started")
    assert control.shown(kept.submission_id).state == "started"


@ONCE
def test_a_clock_that_is_set_back_revives_no_submission(control: ControlWorld) -> None:
    late = control.submit("late", not_after=control.world.clock() + 60)
    control.world.clock.advance(61)
    control.submit("witness")  # the ledger saw this time
    control.world.clock.advance(-61)
    with pytest.raises(SubmissionEnded):
        control.runner().report(late.submission_id, "claimed")
    assert control.shown(late.submission_id).state == "expired"
    ended = control.world.clock() + 30
    with pytest.raises(SubmissionEnded):
        control.submit("dead", not_after=ended)


@pytest.mark.claim("C138")
@pytest.mark.parametrize("code", ["late", "schedule-spent", "still-running"])
def test_a_reason_of_the_scheduler_goes_with_what_it_passed_over_alone(
    control: ControlWorld, code: str
) -> None:
    posted = control.submit()
    runner = control.runner()
    runner.report(posted.submission_id, "claimed")
    with pytest.raises(StatementInvalid):
        runner.event(posted.submission_id, "failed", code=code)
    runner.report(posted.submission_id, "skipped", code=code)
    assert control.shown(posted.submission_id).state == "skipped"


@pytest.mark.parametrize("event", ["failed", "skipped"])
def test_a_run_event_has_a_code_of_the_list_and_no_other_word(
    control: ControlWorld, event: str
) -> None:
    """A recipe's script writes a word of its records where the runner reads the guest's code."""
    posted = control.submit()
    runner = control.runner()
    runner.report(posted.submission_id, "claimed")
    honest = runner.event(posted.submission_id, event, code="rank-lost")
    size = control.world.ledger.size
    for code in ("patient-4711-was-positive", "exit-7", "rank-lost-", "Rank-Lost", ""):
        payload = json.loads(honest.payload) | {"code": code}
        forged = dsse.sign(canonical_json(payload), honest.payload_type, identity(RUNNER).signer)
        with pytest.raises(StatementInvalid):
            control.broker.report(document_of(forged))
    assert control.world.ledger.size == size
    assert control.shown(posted.submission_id).state == "claimed"


@ONCE
def test_nothing_follows_the_end_of_a_submission(control: ControlWorld) -> None:
    for end, more in (("failed", {"code": "guest-lost"}), ("skipped", {"code": "ticket-invalid"})):
        posted = control.submit(f"ends-{end}")
        runner = control.runner()
        runner.report(posted.submission_id, "claimed")
        runner.report(posted.submission_id, end, **more)
        for event in ("claimed", "started"):
            with pytest.raises(SubmissionEnded):
                runner.report(posted.submission_id, event)
        with pytest.raises(SubmissionEnded):
            control.stop(posted.submission_id)
        assert not control.submit(f"ends-{end}").first
        assert control.shown(posted.submission_id).state == end


@ONCE
def test_a_stopped_submission_is_never_started(control: ControlWorld) -> None:
    posted = control.submit()
    control.stop(posted.submission_id)
    control.stop(posted.submission_id)
    with pytest.raises(SubmissionEnded):
        control.runner().report(posted.submission_id, "claimed")
    assert control.shown(posted.submission_id).state == "stopped"


@ONCE
def test_a_stopped_run_is_reported_by_its_runner_and_taken_by_none(control: ControlWorld) -> None:
    posted = control.submit(ticket=ticket(control.world, store="s3://bucket/out"))
    runner = control.runner()
    runner.report(posted.submission_id, "claimed", claim_seconds=60)
    runner.report(posted.submission_id, "started")
    control.stop(posted.submission_id, by="hospital-c")
    assert control.shown(posted.submission_id).state == "stopping"
    control.world.clock.advance(59)
    runner.report(posted.submission_id, "claimed", claim_seconds=60)  # the guest still seals
    control.world.clock.advance(61)
    with pytest.raises(SubmissionEnded):
        control.runner(OTHER).report(posted.submission_id, "claimed")


@WHO
@pytest.mark.parametrize("by", ["stranger", RUNNER])
def test_only_owners_and_listed_submitters_submit(control: ControlWorld, by: str) -> None:
    with pytest.raises(SignerUnknown, check=carries(check="signer")):
        control.submit(by=by)
    assert control.events() == []


@WHO
@pytest.mark.parametrize("by", ["stranger", SUBMITTER, "hospital-a"])
def test_only_listed_runners_report(control: ControlWorld, by: str) -> None:
    posted = control.submit()
    with pytest.raises(SignerUnknown, check=carries(check="signer")):
        control.runner(by).report(posted.submission_id, "claimed")


@WHO
def test_a_broker_with_no_lists_takes_submissions_of_owners_only(tmp_path: Path) -> None:
    with control_world(tmp_path, submitters=(), runners=()) as control:
        posted = control.submit(by="hospital-a")
        with pytest.raises(SignerUnknown):
            control.submit("another", by=SUBMITTER)
        with pytest.raises(SignerUnknown):
            control.runner().report(posted.submission_id, "claimed")


@WHO
@pytest.mark.parametrize(
    ("submitters", "runners"),
    [
        ({"hospital-a": "engineer-e"}, {}),
        ({"engineer-e": "hospital-a"}, {}),
        ({"engineer-e": "engineer-e", "engineer-f": "engineer-e"}, {}),
        ({"engineer-e": "engineer-e"}, {"engineer-e": "runner-one"}),
        ({"engineer-e": "engineer-e"}, {"runner-one": "engineer-e"}),
        ({f"e{number}": f"e{number}" for number in range(65)}, {}),
        ({"Engineer": "engineer-e"}, {}),
    ],
)
def test_lists_that_confuse_names_or_keys_are_refused(
    control: ControlWorld, submitters: dict[str, str], runners: dict[str, str]
) -> None:
    listed = [
        {name: identity(key).public.signing_key for name, key in keys.items()}
        for keys in (submitters, runners)
    ]
    with pytest.raises(UsageError):
        Controllers.of(control.world.consortium, *listed)


@WHO
def test_another_submitter_stops_nothing_of_others(tmp_path: Path) -> None:
    with control_world(tmp_path, submitters=(SUBMITTER, "engineer-f")) as control:
        posted = control.submit()
        with pytest.raises(SignerUnknown):
            control.stop(posted.submission_id, by="engineer-f")
        with pytest.raises(SignerUnknown):
            control.stop(posted.submission_id, by=RUNNER)
        assert control.shown(posted.submission_id).stop is None


def test_a_submission_is_of_the_submitter_that_signed_it_first(tmp_path: Path) -> None:
    """Ids are public, and of a schedule known ahead: whoever is first is named."""
    with control_world(tmp_path, submitters=(SUBMITTER, "engineer-f")) as control:
        posted = control.submit(by="engineer-f")
        second = control.submit()
        assert (second.submission_id, second.first) == (posted.submission_id, False)
        shown = control.shown(posted.submission_id)
        assert shown.submitter == "engineer-f"
        with pytest.raises(SignerUnknown):
            control.stop(posted.submission_id)
        control.stop(posted.submission_id, by="engineer-f")
        stopped = control.shown(posted.submission_id).stop
        assert stopped is not None
        assert stopped.signer == "engineer-f"
        assert control.submit().first is False


@WHO
def test_a_replayed_event_changes_nothing(control: ControlWorld) -> None:
    posted = control.submit()
    runner = control.runner()
    claim = runner.event(posted.submission_id, "claimed")
    first = control.broker.report(document_of(claim))
    runner.report(posted.submission_id, "started")
    for _ in range(2):
        control.world.clock.advance(1000)
        again = control.broker.report(document_of(claim))
        assert (again.first, again.index) == (False, first.index)
    assert control.events() == ["submission", "claimed", "started"]
    assert control.shown(posted.submission_id).state == "silent"  # no claim was prolonged


@WHO
def test_an_event_of_one_submission_serves_no_other(control: ControlWorld) -> None:
    one, two = control.submit("one"), control.submit("two")
    runner, other = control.runner(RUNNER), control.runner(OTHER)
    runner.report(one.submission_id, "claimed")
    other.report(two.submission_id, "claimed")
    for event, more in (("started", {}), ("failed", {"code": "guest-lost"}), ("claimed", {})):
        with pytest.raises(ClaimTaken):
            runner.report(two.submission_id, event, **more)
    with pytest.raises(RunEventRefused, check=carries(check="previous event")):
        runner.report(one.submission_id, "started", previous=control.shown(two.submission_id).head)
    with pytest.raises(SubmissionUnknown):
        control.broker.report(document_of(runner.event("00" * 16, "started", previous=None)))


@WHO
def test_an_altered_document_is_refused(control: ControlWorld) -> None:
    made = sign_control(control.submission(), identity(SUBMITTER).signer)
    payload = made.payload.replace(b"nightly", b"nighty1")
    with pytest.raises(SignatureInvalid):
        control.broker.submit(document_of(replace(made, payload=payload)))
    stop = RunStop.write(
        {
            "consortium_id": control.world.consortium.consortium_id,
            "submission_id": control.submit().submission_id,
            "signer": identity("hospital-a").signer.key_id,
        },
        signed_at=control.world.clock(),
    )
    with pytest.raises(StatementInvalid, check=carries(check="signer")):
        control.post(stop, SUBMITTER)


@WHO
def test_documents_of_another_consortium_or_time_are_refused(control: ControlWorld) -> None:
    now = control.world.clock()
    with pytest.raises(ConsortiumMismatch):
        control.submit(consortium_id="00" * 32)
    with pytest.raises(StatementInvalid, check=carries(check="signed at")):
        control.submit(signed_at=now + 301, not_after=now + 400)
    with pytest.raises(SubmissionEnded):
        control.submit(signed_at=now - 100, not_after=now - 1)
    posted = control.submit()
    runner = control.runner()
    event = runner.event(posted.submission_id, "claimed")
    control.world.clock.advance(301)
    with pytest.raises(StatementInvalid, check=carries(check="signed at")):
        control.broker.report(document_of(event))
    assert control.events() == ["submission"]


@WHO
@pytest.mark.parametrize(
    "changed",
    [
        {"role": "broker", "brokers": None, "data": None},
        {"password": "secret"},
        {"store": "https://user:secret@store.example/out"},
        {"data": None},
    ],
)
def test_a_submission_with_a_ticket_that_no_guest_takes_is_refused(
    control: ControlWorld, changed: dict[str, Any]
) -> None:
    with pytest.raises(TicketInvalid):
        control.submit(ticket=ticket(control.world, **changed))
    assert control.events() == []


@WHO
def test_a_submitter_has_a_bound_of_its_own(
    control: ControlWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sealtrain.broker.service.run_control.OPEN_EACH", 2)
    control.submit("one")
    two = control.submit("two")
    with pytest.raises(LimitExceeded):
        control.submit("three")
    control.submit("of-an-owner", by="hospital-a")
    control.stop(two.submission_id)
    control.submit("three")


@WHOSE
def test_a_runner_names_no_run_of_another_submission_target_or_time(control: ControlWorld) -> None:
    earlier = os.urandom(16).hex()
    world = control.world
    attested = world.attest()
    known_before = control.submission("one").submission_id
    world.obtain(wire=world.wire, attested=attested, run_id=earlier, submission_id=known_before)
    one, two = control.submit("one"), control.submit("two")
    assert one.submission_id == known_before
    foreign = control.submit("foreign", target=replace(control.world.target, recipe_hash="ab" * 32))
    later = os.urandom(16).hex()
    world.obtain(wire=world.wire, attested=attested, run_id=later, submission_id=one.submission_id)
    runner = control.runner()
    for posted in (one, two, foreign):
        runner.report(posted.submission_id, "claimed")
    with pytest.raises(RunMismatch):
        runner.report(one.submission_id, "started", run_id=earlier)
    with pytest.raises(RunMismatch):
        runner.report(foreign.submission_id, "started", run_id=later)
    runner.report(one.submission_id, "started", run_id=later)
    with pytest.raises(RunMismatch):
        runner.report(two.submission_id, "started", run_id=later)
    with pytest.raises(RunMismatch):
        runner.report(one.submission_id, "started", run_id="99" * 16)
    broker = control.shown(one.submission_id).broker
    assert broker is not None
    assert broker.run_id == later
    assert control.shown(two.submission_id).broker is None


@WHOSE
@pytest.mark.claim("C451")
def test_a_runner_takes_no_run_of_another_runners_submission(control: ControlWorld) -> None:
    """The run's id is in the ledger before its own runner names it, and whoever is faster gains."""
    world = control.world
    mine, decoy = control.submit("honest"), control.submit("decoy")
    honest, thief = control.runner(), control.runner(OTHER)
    for player, posted in ((honest, mine), (thief, decoy)):
        player.report(posted.submission_id, "claimed")
        player.report(posted.submission_id, "started")
    run_id = os.urandom(16).hex()
    world.obtain(
        wire=world.wire, attested=world.attest(), run_id=run_id, submission_id=mine.submission_id
    )
    for event in ("started", "completed"):
        with pytest.raises(RunMismatch):
            thief.report(decoy.submission_id, event, run_id=run_id)
    honest.report(mine.submission_id, "started", run_id=run_id)
    honest.report(mine.submission_id, "completed", run_id=run_id)
    shown = control.shown(mine.submission_id)
    assert shown.state == "completed"
    assert shown.broker is not None
    assert shown.broker.run_id == run_id
    assert audited(world).holds


@WHOSE
@pytest.mark.claim("C451")
def test_a_run_that_was_named_before_its_keys_is_its_own_submissions(
    control: ControlWorld,
) -> None:
    """Of several brokers one releases first, and its ledger shows the id to a runner at another."""
    world = control.world
    mine, decoy = control.submit("honest"), control.submit("decoy")
    honest, thief = control.runner(), control.runner(OTHER)
    run_id = os.urandom(16).hex()
    thief.report(decoy.submission_id, "claimed")
    thief.report(decoy.submission_id, "started", run_id=run_id)
    world.obtain(
        wire=world.wire, attested=world.attest(), run_id=run_id, submission_id=mine.submission_id
    )
    assert control.shown(decoy.submission_id).broker is None
    with pytest.raises(RunMismatch):
        thief.report(decoy.submission_id, "completed", run_id=run_id)
    honest.report(mine.submission_id, "claimed")
    honest.report(mine.submission_id, "started", run_id=run_id)
    broker = control.shown(mine.submission_id).broker
    assert broker is not None
    assert broker.run_id == run_id
    assert audited(world).holds


@WHOSE
@pytest.mark.claim("C451")
def test_a_run_without_a_submission_is_none_of_any(control: ControlWorld) -> None:
    world, posted, runner = control.world, control.submit(), control.runner()
    run_id = os.urandom(16).hex()
    world.obtain(wire=world.wire, attested=world.attest(), run_id=run_id)
    runner.report(posted.submission_id, "claimed")
    with pytest.raises(RunMismatch):
        runner.report(posted.submission_id, "started", run_id=run_id)
    # A resume says whose it is too late: the run is what its first release says.
    world.obtain(
        wire=world.wire,
        attested=world.attest(),
        run_id=run_id,
        resume=True,
        submission_id=posted.submission_id,
    )
    with pytest.raises(RunMismatch):
        runner.report(posted.submission_id, "started", run_id=run_id)


@WHOSE
@pytest.mark.claim("C451")
def test_no_submitter_writes_the_id_of_a_submission(control: ControlWorld) -> None:
    with pytest.raises(TicketInvalid):
        control.submit(ticket=ticket(control.world, submission_id="ab" * 16))


@WHOSE
def test_a_runners_completed_is_not_the_brokers(control: ControlWorld) -> None:
    posted = control.submit()
    runner = control.runner()
    runner.report(posted.submission_id, "claimed")
    runner.report(posted.submission_id, "started")
    runner.report(posted.submission_id, "completed", run_id="77" * 16)
    shown = control.shown(posted.submission_id)
    assert shown.state == "completed"
    assert shown.runner is not None
    assert shown.runner.run_id == "77" * 16
    assert shown.broker is None


FOUND = pytest.mark.claim("C184")


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[ControlWorld]:
    """A broker whose host writes what it likes into the ledger."""
    with control_world(tmp_path) as made:
        yield made


def entry_of(control: ControlWorld, made: Any, by: str, **changed: Any) -> dict[str, Any]:
    """Body of an entry of run control, as a broker that checks nothing writes it."""
    kinds = {kind.payload_type: kind for kind in (Submission, RunEvent, RunStop)}
    document = kinds[made.payload_type].from_bytes(made.payload)
    return {
        **document.ledger_fields(),
        "by": by,
        "signing_key": identity(by).public.signing_key,
        "digest": made.digest,
        "envelope": made.to_dict(),
        **changed,
    }


@FOUND
@pytest.mark.parametrize(
    "fault",
    [
        "submission twice", "event twice", "out of order", "after the end", "no submission",
        "another's claim", "an owner's name", "another body", "stop of a stranger", "one name",
        "an earlier run", "two submissions", "another submission's run", "altered",
    ],
)  # fmt: skip
def test_an_audit_finds_what_no_broker_records(faulty: ControlWorld, fault: str) -> None:
    world, runner, other = faulty.world, faulty.runner(RUNNER), faulty.runner(OTHER)
    earlier = os.urandom(16).hex()
    world.obtain(wire=world.wire, attested=world.attest(), run_id=earlier)
    one, two = faulty.submit("one"), faulty.submit("two")
    claim = runner.event(one.submission_id, "claimed")
    faulty.broker.report(document_of(claim))
    assert audited(world).findings == ()
    signed = sign_control(faulty.submission("one"), identity(SUBMITTER).signer)
    fresh = sign_control(faulty.submission("three"), identity(SUBMITTER).signer)
    body: dict[str, Any]
    if fault == "submission twice":
        body = entry_of(faulty, signed, SUBMITTER)
    elif fault == "one name":
        made = faulty.submission("one", ticket=ticket(world, data=["/elsewhere"]))
        body = entry_of(faulty, sign_control(made, identity(SUBMITTER).signer), SUBMITTER)
    elif fault == "event twice":
        body = entry_of(faulty, claim, RUNNER)
    elif fault == "out of order":
        body = entry_of(faulty, runner.event(one.submission_id, "skipped", code="ticket-invalid",
                                             previous="00" * 32), RUNNER)  # fmt: skip
    elif fault == "after the end":
        runner.report(one.submission_id, "skipped", code="ticket-invalid")
        body = entry_of(faulty, runner.event(one.submission_id, "claimed"), RUNNER)
    elif fault == "no submission":
        body = entry_of(faulty, runner.event("00" * 16, "claimed", previous=None), RUNNER)
    elif fault == "another's claim":
        body = entry_of(faulty, other.event(one.submission_id, "started"), OTHER)
    elif fault == "an owner's name":
        body = entry_of(faulty, fresh, SUBMITTER) | {"by": "hospital-a"}
    elif fault == "another body":
        body = entry_of(faulty, fresh, SUBMITTER, name="four")
    elif fault == "stop of a stranger":
        made_stop = RunStop.write(
            {
                "consortium_id": world.consortium.consortium_id,
                "submission_id": one.submission_id,
                "signer": identity(OTHER).signer.key_id,
            },
            signed_at=world.clock(),
        )
        body = entry_of(faulty, sign_control(made_stop, identity(OTHER).signer), OTHER)
    elif fault == "an earlier run":
        body = entry_of(faulty, runner.event(one.submission_id, "started", run_id=earlier), RUNNER)
    elif fault == "another submission's run":
        run_id = os.urandom(16).hex()
        world.obtain(
            wire=world.wire, attested=world.attest(), run_id=run_id,
            submission_id=two.submission_id,
        )  # fmt: skip
        body = entry_of(faulty, runner.event(one.submission_id, "started", run_id=run_id), RUNNER)
    elif fault == "two submissions":
        runner.report(one.submission_id, "started", run_id="77" * 16)
        other.report(two.submission_id, "claimed")
        made_event = other.event(two.submission_id, "started", run_id="77" * 16)
        body = entry_of(faulty, made_event, OTHER)
    else:
        payload = fresh.payload.replace(b"three", b"third")
        body = entry_of(faulty, replace(fresh, payload=payload), SUBMITTER)
    kind = "run-event" if "event" in body else "submission"
    if fault == "stop of a stranger":
        kind = "run-stop"
    world.ledger.append(kind, body)
    found = audited(world).findings
    assert [finding.index for finding in found] == [world.ledger.size - 1] * len(found)
    assert found
