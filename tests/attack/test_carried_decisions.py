"""A decision counts at the brokers that it names: carried on by another owner, or counted apart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

import pytest
from carrying import carries
from quorum_world import QuorumWorld, quorum_world
from release_world import ReleaseWorld, audited, document_of
from series_world import standing
from world import DAY, OWNERS

from sealtrain.consortium.approvals import tally
from sealtrain.consortium.decisions import verify_decision
from sealtrain.consortium.errors import ApprovalsMissing, ApprovalSpent
from sealtrain.errors import SealtrainError
from sealtrain.owner.standing import join_uses
from sealtrain.signing.dsse import Envelope
from sealtrain.signing.errors import BrokerMismatch

A, B, C = OWNERS
RUNS = 4
CARRIED = pytest.mark.claim("C92")
COUNTED = pytest.mark.claim("C185")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[QuorumWorld]:
    with quorum_world(tmp_path) as made:
        yield made


def id_of(world: QuorumWorld, place: int) -> str:
    return world.attested()[place].broker_id


def handed_in(world: ReleaseWorld, envelope: Envelope) -> int:
    """What any owner may do with a document: who signed the request does not matter."""
    return world.broker.registry.hand_in("approval", document_of(envelope)).index


@CARRIED
@pytest.mark.parametrize("revoke", [False, True])
def test_a_decision_is_taken_by_the_brokers_that_it_names_alone(
    world: QuorumWorld, revoke: bool
) -> None:
    named = [id_of(world, 0), id_of(world, 1)]
    changed = {} if revoke else {"datasets": [world.sealed[C].pin]}
    made = world.first.decision(C, revoke=revoke, brokers=named, **changed)
    for broker in world.worlds[:2]:
        assert handed_in(broker, made) == handed_in(broker, made)
    third = world.worlds[2]
    before = third.broker.registry.tally(third.target)
    for _ in range(3):
        with pytest.raises(BrokerMismatch, check=carries(check="decision brokers")):
            handed_in(third, made)
    assert third.broker.registry.tally(third.target) == before
    assert {refusal["code"] for refusal in third.refusals()} == {"broker-mismatch"}
    assert all(audited(each_world).findings == () for each_world in world.worlds)


@CARRIED
def test_what_one_owner_approved_at_one_broker_begins_no_run_at_another(tmp_path: Path) -> None:
    """A and B approve at broker 1; an operator and B carry A's approval to the others."""
    with quorum_world(tmp_path, threshold=None) as world:
        for owner in OWNERS:
            world.share(owner, None, 2)
        third, only = world.worlds[2], [id_of(world, 0)]
        for owner in OWNERS:
            pins = [world.sealed[owner].pin]
            made = world.first.decision(owner, brokers=only, datasets=pins)
            handed_in(world.first, made)
            with pytest.raises(BrokerMismatch):
                handed_in(third, made)
        with pytest.raises(SealtrainError):
            world.obtain(world.quorum(2))


@CARRIED
@pytest.mark.parametrize("revoke", [False, True])
def test_an_audit_finds_a_decision_that_was_carried(world: QuorumWorld, revoke: bool) -> None:
    """The broker's host changed the broker, so that it records and counts what it is given."""
    third = world.worlds[2]
    made = third.decision(C, revoke=revoke, brokers=[id_of(world, 0)])
    signed = verify_decision(made, third.consortium)
    assert audited(third).findings == ()
    index = third.ledger.append(signed.entry_kind, signed.entry)
    found = [(finding.check, finding.index) for finding in audited(third).findings]
    assert (signed.entry_kind, index) in found


@contextmanager
def undecided(folder: Path) -> Iterator[QuorumWorld]:
    """Three brokers, any two of which open the owners' data; no owner decided anything."""
    with quorum_world(folder, threshold=None) as world:
        for owner in OWNERS:
            world.share(owner, 2)
        yield world


def approved(world: QuorumWorld, *places: int) -> None:
    """Every owner approves four runs at some of the brokers."""
    named = [id_of(world, place) for place in places]
    for place in places:
        broker = world.worlds[place]
        for owner in OWNERS:
            broker.approve(
                owner,
                brokers=named,
                datasets=[world.sealed[owner].pin],
                not_after=broker.clock() + 30 * DAY,
                standing=standing(RUNS),
            )


def begun_by_turns(world: QuorumWorld, *away: int) -> int:
    """Runs that an operator begins which shows each guest another pair of brokers."""
    count, missed, places = 0, 0, cycle(away)
    while missed < 2 * len(away):
        down = next(places)
        for place, wire in enumerate(world.wires):
            wire.down = place == down
        try:
            world.obtain()
        except SealtrainError:
            missed += 1
        else:
            count, missed = count + 1, 0
    return count


EACH_TIME = [((0, 1), (2, 1, 0)), ((1, 2), (0,)), ((1, 2), (0, 1, 2))]
"""Who is named and who is away, for each change; the others at night."""


@COUNTED
@pytest.mark.parametrize(
    ("named", "away"),
    [
        pytest.param(
            named,
            away,
            id=f"{named}-{away}",
            marks=[] if (named, away) in EACH_TIME else pytest.mark.nightly,
        )
        for named in ((0, 1), (1, 2))
        for away in ((), (0,), (0, 1, 2), (2, 1, 0))
    ],
)
def test_an_approval_for_as_many_brokers_as_open_the_data_counts_exactly(
    tmp_path: Path, named: tuple[int, ...], away: tuple[int, ...]
) -> None:
    """A broker that is away lets runs fail that the others counted, and lets none begin besides."""
    with undecided(tmp_path) as world:
        approved(world, *named)
        begun = begun_by_turns(world, *away) if away else 0
        for wire in world.wires:
            wire.down = False
        while True:
            try:
                world.obtain()
            except (ApprovalSpent, ApprovalsMissing):  # the latter, of a broker that is not named
                break
            begun += 1
        assert begun <= RUNS
        assert begun == RUNS or away


@COUNTED
def test_over_more_brokers_a_run_is_counted_by_those_that_it_asks_and_owners_are_told(
    tmp_path: Path,
) -> None:
    """Three brokers, of which any two open the data: 3/2 times as many, and no more."""
    with undecided(tmp_path) as world:
        approved(world, 0, 1, 2)
        assert RUNS < begun_by_turns(world, 0, 1, 2) <= 3 * RUNS // 2
        first = world.first
        answer = first.broker.registry.tally(first.target)
        decisions = [
            verify_decision(decision.envelope(), first.consortium) for decision in answer.decisions
        ]
        counted = tally(decisions, first.consortium, first.target, first.clock(), needs=first.needs)
        used = join_uses(
            counted,
            [(approval.approval, approval.runs, approval.epsilon) for approval in answer.standing],
        )
        assert {(approval.terms.runs, approval.brokers) for approval in used} == {(RUNS, 3)}
        assert all(share.to_dict()["brokers"] == 3 and "3/k" in share.in_words for share in used)
