"""Data that its owner took back is given to nobody, renewed for nobody and never comes back."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest
from release_world import ReleaseWorld, audited, document_of, renewed
from world import OWNERS, identity

from sealtrain.consortium.errors import ApprovalUnknown, DatasetMismatch
from sealtrain.consortium.owner_document import sign_owned
from sealtrain.consortium.withdrawals import PAYLOAD_TYPE, Withdrawal
from sealtrain.errors import RunMismatch, SealtrainError, SignatureInvalid
from sealtrain.ledger.uses import Uses
from sealtrain.release.errors import DatasetWithdrawn
from sealtrain.release.messages import Accepted
from sealtrain.signing import dsse
from sealtrain.signing.dsse import Envelope
from sealtrain.signing.errors import StatementInvalid

pytestmark = pytest.mark.claim("C47")

A, B, C = OWNERS


def statement(world: ReleaseWorld, owner: str, *datasets: str, **changed: str) -> Envelope:
    withdrawal = Withdrawal.of(
        datasets,
        consortium_id=changed.get("consortium_id", world.consortium.consortium_id),
        owner=identity(changed.get("named", owner)).public,
        signed_at=world.clock(),
    )
    return sign_owned(withdrawal, identity(owner).signer)


def handed_in(world: ReleaseWorld, envelope: Envelope) -> Accepted:
    return world.broker.registry.hand_in(Withdrawal.entry_kind, document_of(envelope))


def withdraw(world: ReleaseWorld, owner: str) -> Accepted:
    return handed_in(world, statement(world, owner, world.sealed[owner].dataset_id))


def uses(world: ReleaseWorld, *datasets: str) -> list[dict[str, object]]:
    found = Uses(datasets)
    for index, entry in enumerate(world.ledger.entries()):
        found.entry(index, entry)
    return [document.to_dict() for document in found.list_uses()]


def refused(world: ReleaseWorld, error: type[SealtrainError], envelope: Envelope) -> None:
    with pytest.raises(error):
        handed_in(world, envelope)
    assert world.refusals()[-1]["action"] == "withdrawal"
    assert world.obtain().keys


def test_no_key_of_it_is_released_again(world: ReleaseWorld) -> None:
    withdraw(world, C)
    with pytest.raises(DatasetWithdrawn) as caught:
        world.obtain()
    assert (caught.value.owner, caught.value.exit_code) == (C, 3)
    assert world.refusals()[-1]["code"] == "dataset-withdrawn"
    world.assert_no_key_left()
    rest = [world.sealed[owner].asked for owner in (A, B)]
    assert len(world.obtain(datasets=rest).keys) == 2


def test_a_run_that_has_it_is_not_renewed(world: ReleaseWorld) -> None:
    grant = renewed(world, world.obtain())
    withdraw(world, C)
    with pytest.raises(DatasetWithdrawn, match=C):
        renewed(world, grant)
    assert audited(world).holds


def test_a_run_that_had_it_does_not_go_on_without_it(world: ReleaseWorld) -> None:
    """Its checkpoints were trained on it: leaving it out of the request makes nothing undone."""
    grant = world.obtain()
    withdraw(world, C)
    with pytest.raises(DatasetWithdrawn):
        world.obtain(run_id=grant.run_id, resume=True)
    with pytest.raises(RunMismatch):
        world.obtain(
            run_id=grant.run_id,
            resume=True,
            datasets=[world.sealed[owner].asked for owner in (A, B)],
        )


def test_a_run_without_it_goes_on(world: ReleaseWorld) -> None:
    grant = world.obtain(datasets=[world.sealed[owner].asked for owner in (A, B)])
    withdraw(world, C)
    assert renewed(world, grant).lease_ends == grant.lease_ends


def test_registering_it_again_is_refused_also_for_another_recipe(world: ReleaseWorld) -> None:
    withdraw(world, C)
    other = world.lock(lambda recipe: recipe.update(name="another"))
    again = world.seal(C, locked=other, dataset_id=world.sealed[C].dataset_id)
    with pytest.raises(DatasetWithdrawn):
        world.register(again)
    assert audited(world).holds


def test_of_simultaneous_releases_none_comes_after_the_withdrawal(world: ReleaseWorld) -> None:
    grant = world.obtain()
    together = threading.Barrier(5)
    outcomes: list[str] = []

    def insist(act: Callable[[], object], word: str) -> None:
        together.wait(20)
        try:
            act()
            outcomes.append(word)
        except DatasetWithdrawn:
            outcomes.append("withdrawn")

    threads = [
        threading.Thread(target=insist, args=(act, word))
        for act, word in (
            (world.obtain, "release"),
            (world.obtain, "release"),
            (lambda: renewed(world, grant), "renewal"),
            (lambda: renewed(world, grant), "renewal"),
        )
    ]
    for thread in threads:
        thread.start()
    together.wait(20)
    withdraw(world, C)
    for thread in threads:
        thread.join(60)
    kinds = world.kinds()
    after = kinds[kinds.index("withdrawal") :]
    assert len(outcomes) == 4
    assert {"release", "renewal"}.isdisjoint(after)
    assert kinds.count("release") == 1 + outcomes.count("release")
    assert audited(world).holds


def test_it_can_be_withdrawn_before_anybody_registered_it(world: ReleaseWorld) -> None:
    fresh = world.seal(C)
    handed_in(world, statement(world, C, fresh.dataset_id))
    with pytest.raises(DatasetWithdrawn):
        world.register(fresh)


def test_nobody_withdraws_anothers_data(world: ReleaseWorld) -> None:
    theirs = world.sealed[C].dataset_id
    refused(world, DatasetMismatch, statement(world, A, theirs))
    refused(world, DatasetMismatch, statement(world, A, theirs, named=C))
    own = world.sealed[A].dataset_id
    refused(world, DatasetMismatch, statement(world, A, own, theirs))


def test_a_stranger_or_another_consortium_withdraws_nothing(world: ReleaseWorld) -> None:
    theirs = world.sealed[C].dataset_id
    refused(world, ApprovalUnknown, statement(world, "stranger", theirs, named=C))
    refused(world, ApprovalUnknown, statement(world, C, theirs, consortium_id="ab" * 32))
    genuine = statement(world, C, theirs)
    forged = dsse.Signature(keyid=identity(C).public.key_id, sig=os.urandom(64))
    refused(
        world,
        SignatureInvalid,
        Envelope(payload=genuine.payload, payload_type=PAYLOAD_TYPE, signatures=(forged,)),
    )
    twice = dsse.sign(genuine.payload, PAYLOAD_TYPE, identity(C).signer, identity(A).signer)
    refused(world, SignatureInvalid, twice)
    loose = dsse.sign(genuine.payload + b" ", PAYLOAD_TYPE, identity(C).signer)
    refused(world, StatementInvalid, loose)


def test_an_approval_is_no_withdrawal(world: ReleaseWorld) -> None:
    """One key signs both; the payload's type keeps them apart."""
    genuine = statement(world, C, world.sealed[C].dataset_id)
    other = dsse.sign(
        genuine.payload, "application/vnd.sealtrain.decision+json", identity(C).signer
    )
    refused(world, SignatureInvalid, other)


