"""Messages that come twice, in another order, late, or from another consortium of these owners."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import httpx2
import pytest
from carrying import carries
from release_world import ReleaseWorld, served_world
from world import DAY, NOW, OWNERS, digest, identity

from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.broker.config import BrokerLimits
from sealtrain.broker.service.counting import Counting
from sealtrain.client.broker_api import BrokerClient
from sealtrain.consortium.approvals import DatasetPin
from sealtrain.consortium.datasets import PAYLOAD_TYPE
from sealtrain.consortium.errors import ApprovalUnknown, ConsortiumMismatch, DatasetMismatch
from sealtrain.errors import SealtrainError, SignatureInvalid
from sealtrain.ledger.witness import cosign_tree_head
from sealtrain.release.errors import ChallengeUnknown
from sealtrain.release.messages import ReleaseRequest
from sealtrain.signing import dsse
from sealtrain.signing.dsse import Envelope
from sealtrain.signing.errors import StatementInvalid
from sealtrain.signing.note import SignedNote
from sealtrain.signing.target import Target

pytestmark = pytest.mark.claim("C59")

A, B, C = OWNERS
Served = tuple[ReleaseWorld, str]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served_world(tmp_path_factory.mktemp("one")) as both:
        yield both


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Another consortium: the same owners with the same keys, and another threshold."""
    with served_world(tmp_path_factory.mktemp("other"), rules={"approve": 3}) as both:
        yield both


def client(served: Served, owner: str = C) -> BrokerClient:
    world, url = served
    me, broker = identity(owner).signer, world.pin.broker_id
    return BrokerClient(url, signer=me, broker=broker, clock=world.clock)


def some_target(name: str) -> Target:
    return Target(
        app_id=digest(name)[:40], compose_hash=digest(name), recipe_hash=digest(f"{name} recipe")
    )


def decision(world: ReleaseWorld, owner: str, target: Target, **changed: Any) -> Envelope:
    approval = {} if changed.get("revoke") else {"datasets": [], "not_after": NOW + DAY}
    return world.decision(owner, **{"target": target, "signed_at": NOW} | approval | changed)


# --- Twice, and in another order ------------------------------------------------------------------


@pytest.mark.parametrize("order", list(permutations(range(4))), ids=str)
def test_whatever_the_order_and_however_often_a_revocation_stops(
    served: Served, order: tuple[int, ...]
) -> None:
    world, _ = served
    target = some_target(f"order {order}")
    handed_in = [
        (A, decision(world, A, target)),
        (B, decision(world, B, target)),
        (C, decision(world, C, target)),
        (B, decision(world, B, target, revoke=True)),
    ]
    size = world.ledger.size
    for number in (*order, *reversed(order)):
        owner, envelope = handed_in[number]
        with client(served, owner) as mine:
            mine.hand_in("approval", envelope)
    tally = world.broker.registry.tally(target).tally
    assert tally["sealed"] is True
    assert tally["revoked_by"] == [B]
    assert world.ledger.size == size + len(handed_in)


def test_an_approval_that_was_held_back_does_not_replace_a_newer_one(served: Served) -> None:
    """The owner first pinned one dataset, then another, and the first letter comes last."""
    world, _ = served
    target = some_target("held back")
    pins = [[DatasetPin(dataset_id=os.urandom(16).hex(), root=digest(root))] for root in "12"]
    older = decision(world, C, target, datasets=pins[0], not_after=NOW + 300 * DAY)
    newer = decision(world, C, target, datasets=pins[1], signed_at=NOW + 1)
    with client(served) as mine:
        index = mine.hand_in("approval", newer)
        with pytest.raises(StatementInvalid, check=carries(check="order of approvals")):
            mine.hand_in("approval", older)
        assert mine.hand_in("approval", newer) == index
        # An owner who did hand in the older one first may hand it in again: it changes nothing.
        first = decision(world, C, target, signed_at=NOW + 2)
        second = decision(world, C, target, datasets=pins[1], signed_at=NOW + 3)
        place = mine.hand_in("approval", first)
        mine.hand_in("approval", second)
        assert mine.hand_in("approval", first) == place
    with world.store.transaction() as transaction:
        decisions = Counting(world.consortium, BrokerLimits()).decisions(transaction)
    standing = [decision for decision in decisions if decision.decision.target == target][-1]
    assert standing.digest == second.digest
    # Another owner's approval, and one of another recipe, are not held up by it.
    with client(served, A) as theirs:
        theirs.hand_in("approval", decision(world, A, target))
    with client(served) as mine:
        mine.hand_in("approval", decision(world, C, some_target("not held back")))


