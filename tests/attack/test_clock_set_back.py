"""A broker's host sets the clock back so that an approval counts again: the ledger shows it."""

from __future__ import annotations

from typing import Any

import pytest
from release_world import ReleaseWorld, renewed
from world import DAY

from sealtrain.base.canonical import canonical_json
from sealtrain.base.clock import from_rfc3339
from sealtrain.consortium.errors import ApprovalExpired
from sealtrain.errors import SealtrainError
from sealtrain.ledger.audit import BACKWARDS_SECONDS, AuditFailure, Auditor

pytestmark = pytest.mark.claim("C97")


def audited(world: ReleaseWorld) -> tuple[AuditFailure, ...]:
    auditor = Auditor(
        world.consortium,
        world.keyring.signer.public,
        origin=world.ledger.origin,
        checkpoints=[world.ledger.checkpoint()],
    )
    for entry in world.ledger.entries():
        auditor.entry(canonical_json(entry))
    return auditor.finish().findings


def test_an_approval_that_ended_is_not_revived_by_an_earlier_clock(world: ReleaseWorld) -> None:
    world.clock.advance(40 * DAY)
    with pytest.raises(ApprovalExpired):
        world.obtain()
    world.clock.advance(-35 * DAY)
    world.obtain()
    step = world.ledger.size - 1
    assert [(finding.index, finding.check) for finding in audited(world)] == [
        (step, "time"),
        (step, "release"),
    ]


def test_every_release_after_it_is_found_and_one_step(world: ReleaseWorld) -> None:
    world.clock.advance(40 * DAY)
    with pytest.raises(ApprovalExpired):
        world.obtain()
    world.clock.advance(-35 * DAY)
    for _ in range(3):
        world.obtain()
        world.clock.advance(600)
    assert [finding.check for finding in audited(world)] == [
        "time",
        "release",
        "release",
        "release",
    ]


def test_sliding_back_a_little_at_a_time_is_found(world: ReleaseWorld) -> None:
    for _ in range(4):
        world.clock.advance(-BACKWARDS_SECONDS // 2)
        world.ledger.append("refusal", {"action": "release", "code": "approvals-missing"})
    assert [finding.check for finding in audited(world)] == ["time"]


def test_after_an_honest_mistake_owners_approve_anew(world: ReleaseWorld) -> None:
    world.obtain()
    world.clock.advance(400 * DAY)
    with pytest.raises(ApprovalExpired):
        world.obtain()
    world.clock.advance(-400 * DAY)
    for owner in ("hospital-a", "hospital-b"):
        world.approve(owner)
    world.obtain()
    assert [finding.check for finding in audited(world)] == ["time"]


@pytest.mark.parametrize("back", [0, 1, BACKWARDS_SECONDS])
def test_writers_that_waited_for_their_turn_are_no_finding(world: ReleaseWorld, back: int) -> None:
    world.obtain()
    world.clock.advance(-back)
    entry: dict[str, Any] = {"action": "release", "code": "approvals-missing"}
    world.ledger.append("refusal", entry)
    assert audited(world) == ()
    world.clock.advance(-1 - BACKWARDS_SECONDS)
    world.ledger.append("refusal", entry)
    assert [finding.check for finding in audited(world)] == ["time"]


def test_a_clock_that_was_far_ahead_keeps_no_run_out_once_it_is_right(world: ReleaseWorld) -> None:
    """Approvals still run then. The lease of a run that began meanwhile is as long as any other."""
    usual = world.obtain()
    world.clock.advance(20 * DAY)
    ahead = world.obtain()
    world.clock.advance(-20 * DAY)
    world.obtain()
    later = renewed(world, ahead)
    lengths = {
        receipt.lease_ends - from_rfc3339(receipt.receipts[-1].receipt.released_at)
        for receipt in (usual, ahead, later)
    }
    assert len(lengths) == 1
    assert [finding.check for finding in audited(world)] == ["time"]


@pytest.mark.parametrize("days", [31, 4000])
def test_a_clock_that_is_far_ahead_gives_no_key_and_takes_no_decision(
    world: ReleaseWorld, days: int
) -> None:
    """Approvals ended by its time; what owners sign meanwhile is too old, or ends before it."""
    signed = world.decision("hospital-a", brokers=world.decided_at)
    world.clock.advance(days * DAY)
    for _ in range(2):
        with pytest.raises(ApprovalExpired):
            world.obtain()
    size = world.ledger.size
    with pytest.raises(SealtrainError):
        world.submit(signed)
    kinds = [entry["kind"] for entry in world.ledger.entries()][size:]
    assert set(kinds) <= {"refusal"}
    world.assert_no_key_left()
    world.clock.advance(-days * DAY)
    for owner in ("hospital-a", "hospital-b"):
        world.approve(owner)
    world.obtain()
