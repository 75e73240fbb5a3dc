"""Data is not used after its retention, nor for a purpose that its owner does not allow."""

from __future__ import annotations

from typing import Any

import pytest
from release_world import ReleaseWorld, SealedSet, audited, document_of, renewed
from world import DAY, OWNERS, signed_dataset

from sealtrain.base.clock import to_rfc3339
from sealtrain.client.grant import Grant
from sealtrain.consortium.errors import DatasetMismatch
from sealtrain.errors import LeaseStale, SealtrainError
from sealtrain.guest.lease import RunLease
from sealtrain.signing.datause import DataUse
from sealtrain.signing.dsse import Envelope
from sealtrain.signing.errors import PurposeMismatch, RetentionEnded

A, B, C = OWNERS
HOUR = 3600


def kept_for(world: ReleaseWorld, seconds: int) -> DataUse:
    return DataUse(retention_until=to_rfc3339(world.clock() + seconds))


def sealed_with(world: ReleaseWorld, data_use: DataUse, **changed: Any) -> SealedSet:
    """C's data in a new sealing, registered and approved."""
    world.sealed[C] = world.seal(C, data_use=data_use, **changed)
    world.register(world.sealed[C])
    for owner in OWNERS:
        world.approve(owner)
    return world.sealed[C]


def stated_anew(
    world: ReleaseWorld, before: SealedSet, data_use: DataUse | None, *, signed_by: str = C
) -> Envelope:
    """The same sealed data with another statement, as ``rewrap --data-use`` signs it."""
    return signed_dataset(
        world.locked,
        C,
        sealed_at=world.clock(),
        previous=before.envelope.digest,
        data_use=data_use,
        dataset_id=before.dataset_id,
        root=before.root,
        signed_by=signed_by,
    )


def refused(world: ReleaseWorld, error: type[SealtrainError], **changed: Any) -> None:
    with pytest.raises(error) as caught:
        world.obtain(**changed)
    assert (caught.value.owner, caught.value.exit_code) == (C, 3)
    assert world.refusals()[-1]["code"] == error.code
    world.assert_no_key_left()


@pytest.mark.claim("C175")
def test_no_key_is_released_after_the_retention(world: ReleaseWorld) -> None:
    sealed_with(world, kept_for(world, HOUR))
    world.clock.advance(HOUR)
    assert world.obtain().lease_seconds == 1  # the last second is a good one
    world.clock.advance(1)
    refused(world, RetentionEnded)
    rest = [world.sealed[owner].asked for owner in (A, B)]
    assert len(world.obtain(datasets=rest).keys) == 2


