"""What owners and guests hand in is verified, recorded once, and proved to be in the ledger."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from manifest_world import NOW as FINISHED_AT
from manifest_world import RELEASED, RUN_ID, make_world
from release_world import ROOT, ReleaseWorld, document_of, release_world
from world import identity, signed_dataset

from sealtrain.base.canonical import canonical_json
from sealtrain.base.clock import from_rfc3339, to_rfc3339
from sealtrain.base.secret import Secret
from sealtrain.broker.config import BrokerLimits
from sealtrain.broker.service.keyring import Keyring
from sealtrain.consortium.approvals import DatasetPin
from sealtrain.consortium.datasets import verify_dataset
from sealtrain.consortium.errors import ApprovalRevoked, DatasetMismatch
from sealtrain.consortium.receipts import RunDataset
from sealtrain.errors import LimitExceeded, Refused, RunMismatch, SignatureInvalid
from sealtrain.ledger.ledger import LedgerProof, verify_proof
from sealtrain.manifest.errors import ManifestMalformed
from sealtrain.release.messages import Accepted, ledger_origin
from sealtrain.sealing.description import ShardInfo
from sealtrain.signing import dsse


def proved(world: ReleaseWorld, accepted: Accepted) -> dict[str, object]:
    return verify_proof(
        LedgerProof.from_dict(accepted.proof),
        world.keyring.signer.public,
        origin=ledger_origin(world.consortium.consortium_id),
    )


def test_an_approval_is_in_the_ledger_with_its_envelope(world: ReleaseWorld) -> None:
    entry = proved(world, world.approve("hospital-c"))
    assert entry["kind"] == "approval"
    body = entry["body"]
    assert isinstance(body, dict)
    assert (body["owner"], body["recipe_hash"]) == ("hospital-c", world.locked.recipe_hash)
    assert body["envelope"]["signatures"]


def test_a_revocation_is_in_the_ledger(world: ReleaseWorld) -> None:
    assert proved(world, world.revoke("hospital-c"))["kind"] == "revocation"
    answer = world.broker.registry.tally(world.target)
    assert answer.tally["revoked_by"] == ["hospital-c"]
    assert len(answer.decisions) == 3


def test_the_same_decision_again_changes_nothing(world: ReleaseWorld) -> None:
    envelope = world.decision("hospital-c", datasets=(), not_after=world.clock() + 60)
    first = world.submit(envelope)
    size = world.ledger.size
    again = world.submit(envelope)
    assert (first.index, first.digest, size) == (again.index, again.digest, world.ledger.size)


def test_a_tally_shows_only_decisions_on_its_target(world: ReleaseWorld) -> None:
    other = world.target.__class__(**world.target.to_dict() | {"recipe_hash": "ab" * 32})
    answer = world.broker.registry.tally(other)
    assert answer.decisions == ()
    assert answer.tally["elsewhere"]["recipe_hash"] == world.locked.recipe_hash
    assert answer.tally["sealed"] is True


def test_an_envelope_of_another_kind_is_no_decision(world: ReleaseWorld) -> None:
    dataset = world.sealed["hospital-a"].envelope
    with pytest.raises(SignatureInvalid):
        world.broker.registry.hand_in("approval", document_of(dataset))
    assert world.refusals()[-1]["action"] == "approval"


def test_decisions_are_bounded_and_nobody_uses_up_anothers_share(tmp_path: Path) -> None:
    limits = BrokerLimits(decisions=12)  # of three owners: two approvals, two revocations each
    with release_world(tmp_path, limits=limits) as world:
        for _ in range(2):
            world.approve("hospital-c")
        with pytest.raises(LimitExceeded) as caught:
            world.approve("hospital-c")
        assert caught.value.owner == "hospital-c"
        assert world.obtain().keys
        world.approve("hospital-a")
        assert world.revoke("hospital-c").index  # who approved too often can still stop
        with pytest.raises(ApprovalRevoked):
            world.obtain()


def test_a_successor_manifest_takes_its_place(world: ReleaseWorld) -> None:
    """Appended shards: a new root under the same id, naming the manifest before."""
    before = world.sealed["hospital-a"]
    envelope = signed_dataset(
        world.locked,
        "hospital-a",
        sealed_at=world.clock(),
        dataset_id=before.dataset_id,
        root="cd" * 32,
        shards=(ShardInfo(name="shard-00000.sealed", size=9, root="11" * 32),) * 2,
        records=200,
        previous=before.envelope.digest,
    )
    accepted = world.broker.registry.hand_in("dataset", document_of(envelope))
    assert proved(world, accepted)["kind"] == "dataset"
    assert verify_dataset(envelope, world.consortium).root == "cd" * 32
    pin = DatasetPin(dataset_id=before.dataset_id, root="cd" * 32)
    world.approve("hospital-a", datasets=[pin])
    grown = before.asked_with(root="cd" * 32)
    assert world.obtain(datasets=[grown]).keys[before.dataset_id] == before.key
    with pytest.raises(Refused):
        world.obtain(datasets=[before.asked])


@pytest.fixture
def manifest(world: ReleaseWorld, tmp_path: Path) -> bytes:
    """A genuine manifest of a run whose keys this broker released."""
    folder = tmp_path / "manifest"
    folder.mkdir()
    lenient = {"own_data_consent": False}
    made = make_world(folder, rules=lenient, brokers=world.locked.lock.brokers)
    assert made.consortium.consortium_id == world.consortium.consortium_id
    with world.store.transaction() as transaction:
        data = [
            RunDataset(identity(key.partition("/")[0]).public.owner_id, pin.dataset_id, pin.root)
            for key, pin in made.pins.items()
        ]
        ids = made.target.to_dict()
        transaction.begin_run(RUN_ID, **ids, data=data, now=RELEASED)
    releases = made.record(made.receipt(), key=Keyring(Secret(ROOT)).signer)
    world.clock.now = FINISHED_AT
    return made.manifest(lambda document: document.update(releases=releases))


def test_a_manifest_that_verifies_is_recorded_once(world: ReleaseWorld, manifest: bytes) -> None:
    accepted = world.broker.registry.submit_manifest(manifest, RUN_ID)
    entry = proved(world, accepted)
    assert entry["kind"] == "manifest"
    assert entry["body"]["manifest_digest"] == accepted.digest
    assert entry["body"]["run_id"] == RUN_ID
    size = world.ledger.size
    assert world.broker.registry.submit_manifest(manifest, RUN_ID).index == accepted.index
    assert world.ledger.size == size


@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
def test_an_altered_manifest_is_refused(world: ReleaseWorld, manifest: bytes, place: float) -> None:
    altered = bytearray(manifest)
    altered[int(place * len(altered))] ^= 1
    with pytest.raises(Refused):
        world.broker.registry.submit_manifest(bytes(altered), RUN_ID)
    assert world.refusals()[-1]["action"] == "manifest"
    assert "manifest" not in world.kinds()


def test_a_manifest_of_a_run_nobody_knows(tmp_path: Path, manifest: bytes) -> None:
    with release_world(tmp_path) as other, pytest.raises(RunMismatch):
        other.broker.registry.submit_manifest(manifest, RUN_ID)


def test_bytes_that_are_no_manifest(world: ReleaseWorld) -> None:
    with pytest.raises(ManifestMalformed):
        world.broker.registry.submit_manifest(os.urandom(64), RUN_ID)
    assert world.refusals()[-1]["code"] == "manifest-malformed"


def test_manifests_of_one_run_are_bounded(
    world: ReleaseWorld, manifest: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world.store.transaction() as transaction:
        for number in range(16):
            transaction.add_manifest(f"{number:064x}", RUN_ID, ledger_index=0)
    with pytest.raises(LimitExceeded):
        world.broker.registry.submit_manifest(manifest, RUN_ID)


def test_a_dataset_may_be_sealed_for_two_recipes(world: ReleaseWorld) -> None:
    other = world.lock(lambda recipe: recipe["trainer"].update(max_steps=301))
    first = world.sealed["hospital-a"]
    second = world.seal("hospital-a", locked=other, dataset_id=first.dataset_id, root=first.root)
    world.register(second)
    assert world.obtain(datasets=[first.asked]).keys[first.dataset_id] == first.key


@pytest.mark.parametrize(
    ("root", "sealed_at", "taken"),
    [(None, 0, True), (None, 60, True), (None, -1, False), ("cd" * 32, 60, False)],
    ids=["as old", "later", "older", "other ciphertext"],
)
def test_a_broker_that_missed_a_manifest_takes_the_next_of_the_same_ciphertext(
    world: ReleaseWorld, root: str | None, sealed_at: int, taken: bool
) -> None:
    """It was away when the one in between was registered elsewhere."""
    before = world.sealed["hospital-a"]
    registered = verify_dataset(before.envelope, world.consortium)
    at = from_rfc3339(registered.sealed_at) + sealed_at
    later = {
        **registered.to_dict(),
        "root": root or registered.root,
        "sealed_at": to_rfc3339(at),
        "previous": "77" * 32,
    }
    signer = identity("hospital-a").signer
    envelope = dsse.sign(canonical_json(later), before.envelope.payload_type, signer)
    if taken:
        world.broker.registry.hand_in("dataset", document_of(envelope))
        assert world.obtain(datasets=[before.asked]).keys
    else:
        with pytest.raises(DatasetMismatch):
            world.broker.registry.hand_in("dataset", document_of(envelope))
