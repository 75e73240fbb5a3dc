"""A lease ends, a revocation reaches running guests, and no checkpoint is rolled back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from release_world import ReleaseWorld, release_world

from sealtrain.base.canonical import canonical_json
from sealtrain.client.grant import Grant, renew
from sealtrain.consortium.errors import ApprovalExpired, ApprovalRevoked
from sealtrain.errors import LeaseStale, SealtrainError
from sealtrain.release.errors import ChallengeReplayed, ChallengeUnknown, LeaseUnknown
from sealtrain.release.messages import RenewalRequest, load_message
from sealtrain.sealing.errors import CheckpointRefused

pytestmark = pytest.mark.claim("C20")


def renewed(world: ReleaseWorld, grant: Grant, **changed: Any) -> Grant:
    collect = changed.pop("collect", None) or world.collect(
        changed.pop("guest", None) or world.guest()
    )
    return renew(world.wire, world.attest(), collect, grant, **changed)


def refused(world: ReleaseWorld, error: type[SealtrainError], grant: Grant, **changed: Any) -> None:
    with pytest.raises(error) as caught:
        renewed(world, grant, **changed)
    assert caught.value.exit_code == 3
    body = world.refusals()[-1]
    assert (body["action"], body["code"], body["run_id"]) == ("renewal", error.code, grant.run_id)
    world.assert_no_key_left()


def test_a_renewed_lease_ends_later_and_carries_no_key(world: ReleaseWorld) -> None:
    grant = world.obtain()
    world.clock.advance(3000)
    later = renewed(world, grant, checkpoint=(1, "aa" * 32))
    assert later.lease_ends == grant.lease_ends + 3000
    assert later.lease_id == grant.lease_id
    assert [receipt.receipt.kind for receipt in later.receipts] == ["release", "renewal"]
    assert later.latest_checkpoint is not None
    assert later.latest_checkpoint.counter == 1
    assert world.kinds()[-1] == "renewal"
    world.assert_no_key_left()


def test_a_stale_lease_is_not_revived(world: ReleaseWorld) -> None:
    grant = world.obtain()
    world.clock.advance(3600)
    refused(world, LeaseStale, grant)


def test_a_stale_lease_starts_again_with_resume(world: ReleaseWorld) -> None:
    grant = world.obtain()
    renewed(world, grant, checkpoint=(4, "aa" * 32))
    world.clock.advance(4000)
    again = world.obtain(run_id=grant.run_id, resume=True)
    assert again.keys == grant.keys
    assert again.latest_checkpoint is not None
    assert (again.latest_checkpoint.counter, again.latest_checkpoint.digest) == (4, "aa" * 32)
    assert again.lease_id != grant.lease_id


@pytest.mark.negative(58)
@pytest.mark.negative(62)
def test_a_resume_ends_the_lease_of_the_guest_before(world: ReleaseWorld) -> None:
    grant = world.obtain()
    world.obtain(run_id=grant.run_id, resume=True)
    refused(world, LeaseStale, grant)


@pytest.mark.claim("C11")
@pytest.mark.negative(61)
def test_a_revocation_stops_renewals(world: ReleaseWorld) -> None:
    grant = world.obtain()
    world.revoke("hospital-c")
    refused(world, ApprovalRevoked, grant)


@pytest.mark.claim("C11")
@pytest.mark.negative(61)
def test_no_release_follows_a_revocation_however_they_race(world: ReleaseWorld) -> None:
    together = threading.Barrier(7)
    outcomes: list[str] = []

    def release() -> None:
        together.wait()
        try:
            world.obtain()
            outcomes.append("released")
        except ApprovalRevoked:
            outcomes.append("revoked")

    threads = [threading.Thread(target=release) for _ in range(6)]
    for thread in threads:
        thread.start()
    together.wait()
    world.revoke("hospital-c")
    for thread in threads:
        thread.join()
    kinds = world.kinds()
    assert len(outcomes) == 6
    assert kinds.count("release") == outcomes.count("released")
    assert "release" not in kinds[kinds.index("revocation") :]


def test_a_lease_does_not_outlive_the_approvals(tmp_path: Path) -> None:
    with release_world(tmp_path, approved_by=("hospital-a",)) as world:
        ends = world.clock() + 100
        world.approve("hospital-b", not_after=ends)
        grant = world.obtain()
        assert grant.lease_ends == ends + 1
        world.clock.advance(101)
        refused(world, ApprovalExpired, grant)


def test_the_last_second_of_an_approval_still_gives_a_lease(tmp_path: Path) -> None:
    with release_world(tmp_path, approved_by=("hospital-a",)) as world:
        world.approve("hospital-b", not_after=world.clock() + 1)
        world.clock.advance(1)
        assert world.obtain().lease_ends == world.clock() + 1


def test_an_invented_lease(world: ReleaseWorld) -> None:
    grant = world.obtain()
    other = world.obtain()
    swapped = Grant(
        run_id=grant.run_id,
        keys={},
        latest_checkpoint=None,
        lease_key=grant.lease_key,
        receipts=other.receipts,
    )
    refused(world, LeaseUnknown, swapped)


@pytest.mark.negative(58)
def test_another_instance_of_the_same_guest_cannot_renew(world: ReleaseWorld) -> None:
    grant = world.obtain()
    refused(world, LeaseUnknown, grant, guest=world.guest(number=1))


@pytest.mark.negative(58)
def test_a_guest_with_another_recipe_cannot_renew(world: ReleaseWorld) -> None:
    grant = world.obtain()
    other = world.lock(lambda recipe: recipe["trainer"].update(max_steps=301))
    for owner in ("hospital-a", "hospital-b"):
        world.approve(owner, target=other.target, datasets=[])
    receipt = grant.receipts[0].receipt.model_copy(update={"recipe_hash": other.recipe_hash})
    swapped = Grant(
        run_id=grant.run_id,
        keys={},
        latest_checkpoint=None,
        lease_key=grant.lease_key,
        receipts=(replace(grant.receipts[0], receipt=receipt),),
    )
    with pytest.raises(LeaseUnknown):
        renew(
            world.wire,
            world.attest(other),
            world.collect(world.guest(other)),
            swapped,
        )
    assert world.refusals()[-1]["code"] == "lease-unknown"


@pytest.mark.parametrize(
    ("offered", "accepted"),
    [
        ((4, "aa" * 32), False),
        ((5, "bb" * 32), False),
        ((5, "aa" * 32), True),
        ((6, "bb" * 32), True),
    ],
    ids=["lower", "same counter, other digest", "the same", "higher"],
)
@pytest.mark.negative(60)
def test_the_anchored_checkpoint_never_goes_back(
    world: ReleaseWorld, offered: tuple[int, str], accepted: bool
) -> None:
    grant = renewed(world, world.obtain(), checkpoint=(5, "aa" * 32))
    if accepted:
        after = renewed(world, grant, checkpoint=offered)
        assert after.latest_checkpoint is not None
        assert (after.latest_checkpoint.counter, after.latest_checkpoint.digest) == offered
    else:
        refused(world, CheckpointRefused, grant, checkpoint=offered)
        again = world.obtain(run_id=grant.run_id, resume=True)
        assert again.latest_checkpoint is not None
        assert again.latest_checkpoint.counter == 5


def test_a_renewal_without_a_checkpoint_keeps_the_anchor(world: ReleaseWorld) -> None:
    grant = renewed(world, world.obtain(), checkpoint=(5, "aa" * 32))
    after = renewed(world, grant)
    assert after.latest_checkpoint is not None
    assert after.latest_checkpoint.counter == 5


@pytest.mark.negative(1)
def test_a_renewal_request_cannot_be_replayed(world: ReleaseWorld) -> None:
    grant = renewed(world, world.obtain())
    request = world.wire.requests[-1]
    sent = load_message(RenewalRequest, canonical_json(request.to_dict()))
    with pytest.raises(ChallengeReplayed):
        world.wire.renew(sent, grant.lease_key)


@pytest.mark.negative(2)
def test_a_challenge_for_a_release_does_not_renew(world: ReleaseWorld) -> None:
    grant = world.obtain()
    plain = world.wire.challenge
    world.wire.challenge = lambda consortium_id, _purpose: plain(consortium_id, "release")
    refused(world, ChallengeUnknown, grant)


def at_once(count: int, act: Callable[[int], object]) -> list[str]:
    """What so many calls at the same moment end with: ``done``, or a refusal's code."""
    together, told = threading.Barrier(count), list[str]()

    def attempt(number: int) -> None:
        together.wait()
        try:
            act(number)
        except SealtrainError as error:
            told.append(error.code)
        else:
            told.append("done")

    threads = [threading.Thread(target=attempt, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(told)


@pytest.mark.claim("C598")
def test_of_two_states_of_one_counter_one_is_anchored_however_they_race(
    world: ReleaseWorld,
) -> None:
    grant, broker = world.obtain(), world.attest()

    def renewed_with(number: int) -> None:
        collect = world.collect(world.guest())
        renew(world.wire, broker, collect, grant, checkpoint=(5, f"{number:064x}"))

    assert at_once(6, renewed_with) == ["checkpoint-refused"] * 5 + ["done"]
    entries: list[Any] = world.ledger.entries()
    anchors = [entry["body"]["checkpoint"] for entry in entries if entry["kind"] == "renewal"]
    assert [anchor["counter"] for anchor in anchors] == [5]


@pytest.mark.claim("C598")
def test_of_resumes_at_once_one_lease_lives(world: ReleaseWorld) -> None:
    first, broker, granted = world.obtain(), world.attest(), list[str]()

    def resume(number: int) -> None:
        guest = world.guest(number=number)
        grant = world.obtain(run_id=first.run_id, resume=True, guest=guest, attested=broker)
        granted.append(grant.lease_id)

    assert at_once(5, resume) == ["done"] * 5
    with world.store.reading() as transaction:
        leases = [transaction.lease(value) for value in (first.lease_id, *granted)]
    assert sum(lease is not None and not lease.superseded for lease in leases) == 1