@pytest.mark.claim("C175")
def test_a_lease_ends_with_the_retention_and_is_not_renewed(world: ReleaseWorld) -> None:
    sealed_with(world, kept_for(world, 5 * HOUR // 2))
    ends = world.clock() + 5 * HOUR // 2 + 1
    grant = world.obtain()
    for _ in range(4):
        world.clock.advance(HOUR // 2)
        grant = renewed(world, grant)
    assert grant.lease_ends == ends
    world.clock.now = ends - 1
    assert renewed(world, grant).lease_ends == ends
    world.clock.now = ends
    with pytest.raises(LeaseStale):
        renewed(world, grant)
    refused(world, RetentionEnded, run_id=grant.run_id, resume=True)
    assert audited(world).holds


@pytest.mark.claim("C175")
def test_an_owner_who_shortens_a_retention_stops_running_guests(world: ReleaseWorld) -> None:
    before = sealed_with(world, kept_for(world, 30 * DAY))
    grant = world.obtain()
    world.broker.registry.hand_in(
        "dataset", document_of(stated_anew(world, before, kept_for(world, 60)))
    )
    world.clock.advance(61)
    with pytest.raises(RetentionEnded):
        renewed(world, grant)
    assert world.refusals()[-1]["action"] == "renewal"


@pytest.mark.claim("C175")
def test_a_run_does_not_go_on_without_the_data(world: ReleaseWorld) -> None:
    """Asking for the other data only, of another broker's share, does not hide it."""
    sealed = sealed_with(world, kept_for(world, HOUR))
    world.clock.advance(HOUR + 1)
    rest = [world.sealed[owner].asked for owner in (A, B)]
    refused(world, RetentionEnded, datasets=rest, elsewhere=[sealed.of_run])


@pytest.mark.claim("C175")
def test_only_its_owner_states_a_longer_retention_and_both_stay_visible(
    world: ReleaseWorld,
) -> None:
    before = sealed_with(world, kept_for(world, HOUR))
    world.clock.advance(HOUR + 1)
    forged = stated_anew(world, before, kept_for(world, DAY), signed_by=A)
    with pytest.raises(DatasetMismatch):
        world.broker.registry.hand_in("dataset", document_of(forged))
    refused(world, RetentionEnded)
    world.broker.registry.hand_in(
        "dataset", document_of(stated_anew(world, before, kept_for(world, DAY)))
    )
    assert len(world.obtain().keys) == 3
    registered = [
        entry["body"]["digest"]
        for entry in world.ledger.entries()
        if entry["kind"] == "dataset" and entry["body"]["dataset_id"] == before.dataset_id
    ]
    assert len(set(registered)) == 2
    assert audited(world).holds


@pytest.mark.claim("C175")
def test_an_old_manifest_brings_an_earlier_statement_not_back(world: ReleaseWorld) -> None:
    before = sealed_with(world, kept_for(world, 30 * DAY))
    world.clock.advance(HOUR)
    world.broker.registry.hand_in(
        "dataset", document_of(stated_anew(world, before, kept_for(world, 60)))
    )
    world.clock.advance(61)
    with pytest.raises(SealtrainError):
        world.broker.registry.hand_in("dataset", document_of(before.envelope))
    refused(world, RetentionEnded)


@pytest.mark.claim("C175")
def test_a_second_sealing_with_a_longer_retention_is_another_dataset(world: ReleaseWorld) -> None:
    """The owner's approval pins the first one, so the second is not released in its place."""
    sealed_with(world, kept_for(world, HOUR))
    second = world.seal(C, data_use=kept_for(world, 365 * DAY))
    world.register(second)
    datasets = [world.sealed[A].asked, world.sealed[B].asked, second.asked]
    refused(world, DatasetMismatch, datasets=datasets)


@pytest.mark.claim("C175")
def test_a_broker_whose_clock_is_set_back_is_found_by_an_audit(world: ReleaseWorld) -> None:
    sealed_with(world, kept_for(world, HOUR))
    world.clock.advance(2 * HOUR)
    refused(world, RetentionEnded)
    world.clock.advance(-HOUR - 600)
    world.obtain()
    found = [(finding.index, finding.check) for finding in audited(world).findings]
    step = world.ledger.size - 1
    assert found == [(step, "time"), (step, "release")]


@pytest.mark.claim("C175")
@pytest.mark.parametrize("action", ["release", "renewal"])
def test_a_broker_that_ignores_a_retention_is_found_by_an_audit(
    world: ReleaseWorld, action: str
) -> None:
    sealed_with(world, kept_for(world, HOUR))
    grant = renewed(world, world.obtain())
    body = next(
        entry["body"] for entry in reversed(list(world.ledger.entries())) if entry["kind"] == action
    )
    world.clock.advance(HOUR + 120)
    fresh = {"receipt_digest": "ef" * 32, "not_after": to_rfc3339(world.clock() + 60)}
    if action == "release":
        fresh |= {"run_id": "ab" * 16, "lease_id": "cd" * 32}
    assert grant.run_id == body["run_id"]
    assert audited(world).holds
    world.ledger.append(action, body | fresh)
    found = audited(world).findings
    assert {finding.check for finding in found} == {action}
    assert any("retention" in finding.problem for finding in found)


@pytest.mark.claim("C175")
def test_a_guest_whose_clock_is_set_back_stops_with_the_retention(world: ReleaseWorld) -> None:
    sealed_with(world, kept_for(world, 600))
    grant = world.obtain()
    lease, passed = granted(world, grant, latest=None)
    world.clock.advance(-30 * DAY)
    passed[0] = 600.0
    lease.require()
    passed[0] = 601.0
    with pytest.raises(LeaseStale):
        lease.require()


@pytest.mark.claim("C175")
@pytest.mark.parametrize("back", [0, 30 * DAY])
def test_a_guest_takes_no_longer_lease_than_its_own_manifest_allows(
    world: ReleaseWorld, back: int
) -> None:
    """The broker knows a later manifest, or ignores this one."""
    sealed_with(world, kept_for(world, 30 * DAY))
    grant = world.obtain()
    assert grant.lease_seconds == HOUR
    lease, passed = granted(world, grant, latest=world.clock() + 601)
    assert lease.seconds_left() == lease.seconds == 601
    world.clock.advance(-back)
    passed[0] = 600.5
    lease.require()
    passed[0] = 601.0
    with pytest.raises(LeaseStale):
        lease.require()


def granted(
    world: ReleaseWorld, grant: Grant, *, latest: int | None
) -> tuple[RunLease, list[float]]:
    """A guest's lease on a grant, and the clock of it that never goes back."""
    passed = [0.0]
    lease = RunLease(world.clock, elapsed=lambda: passed[0], latest=latest)
    lease.extend(grant.lease_ends, float(grant.lease_seconds), lease.moment())
    return lease, passed


@pytest.mark.claim("C176")
@pytest.mark.parametrize("stated", [None, "product development"])
def test_purposes_that_bind_refuse_another_purpose(world: ReleaseWorld, stated: str | None) -> None:
    use = DataUse(purposes=("early detection of cancer",), purposes_bind=True)
    if stated is not None:
        world.locked = world.lock(lambda recipe: recipe.update(purpose=stated))
        world.sealed = {owner: world.seal(owner) for owner in OWNERS}
        for owner in (A, B):
            world.register(world.sealed[owner])
    sealed_with(world, use)
    refused(world, PurposeMismatch)


@pytest.mark.claim("C176")
def test_the_same_purpose_gets_the_keys(world: ReleaseWorld) -> None:
    purpose = "early detection of cancer"
    world.locked = world.lock(lambda recipe: recipe.update(purpose=purpose))
    world.sealed = {owner: world.seal(owner) for owner in OWNERS}
    for owner in (A, B):
        world.register(world.sealed[owner])
    sealed_with(world, DataUse(purposes=("care", purpose), purposes_bind=True))
    assert len(world.obtain().keys) == 3


@pytest.mark.claim("C176")
def test_purposes_that_do_not_bind_refuse_nothing(world: ReleaseWorld) -> None:
    sealed_with(world, DataUse(purposes=("early detection of cancer",)))
    assert len(world.obtain().keys) == 3
