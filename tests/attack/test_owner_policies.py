"""What an owner asks touches runs on their data, binds at once, and is nobody else's to set."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest
from owner_acts import Asking
from release_world import ReleaseWorld, audited, document_of, release_world
from world import identity, simulated_policy

from sealtrain.attest.errors import QuoteRootUntrusted
from sealtrain.base.clock import from_rfc3339
from sealtrain.client.grant import renew
from sealtrain.consortium.errors import ApprovalUnknown, DatasetMismatch
from sealtrain.consortium.owner_document import sign_owned
from sealtrain.consortium.policies import OwnerPolicy
from sealtrain.errors import ChainRefused, SealtrainError, SignatureInvalid
from sealtrain.signing import dsse
from sealtrain.signing.errors import StatementInvalid

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
        recipe["datasets"] = [dataset for dataset in recipe["datasets"] if dataset["owner"] != A]

    world.locked = world.lock(without_a)
    world.sealed = {owner: world.seal(owner) for owner in (B, C)}
    for owner in (B, C):
        world.register(world.sealed[owner])
        world.approve(owner)
    assert set(world.obtain().keys) == {dataset.dataset_id for dataset in world.sealed.values()}


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
    assert [dataset.envelope().digest for dataset in in_force] == [strict]


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
    assert {refusal["code"] for refusal in world.refusals()} == {
        "dataset-mismatch", "approval-unknown", "signature-invalid",
    }  # fmt: skip


@pytest.mark.parametrize("changed", [{"lease_seconds": 59}, {"lease_seconds": 604_801}])
def test_a_lease_out_of_range_is_no_policy(world: ReleaseWorld, changed: dict[str, Any]) -> None:
    with pytest.raises(StatementInvalid):
        policy(world, **changed)


class Closed:
    """A contract that allows nothing."""

    def require_allowed(self, _app_id: str, _compose_hash: str) -> NoReturn:
        raise ChainRefused("not allowed", check="contract")


def another_request(document: dict[str, Any]) -> None:
    document["run_id"] = "0" * 32


STEPS: Mapping[str, tuple[str, Callable[[ReleaseWorld], object]]] = {
    "6 another request": (
        "report-data-mismatch",
        lambda world: setattr(world.wire, "on_request", another_request),
    ),
    "the owners' contract": (
        "chain-refused",
        lambda world: world.restart(chain=cast("Any", Closed())),
    ),
    "the successor": (
        "consortium-mismatch",
        lambda world: world.broker.registry.hand_in(
            "succession", document_of(Asking(world, world.attest(), "").succession())
        ),
    ),
    "an owner's policy": (
        "quote-root-untrusted",
        lambda world: put(world, policy(world, appraisal=UNMET)),
    ),
    "8 another recipe": ("recipe-changed", lambda _world: None),
    "10 revoked": ("approval-revoked", lambda world: [world.revoke(owner) for owner in (A, B)]),
}
"""What refuses a release, in the order of spec/key-release.md §4.2, and its code."""
PAIRS = [(step, other) for at, step in enumerate(STEPS) for other in [*STEPS][at + 1 :]]


@pytest.mark.claim("C593")
@pytest.mark.parametrize(("first", "later"), PAIRS)
def test_between_checks_7_and_8_the_first_of_the_specification_is_told(
    world: ReleaseWorld, first: str, later: str
) -> None:
    attested, changed = world.attest(), {}
    for name in (later, first):  # a decision is recorded before the consortium ends
        if name == "8 another recipe":
            changed["recipe_hash"] = "0" * 64
        STEPS[name][1](world)
    with pytest.raises(SealtrainError) as caught:
        world.obtain(attested=attested, **changed)
    assert caught.value.code == STEPS[first][0]
    world.assert_no_key_left()
