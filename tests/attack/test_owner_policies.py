"""What an owner asks touches runs on their data, binds at once, and is nobody else's to set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from release_world import ReleaseWorld, audited, document_of, release_world
from world import identity, simulated_policy

from sealtrain.base.clock import from_rfc3339
from sealtrain.client.grant import renew
from sealtrain.consortium.owned import sign_owned
from sealtrain.consortium.policies import OwnerPolicy
from sealtrain.errors import (
    ApprovalUnknown,
    DatasetMismatch,
    QuoteRootUntrusted,
    SignatureInvalid,
    StatementInvalid,
)
from sealtrain.signing import dsse

pytestmark = pytest.mark.claim("C69")

A, B, C = "hospital-a", "hospital-b", "hospital-c"
UNMET = simulated_policy("another vendor")
"""No guest of these tests meets it: it trusts other machines."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ReleaseWorld]:
    with release_world(tmp_path, rules={"approve": 2, "own_data_consent": False}) as made:
        yield made


def policy(world: ReleaseWorld, owner: str = A, **changed: Any) -> dsse.Envelope:
    signer = identity(changed.pop("signed_by", owner)).signer
    arguments: dict[str, Any] = {
        "consortium_id": world.consortium.consortium_id,
        "owner": identity(owner).public,
        "appraisal": None,
        "lease_seconds": None,
        "previous": None,
        "signed_at": world.clock(),
    }
    return sign_owned(OwnerPolicy.of(**arguments | changed), signer)


def put(world: ReleaseWorld, envelope: dsse.Envelope) -> str:
    world.broker.registry.hand_in(OwnerPolicy.entry_kind, document_of(envelope))
    return envelope.digest


def test_a_guest_must_meet_the_policy_of_every_owner_whose_data_it_reads(
    world: ReleaseWorld,
) -> None:
    assert world.obtain().keys
    put(world, policy(world, appraisal=UNMET))
    with pytest.raises(QuoteRootUntrusted) as caught:
        world.obtain()
    assert caught.value.owner == A
    assert world.refusals()[-1]["code"] == "quote-root-untrusted"
    world.assert_no_key_left()


def test_it_does_not_touch_runs_on_other_owners_data(world: ReleaseWorld) -> None:
    put(world, policy(world, appraisal=UNMET))

    def without_a(recipe: dict[str, Any]) -> None:
        recipe["datasets"] = [one for one in recipe["datasets"] if one["owner"] != A]

    world.locked = world.lock(without_a)
    world.sealed = {owner: world.seal(owner) for owner in (B, C)}
    for owner in (B, C):
        world.register(world.sealed[owner])
        world.approve(owner)
    assert set(world.obtain().keys) == {one.dataset_id for one in world.sealed.values()}


def test_the_shortest_lease_that_an_owner_of_the_data_allows_counts(world: ReleaseWorld) -> None:
    put(world, policy(world, B, lease_seconds=600))
    put(world, policy(world, C, lease_seconds=120))
    receipt = world.obtain().receipts[-1].receipt
    assert from_rfc3339(receipt.lease.not_after) - world.clock() == 120


def test_nobody_lengthens_a_lease_beyond_the_brokers(world: ReleaseWorld) -> None:
    before = from_rfc3339(world.obtain().receipts[-1].receipt.lease.not_after)
    put(world, policy(world, lease_seconds=7 * 24 * 3600))
    assert from_rfc3339(world.obtain().receipts[-1].receipt.lease.not_after) == before


def test_a_policy_binds_at_the_next_renewal(world: ReleaseWorld) -> None:
    attested = world.attest()
    grant = world.obtain(attested=attested)
    put(world, policy(world, appraisal=UNMET))
    with pytest.raises(QuoteRootUntrusted) as caught:
        renew(world.wire, attested, world.collect(world.guest()), grant)
    assert caught.value.owner == A


def test_its_owner_asks_for_less_again(world: ReleaseWorld) -> None:
    first = put(world, policy(world, appraisal=UNMET))
    put(world, policy(world, previous=first))
    assert world.obtain().keys
    assert audited(world).holds


def test_an_old_policy_does_not_come_back(world: ReleaseWorld) -> None:
    lenient = policy(world, lease_seconds=3600)
    first = put(world, lenient)
    strict = put(world, policy(world, previous=first, appraisal=UNMET))
    put(world, lenient)  # the same bytes once more change nothing
    with pytest.raises(QuoteRootUntrusted):
        world.obtain()
    for previous in (None, first, "00" * 32):
        with pytest.raises(StatementInvalid):
            put(world, policy(world, previous=previous))
    in_force = world.broker.registry.policies().policies
    assert [one.envelope().digest for one in in_force] == [strict]


def test_nobody_asks_for_somebody_else(world: ReleaseWorld) -> None:
    for envelope, error in (
        (policy(world, A, signed_by=B), DatasetMismatch),
        (policy(world, A, signed_by="outsider"), ApprovalUnknown),
        (policy(world, consortium_id="00" * 32), ApprovalUnknown),
        (dsse.sign(b"{}", "application/json", identity(A).signer), SignatureInvalid),
    ):
        with pytest.raises(error):
            put(world, envelope)
    assert not world.broker.registry.policies().policies
    assert {one["code"] for one in world.refusals()} == {
        "dataset-mismatch", "approval-unknown", "signature-invalid",
    }  # fmt: skip


@pytest.mark.parametrize("changed", [{"lease_seconds": 59}, {"lease_seconds": 604_801}])
def test_a_lease_out_of_range_is_no_policy(world: ReleaseWorld, changed: dict[str, Any]) -> None:
    with pytest.raises(StatementInvalid):
        policy(world, **changed)