def test_handing_it_in_again_changes_nothing(world: ReleaseWorld) -> None:
    envelope = statement(world, C, world.sealed[C].dataset_id)
    first = handed_in(world, envelope)
    size = world.ledger.size
    assert handed_in(world, envelope).index == first.index
    assert world.ledger.size == size


def test_it_is_told_what_used_the_data(world: ReleaseWorld) -> None:
    grant = world.obtain()
    renewed(world, grant)
    spared = world.obtain(datasets=[world.sealed[A].asked])
    outputs = [{"name": "model/weights.sealed", "sha256": "12" * 32}]
    world.ledger.append(
        "manifest", {"run_id": grant.run_id, "manifest_digest": "ab" * 32, "outputs": outputs}
    )
    withdraw(world, C)
    (told,) = uses(world, world.sealed[C].dataset_id)
    assert (told["owner"], told["name"]) == (C, "biopsies")
    assert told["withdrawn_at"]
    (run,) = told["runs"]  # type: ignore[misc]
    assert (run["run_id"], run["renewals"]) == (grant.run_id, 1)
    assert [manifest["outputs"] for manifest in run["manifests"]] == [outputs]
    (other,) = uses(world, world.sealed[A].dataset_id)
    assert [run["run_id"] for run in other["runs"]] == [grant.run_id, spared.run_id]  # type: ignore[attr-defined]


@pytest.mark.parametrize("what", ["release", "renewal", "dataset"])
def test_a_broker_that_ignores_a_withdrawal_is_found_by_an_audit(
    world: ReleaseWorld, what: str
) -> None:
    grant = renewed(world, world.obtain())
    withdraw(world, C)
    body = next(e["body"] for e in world.ledger.entries() if e["kind"] == what)
    if what == "dataset":
        envelope = world.seal(C, dataset_id=world.sealed[C].dataset_id).envelope
        body = next(
            e["body"]
            for e in world.ledger.entries()
            if e["kind"] == what and e["body"]["owner"] == C
        )
        body = body | {"envelope": envelope.to_dict(), "digest": envelope.digest}
    elif what == "release":
        body = body | {"run_id": "ab" * 16, "lease_id": "cd" * 32, "receipt_digest": "ef" * 32}
    else:
        body = body | {"run_id": grant.run_id, "receipt_digest": "ef" * 32}
    assert audited(world).holds
    world.ledger.append(what, body)
    problems = [finding.problem for finding in audited(world).findings]
    assert any(f"although {C} had withdrawn it" in problem for problem in problems), problems
