"""Several brokers: too few open nothing, and one that lies or vanishes is named."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from quorum_world import QuorumWorld, quorum_world
from world import OWNERS

from sealtrain.base.canonical import canonical_json
from sealtrain.base.secret import Secret
from sealtrain.broker.service.keyring import Keyring
from sealtrain.client.errors import BrokerUnreachable
from sealtrain.client.grant import AskedKey, KeyRequest, obtain
from sealtrain.client.grants import Grants
from sealtrain.consortium.errors import ApprovalRevoked, ApprovalsMissing
from sealtrain.errors import LeaseStale, SealtrainError, TooManyRequests, UsageError
from sealtrain.keys.shares import join_key, split_key
from sealtrain.manifest.errors import ClaimContradicted
from sealtrain.recipe.errors import DatasetUnknown
from sealtrain.release.errors import AnswerInvalid, LeaseUnknown
from sealtrain.release.lease_code import Closing
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.errors import CheckpointRefused, NoStanza, WrongKey

pytestmark = [pytest.mark.long, pytest.mark.claim("C66")]

A, B, C = (f"http://127.0.0.1:{place}" for place in (1, 2, 3))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[QuorumWorld]:
    with quorum_world(tmp_path) as made:
        yield made


def keys_of(world: QuorumWorld) -> dict[str, DataKey]:
    return {dataset.dataset_id: dataset.key for dataset in world.sealed.values()}


def assert_right(world: QuorumWorld, grants: Grants) -> None:
    assert grants.data_keys == keys_of(world)


def handing_out(world: QuorumWorld, place: int, document: Secret) -> None:
    """One broker hands out this part of every key instead of the one it was given."""
    lying = _Lying(Secret(bytes([place + 1]) * 32), document)
    world.worlds[place].restart(keyring=lying)
    world.wires[place].broker = world.worlds[place].broker


class _Lying(Keyring):
    __slots__ = ("_document",)

    def __init__(self, root: Secret, document: Secret) -> None:
        super().__init__(root)
        self._document = document

    def _unwrap(self, *_: Any) -> Secret:
        return self._document


def test_all_three_brokers_answer_and_the_keys_are_whole(world: QuorumWorld) -> None:
    grants = world.obtain()
    assert_right(world, grants)
    assert set(grants.held) == {A, B, C}
    assert [receipt.receipt.kind for receipt in grants.receipts] == ["release"] * 3
    assert grants.simulated
    assert world.told == []
    assert all(not grant.keys for grant in grants.held.values())


def test_no_broker_ever_saw_a_whole_key(world: QuorumWorld) -> None:
    world.obtain()
    for place, each_world in enumerate(world.worlds):
        for dataset in world.wanted:
            stanza = dataset.stanza_for(world.attested()[place])
            assert stanza is not None
            assert stanza.kind == "share"
        each_world.assert_no_key_left()


@pytest.mark.parametrize("down", [0, 1, 2])
def test_two_brokers_suffice_and_the_third_is_named(world: QuorumWorld, down: int) -> None:
    world.wires[down].down = True
    grants = world.obtain()
    assert_right(world, grants)
    assert world.told == [((A, B, C)[down], "broker-unreachable")]
    assert len(grants.held) == 2


def test_one_broker_opens_nothing(world: QuorumWorld) -> None:
    world.wires[0].down = world.wires[1].down = True
    with pytest.raises(BrokerUnreachable):
        world.obtain()


def test_one_broker_that_is_asked_alone_opens_nothing(world: QuorumWorld) -> None:
    with pytest.raises(UsageError) as caught:
        world.obtain(world.quorum(2))
    assert (caught.value.got or "").startswith("1 ")
    assert caught.value.expected == "2"


def test_a_share_says_nothing_about_the_key(world: QuorumWorld) -> None:
    """k-1 shares fit every key: one share and any other key make a document that joins."""
    key, other = DataKey.generate(), DataKey.generate()
    mine = split_key(key, threshold=2, count=3)
    assert join_key({A: mine[0]}).key is None
    assert other.reveal() not in mine[0].reveal()
    for share in mine:
        assert key.reveal() not in share.reveal()
        assert key.reveal().hex().encode() not in share.reveal()


@pytest.mark.parametrize("liar", [0, 1, 2])
def test_a_broker_that_hands_out_a_wrong_share_is_named_and_the_run_goes_on(
    world: QuorumWorld, liar: int
) -> None:
    handing_out(world, liar, split_key(DataKey.generate(), threshold=2, count=3)[liar])
    grants = world.obtain()
    assert_right(world, grants)
    assert world.told == [((A, B, C)[liar], "answer-invalid")]
    assert all((A, B, C)[liar] not in holders for holders in grants.holders.values())


@pytest.mark.parametrize(
    "document",
    [
        b"\0" * 32,
        b"x" * 700,
        canonical_json({"digests": ["00" * 32] * 3, "mnemonic": "academic acid"}),
        canonical_json({"digests": ["00" * 32], "mnemonic": "academic acid"}),
    ],
    ids=["a key", "noise", "no mnemonic", "alone"],
)
def test_what_is_no_share_is_named_and_the_run_goes_on(world: QuorumWorld, document: bytes) -> None:
    handing_out(world, 1, Secret(document))
    assert_right(world, world.obtain())
    assert world.told == [(B, "answer-invalid")]


def test_a_share_under_the_honest_digests_but_of_another_place_is_named(
    world: QuorumWorld,
) -> None:
    """It knows all digests, since they lie beside its share; it does not know the shares."""
    key = world.sealed[OWNERS[0]].key
    known = json.loads(split_key(key, threshold=2, count=3)[1].reveal())
    forged = json.loads(split_key(DataKey.generate(), threshold=2, count=3)[1].reveal())
    handing_out(world, 1, Secret(canonical_json(known | {"mnemonic": forged["mnemonic"]})))
    assert_right(world, world.obtain())
    assert world.told == [(B, "answer-invalid")]


def test_two_liars_of_three_stop_the_run_and_open_nothing(world: QuorumWorld) -> None:
    for place in (0, 1):
        handing_out(world, place, split_key(DataKey.generate(), threshold=2, count=3)[place])
    with pytest.raises(AnswerInvalid):
        world.obtain()


@pytest.mark.parametrize(("threshold", "count"), [(1, 2), (1, 3), (2, 4), (8, 16), (4, 3), (9, 17)])
def test_a_key_is_not_shared_so_that_two_halves_never_meet(threshold: int, count: int) -> None:
    with pytest.raises(UsageError):
        split_key(DataKey.generate(), threshold=threshold, count=count)


@pytest.mark.parametrize(("threshold", "count"), [(2, 2), (2, 3), (3, 4), (9, 16), (16, 16)])
def test_any_threshold_of_the_shares_joins(threshold: int, count: int) -> None:
    key = DataKey.generate()
    shares = {
        str(place): share
        for place, share in enumerate(split_key(key, threshold=threshold, count=count))
    }
    last = dict(list(shares.items())[-threshold:])
    assert join_key(last).key == key
    assert join_key(dict(list(last.items())[1:])).key is None


def test_shares_of_fewer_than_half_are_refused_wherever_they_come_from(
    world: QuorumWorld,
) -> None:
    """A mnemonic that says 1 of 3 would let one broker decide; it counts as no share."""
    from shamir_mnemonic import Share

    document = json.loads(split_key(DataKey.generate(), threshold=2, count=3)[0].reveal())
    weak = replace(Share.from_mnemonic(document["mnemonic"]), member_threshold=1).mnemonic()
    handing_out(world, 0, Secret(canonical_json(document | {"mnemonic": weak})))
    assert_right(world, world.obtain())
    assert world.told == [(A, "answer-invalid")]


# Stanzas


def asked_with(world: QuorumWorld, place: int, position: int, **changed: Any) -> None:
    """Show one broker one dataset whose stanza was changed."""
    wire, broker = world.wires[place], world.attested()[place]
    one = world.wanted[position]
    honest = one.stanza_for(broker)
    assert honest is not None
    obtain(
        wire,
        broker,
        world.collect,
        KeyRequest(
            run_id="ab" * 16,
            recipe_hash=world.first.locked.recipe_hash,
            datasets=[AskedKey(one.owner_id, one.dataset_id, one.root, replace(honest, **changed))],
            resume=False,
        ),
    )


def test_a_share_of_another_dataset_does_not_open(world: QuorumWorld) -> None:
    other = world.wanted[1].stanza_for(world.attested()[0])
    assert other is not None
    with pytest.raises(NoStanza):
        asked_with(world, 0, 0, recipient=other.recipient, body=other.body)
    with pytest.raises(WrongKey):
        asked_with(world, 0, 0, body=other.body)


def test_a_share_of_another_dataset_of_the_same_owner_does_not_open(world: QuorumWorld) -> None:
    before = world.wanted[0].stanza_for(world.attested()[0])
    world.share(OWNERS[0], 2)
    world.approve(OWNERS[0])
    assert before is not None
    with pytest.raises(WrongKey):
        asked_with(world, 0, len(world.wanted) - 1, body=before.body)


def test_a_share_of_another_broker_does_not_open(world: QuorumWorld) -> None:
    other = world.wanted[0].stanza_for(world.attested()[1])
    assert other is not None
    with pytest.raises(NoStanza):
        asked_with(world, 0, 0, recipient=other.recipient, body=other.body)
    with pytest.raises(WrongKey):
        asked_with(world, 0, 0, body=other.body)


def test_a_share_does_not_open_as_a_recipe_stanza(world: QuorumWorld) -> None:
    with pytest.raises(WrongKey):
        asked_with(world, 0, 0, kind="recipe")


def test_a_share_for_another_recipe_does_not_open(world: QuorumWorld) -> None:
    from sealtrain.sealing.stanza import BrokerBinding, RecipeBinding

    one, broker = world.wanted[0], world.attested()[0]
    other = BrokerBinding.of(
        RecipeBinding(broker.app_id, "ee" * 32, one.owner_id), broker.broker_id
    )
    with pytest.raises(NoStanza):
        asked_with(world, 0, 0, recipient=other.recipient)


# Refusals, leases, resumes


def test_a_refusal_says_more_than_silence(world: QuorumWorld) -> None:
    world.worlds[0].revoke("hospital-a")
    world.wires[1].down = True
    with pytest.raises(ApprovalRevoked):
        world.obtain()
    assert (A, "approval-revoked") in world.told
    assert (B, "broker-unreachable") in world.told


def test_a_revocation_at_one_broker_of_three_does_not_stop_at_two_it_does(
    world: QuorumWorld,
) -> None:
    """Why revoke tells every broker: more than n - k must know of it."""
    world.worlds[0].revoke("hospital-a")
    assert_right(world, world.obtain())
    world.worlds[1].revoke("hospital-a")
    with pytest.raises(ApprovalRevoked):
        world.obtain()


def test_the_host_drops_one_broker_in_mid_run(world: QuorumWorld) -> None:
    quorum = world.quorum()
    grants = world.obtain(quorum)
    world.advance(1800)
    world.wires[2].down = True
    grants, problem = world.renew(quorum, grants, (1, "aa" * 32))
    assert problem is None
    assert world.told == [(C, "broker-unreachable")]
    assert grants.lease_ends == world.first.clock() + 3600
    assert grants.lease_seconds == 3600
    world.advance(1900)  # the third broker's lease is over, two are live
    grants, problem = world.renew(quorum, grants, (2, "bb" * 32))
    assert problem is None
    assert grants.lease_ends == world.first.clock() + 3600
    world.wires[1].down = True
    ends = grants.lease_ends
    renewed, problem = world.renew(quorum, grants, (3, "cc" * 32))
    assert isinstance(problem, BrokerUnreachable)
    assert renewed.lease_ends == ends
    assert [receipt in grants.receipts for receipt in renewed.receipts].count(False) == 1


def test_a_broker_that_comes_back_with_a_lapsed_lease_is_not_counted(world: QuorumWorld) -> None:
    quorum = world.quorum()
    grants = world.obtain(quorum)
    world.wires[2].down = True
    world.advance(3000)
    grants, _ = world.renew(quorum, grants)
    world.advance(3000)
    world.wires[2].down, world.wires[1].down = False, True
    asked = len(world.wires[2].requests)
    _, problem = world.renew(quorum, grants)
    assert isinstance(problem, BrokerUnreachable)
    assert len(world.wires[2].requests) == asked
    again = world.obtain(quorum, run_id=grants.held[A].run_id, resume=True)
    assert set(again.held) == {A, C}


def test_leases_that_have_all_ended_are_not_asked_about(world: QuorumWorld) -> None:
    quorum = world.quorum()
    grants = world.obtain(quorum)
    world.advance(3600)
    _, problem = world.renew(quorum, grants)
    assert isinstance(problem, LeaseStale)
    assert all(wire.requests[-1].hpke_public_key for wire in world.wires)


def test_a_resume_meets_the_newest_checkpoint_at_whatever_two_brokers(world: QuorumWorld) -> None:
    run_id = "cd" * 16
    quorum = world.quorum()
    grants = world.obtain(quorum, run_id=run_id)
    world.wires[0].down = True
    grants, problem = world.renew(quorum, grants, (7, "aa" * 32))
    assert problem is None
    for down in (1, 2):
        world.wires[0].down, world.wires[1].down, world.wires[2].down = False, down == 1, down == 2
        again = world.obtain(run_id=run_id, resume=True)
        assert again.run_key == grants.run_key
        assert again.latest_checkpoint is not None
        assert (again.latest_checkpoint.counter, again.latest_checkpoint.digest) == (7, "aa" * 32)


def test_a_broker_that_never_heard_of_a_run_joins_its_resume(world: QuorumWorld) -> None:
    run_id = "ce" * 16
    world.wires[2].down = True
    world.obtain(run_id=run_id)
    world.wires[2].down, world.wires[1].down = False, True
    again = world.obtain(run_id=run_id, resume=True)
    assert_right(world, again)
    assert {(url, grant.receipts[0].receipt.resume) for url, grant in again.held.items()} == {
        (A, True),
        (C, False),
    }


def test_a_run_that_no_broker_knows_is_not_resumed(world: QuorumWorld) -> None:
    from sealtrain.errors import RunMismatch

    with pytest.raises(RunMismatch):
        world.obtain(run_id="cf" * 16, resume=True)


def test_a_guest_that_was_left_behind_cannot_renew(world: QuorumWorld) -> None:
    """Of two guests with one run, at most one has the leases: two sets of two brokers meet."""
    run_id = "d0" * 16
    behind = world.quorum()
    old = world.obtain(behind, run_id=run_id)
    world.wires[0].down = True
    world.obtain(run_id=run_id, resume=True)
    world.wires[0].down = False
    old, problem = world.renew(behind, old, (9, "aa" * 32))
    assert isinstance(problem, LeaseStale)
    assert world.told.count((B, "lease-stale")) == 1


def test_an_older_checkpoint_is_refused_by_enough_brokers(world: QuorumWorld) -> None:
    quorum = world.quorum()
    grants, _ = world.renew(quorum, world.obtain(quorum), (5, "aa" * 32))
    _, problem = world.renew(quorum, grants, (4, "bb" * 32))
    assert isinstance(problem, CheckpointRefused)


def test_a_missing_approval_at_every_broker_is_the_error(tmp_path: Path) -> None:
    with quorum_world(tmp_path, threshold=None) as world:
        for owner in OWNERS:
            world.share(owner, 2)
        world.approve("hospital-a")
        with pytest.raises(ApprovalsMissing):
            world.obtain()


# One broker for each owner


def test_each_owner_may_have_an_own_broker_and_none_sees_another_owners_key(
    tmp_path: Path,
) -> None:
    with quorum_world(tmp_path, threshold=None) as world:
        for place, owner in enumerate(OWNERS):
            world.share(owner, None, place)
        world.approve("hospital-a", "hospital-b")
        grants = world.obtain()
        assert_right(world, grants)
        for place, owner in enumerate(OWNERS):
            (asked,) = {dataset.dataset_id for dataset in world.wires[place].requests[-1].datasets}
            assert asked == world.sealed[owner].dataset_id
            assert grants.holders[asked] == {(A, B, C)[place]}
        world.wires[1].down = True
        with pytest.raises(BrokerUnreachable):
            world.obtain()


def test_what_nobody_registered_is_refused_by_the_brokers_themselves(tmp_path: Path) -> None:
    with quorum_world(tmp_path, threshold=None) as world:
        world.share(OWNERS[0], 2)
        world.approve("hospital-a", "hospital-b")
        unknown = replace(world.wanted[0], dataset_id="99" * 16)
        with pytest.raises(DatasetUnknown):
            world.obtain(datasets=[unknown])
        assert [each_world.refusals()[-1]["code"] for each_world in world.worlds] == [
            "dataset-unknown"
        ] * 3


def test_one_broker_is_the_same_with_n_of_one(tmp_path: Path) -> None:
    with quorum_world(tmp_path, threshold=None, count=1) as world:
        for owner in OWNERS:
            world.share(owner, None)
        world.approve("hospital-a", "hospital-b")
        quorum = world.quorum()
        grants = world.obtain(quorum)
        assert_right(world, grants)
        grants, problem = world.renew(quorum, grants, (1, "aa" * 32))
        assert problem is None
        world.wires[0].down = True
        _, problem = world.renew(quorum, grants)
        assert isinstance(problem, BrokerUnreachable)
        assert world.told == []


def test_evidence_is_asked_for_by_several_threads_each_for_its_own_broker(
    world: QuorumWorld,
) -> None:
    seen: dict[str, int] = {}

    def collect(binding: Any) -> Any:
        seen[threading.current_thread().name] = seen.get(threading.current_thread().name, 0) + 1
        return world.collect(binding)

    world.obtain(collect=collect)
    assert sum(seen.values()) == 3
    digests = [receipt.receipt.transcript_digest for receipt in world.obtain().receipts]
    assert len(set(digests)) == 3


def test_decisions_of_all_brokers_are_merged_once(world: QuorumWorld) -> None:
    quorum = world.quorum()
    listed = quorum.decisions(world.first.target, world.first.consortium)
    assert len(listed) == 6
    assert len({canonical_json(listing) for listing in listed}) == 6


class _Closing:
    """A broker's answer to a run's manifest."""

    def __init__(self, world: QuorumWorld, *refusing: int) -> None:
        self.taken: list[str] = []
        for place, wire in enumerate(world.wires):
            wire.submit_manifest = self._answer(wire.url, place in refusing)  # type: ignore[method-assign]

    def _answer(self, url: str, refuses: bool) -> Any:
        def submit(_manifest: bytes, _run_ids: object) -> int:
            if refuses:
                raise ClaimContradicted("no", check="manifest")
            self.taken.append(url)
            return 1

        return submit


def test_one_broker_that_refuses_a_manifest_does_not_spoil_the_run(world: QuorumWorld) -> None:
    quorum = world.quorum()
    grants = world.obtain(quorum)
    one = _Closing(world, 0)
    quorum.submit_manifest(b"{}", quorum.closings(grants))
    assert one.taken == [B, C]
    assert world.told == [(A, "claim-contradicted")]
    _Closing(world, 0, 1, 2)
    with pytest.raises(ClaimContradicted):
        quorum.submit_manifest(b"{}", quorum.closings(grants))
    assert world.slept == []


@pytest.mark.claim("C44")
@pytest.mark.parametrize(
    ("error", "tries", "recorded", "waited"),
    [
        (TooManyRequests, 5, True, range(300)),
        (TooManyRequests, 100, False, range(120, 300)),
        (BrokerUnreachable, 2, True, range(10)),
        (BrokerUnreachable, 5, False, range(10)),
    ],
)
def test_a_busy_broker_gets_the_manifest_once_it_answers(
    world: QuorumWorld, error: type[SealtrainError], tries: int, recorded: bool, waited: range
) -> None:
    """A stranger fills the broker's minute; a run that has ended waits until the next one."""
    quorum = world.quorum()
    grants = world.obtain(quorum)
    one = _Closing(world)
    taking, asked = world.wires[0].submit_manifest, []

    def busy(manifest: bytes, closing: Closing) -> int:
        asked.append(closing)
        if len(asked) <= tries:
            raise error("not now", check="rate")
        return taking(manifest, closing)

    world.wires[0].submit_manifest = busy  # type: ignore[method-assign]
    quorum.submit_manifest(b"{}", quorum.closings(grants))
    assert (A in one.taken) == recorded
    assert {B, C} <= set(one.taken)
    assert sum(world.slept) in waited
    assert {closing.broker_id for closing in asked} == {world.attested()[0].broker_id}


@pytest.mark.claim("C44")
def test_a_broker_that_granted_nothing_is_shown_no_manifest(world: QuorumWorld) -> None:
    quorum = world.quorum()
    grants = world.obtain(quorum)
    one = _Closing(world)
    quorum.submit_manifest(b"{}", quorum.closings(grants)[1:])
    assert one.taken == [B, C]
    with pytest.raises(UsageError):
        quorum.submit_manifest(b"{}", ())


@pytest.mark.claim("C44")
def test_a_lease_that_a_broker_lost_is_followed_by_another_guests(world: QuorumWorld) -> None:
    quorum = world.quorum()
    (closing, *others) = quorum.closings(world.obtain(quorum))
    lost = replace(closing, lease_id="00" * 32)
    taken = []

    def knows_one(_manifest: bytes, shown: Closing) -> int:
        if shown == lost:
            raise LeaseUnknown("no such lease", check="lease")
        taken.append(shown)
        return 1

    for wire in world.wires:
        wire.submit_manifest = knows_one  # type: ignore[method-assign]
    quorum.submit_manifest(b"{}", [lost, closing, *others])
    assert closing in taken
    with pytest.raises(LeaseUnknown):
        quorum.submit_manifest(b"{}", [lost])
