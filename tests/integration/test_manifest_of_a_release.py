"""What a real broker signs and logs is what a manifest's verifier asks for."""

from __future__ import annotations

from pathlib import Path

import pytest
from manifest_world import FINISHED, NOW, RUN_ID, START, World, facts_of, sealed_outputs
from release_world import ReleaseWorld, release_world
from world import signer

from sealtrain.base.clock import to_rfc3339
from sealtrain.client.grant import Grant, renew
from sealtrain.consortium.errors import ApprovalRevoked
from sealtrain.errors import LeaseStale, Refused
from sealtrain.manifest.verify import verify_manifest
from sealtrain.signing.dsse import Envelope

pytestmark = pytest.mark.claim("C26")


def written_down(released: ReleaseWorld, grants: list[Grant], folder: Path) -> World:
    """The manifest world of a run that got its keys from ``released``."""
    decisions = released.broker.registry.tally(released.target).decisions
    world = World(
        consortium=released.consortium,
        locked=released.locked,
        broker=released.keyring.signer,
        guest=released.guest(),
        guest_key=signer("guest"),
        datasets={dataset.owner: dataset.envelope for dataset in released.sealed.values()},
        pins={},
        approvals={
            str(index): Envelope.from_dict(decision.to_dict())
            for index, decision in enumerate(decisions)
        },
        releases=[receipt.to_dict() for grant in grants for receipt in grant.receipts],
        artefacts=folder,
        model=sealed_outputs(folder, released.consortium.consortium_id),
    )
    world.facts = facts_of(world)
    return world


def test_a_run_released_renewed_and_resumed_by_a_broker_verifies(tmp_path: Path) -> None:
    with release_world(tmp_path) as released:
        guest = released.collect(released.guest())
        first = released.obtain(run_id=RUN_ID)
        released.clock.advance(100)
        first = renew(
            released.wire,  # type: ignore[arg-type]  # the client's methods that are used
            released.attest(),
            guest,
            first,
            checkpoint=(1, "aa" * 32),
        )
        released.clock.advance(100)
        second = released.obtain(run_id=RUN_ID, resume=True)
        world = written_down(released, [first, second], tmp_path / "out")
    world.facts["run"]["resumes"] = [
        {
            "at": to_rfc3339(START + 201),
            "counter": second.latest_checkpoint.counter if second.latest_checkpoint else 0,
            "step": 50,
            "checkpoint": "aa" * 32,
        }
    ]
    verified = verify_manifest(world.manifest(), world.trust(), artefacts=world.artefacts, now=NOW)
    assert [release["receipt"] is not None for release in world.facts["releases"]] == [True] * 3
    assert verified.predicate.run.resumes[0].counter == 1


def test_a_run_that_went_on_after_its_lease_is_refused(tmp_path: Path) -> None:
    with release_world(tmp_path, lease_seconds=60) as released:
        world = written_down(released, [released.obtain(run_id=RUN_ID)], tmp_path / "out")
    world.facts["run"]["finished_at"] = to_rfc3339(FINISHED)
    with pytest.raises(LeaseStale):
        verify_manifest(world.manifest(), world.trust(), artefacts=None, now=NOW)


def test_a_later_revocation_is_carried_along_and_an_earlier_one_refuses(tmp_path: Path) -> None:
    with release_world(tmp_path) as released:
        released.clock.advance(50)
        grant = released.obtain(run_id=RUN_ID)
        released.clock.advance(10)
        released.revoke("hospital-c")
        world = written_down(released, [grant], tmp_path / "out")
    verify_manifest(world.manifest(), world.trust(), artefacts=None, now=NOW)
    # A broker that had overlooked an earlier one is contradicted.
    world.facts["approvals"][-1] = world.revocation("hospital-c", signed_at=START).to_dict()
    with pytest.raises(ApprovalRevoked):
        verify_manifest(world.manifest(), world.trust(), artefacts=None, now=NOW)


def test_a_receipt_of_another_broker_does_not_count(tmp_path: Path) -> None:
    with release_world(tmp_path) as released, release_world(tmp_path, root=bytes(32)) as other:
        world = written_down(released, [other.obtain(run_id=RUN_ID)], tmp_path / "out")
    with pytest.raises(Refused):
        verify_manifest(world.manifest(), world.trust(), artefacts=None, now=NOW)