def test_a_dataset_does_not_go_back_to_an_earlier_manifest(served: Served) -> None:
    world, _ = served
    first = world.seal(C, name="late").envelope
    second = continued(first)
    with client(served) as mine:
        mine.hand_in("dataset", first)
        index = mine.hand_in("dataset", second)
        with pytest.raises(DatasetMismatch):
            mine.hand_in("dataset", first)
        assert mine.hand_in("dataset", second) == index
    # The newer one overtook the older one: the older one comes too late.
    third = world.seal(C, name="overtaken").envelope
    with client(served) as mine:
        mine.hand_in("dataset", continued(third))
        with pytest.raises(DatasetMismatch):
            mine.hand_in("dataset", third)


def continued(envelope: Envelope) -> Envelope:
    """Its owner's next manifest of the same dataset."""
    document: Any = parse_json(envelope.payload)
    document |= {"root": digest("next"), "previous": envelope.digest}
    return dsse.sign(canonical_json(document), PAYLOAD_TYPE, identity(C).signer)


def test_a_cosignature_of_an_older_checkpoint_is_no_step_back(served: Served) -> None:
    world, _ = served

    def cosigned(note: str) -> str:
        line = cosign_tree_head(note, C, identity(C).signer, at=NOW)
        return SignedNote.from_text(note).with_signature(line).to_text()

    older = world.ledger.checkpoint()
    with client(served) as mine:
        mine.hand_in("approval", decision(world, C, some_target("grows")))
        newer = world.ledger.checkpoint()
        mine.submit_cosignature(cosigned(newer))
        for _ in range(2):
            mine.submit_cosignature(cosigned(older))
        latest = mine.ledger_witnessed(1)
    assert latest is not None
    assert SignedNote.from_text(latest).text == SignedNote.from_text(newer).text


# --- From another consortium ----------------------------------------------------------------------


def test_what_owners_sign_in_one_consortium_counts_in_no_other(
    served: Served, other: Served
) -> None:
    """An owner of both is made to hand each letter of the one in at the other, freshly signed."""
    here, there = served[0], other[0]
    size = here.ledger.size

    def refused(act: Callable[[BrokerClient], Any], error: type[SealtrainError]) -> None:
        with client(served) as mine, pytest.raises(error):
            act(mine)

    for revoke in (False, True):
        foreign = decision(there, C, here.target, revoke=revoke)
        refused(lambda mine, letter=foreign: mine.hand_in("approval", letter), ApprovalUnknown)
    note = there.ledger.checkpoint()
    line = cosign_tree_head(note, C, identity(C).signer, at=NOW)
    cosigned = SignedNote.from_text(note).with_signature(line).to_text()
    refused(lambda mine: mine.submit_cosignature(cosigned), SignatureInvalid)
    tally = here.broker.registry.tally(here.target).tally
    assert (tally["revoked_by"], tally["approved_by"]) == ([], [A, B])
    # What became of them is on record, once each, for whoever asks.
    refusals = [entry["body"] for entry in here.ledger.entries(size)]
    assert [refusal["code"] for refusal in refusals] == ["approval-unknown"] * 2


def test_a_letter_of_one_kind_is_none_of_another(served: Served) -> None:
    world, _ = served
    sealed = world.seal(C, name="kinds")
    approval = decision(world, C, some_target("kinds"))
    with client(served) as mine:
        with pytest.raises(SealtrainError) as caught:
            mine.hand_in("dataset", approval)
        assert caught.value.exit_code == 3
        with pytest.raises(SealtrainError) as caught:
            mine.hand_in("approval", sealed.envelope)
        assert caught.value.exit_code == 3


def test_a_guests_request_to_one_broker_opens_nothing_at_another(
    served: Served, other: Served
) -> None:
    here, there = served[0], other[0]
    here.obtain()
    asked = here.wire.requests[-1]
    assert isinstance(asked, ReleaseRequest)
    with client(other) as broker:
        with pytest.raises(ConsortiumMismatch):
            broker.release(asked)
        moved = asked.to_dict() | {"consortium_id": there.consortium.consortium_id}
        with pytest.raises(ChallengeUnknown):
            broker.release(ReleaseRequest.model_validate_json(canonical_json(moved)))
        fresh = broker.challenge(there.consortium.consortium_id, "release")
        moved |= {"challenge": fresh.challenge}
        with pytest.raises(SealtrainError) as caught:
            broker.release(ReleaseRequest.model_validate_json(canonical_json(moved)))
        assert caught.value.code == "report-data-mismatch"


def test_a_webhook_asked_twice_answers_twice_and_records_both(served: Served) -> None:
    from release_world import boot_info

    world, url = served
    size = world.ledger.size
    body = canonical_json(boot_info(world))
    told = [
        httpx2.post(f"{url}/bootAuth/app", content=body, trust_env=False).json() for _ in range(2)
    ]
    assert [answer["isAllowed"] for answer in told] == [True, True]
    assert [entry["kind"] for entry in world.ledger.entries(size)] == ["boot", "boot"]


def test_a_client_notices_a_broker_of_another_consortium(
    served: Served, other: Served, tmp_path: Path
) -> None:
    with client(other) as broker, pytest.raises(ConsortiumMismatch):
        broker.consortium(served[0].consortium.consortium_id)
