"""Check 12 asks for as many owners as the lock's actions take, and for those of its data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from manifest_world import NOW, OWNERS, START, World, make_world

from sealtrain.errors import ApprovalRevoked, ApprovalsMissing, Refused
from sealtrain.manifest.report import render
from sealtrain.manifest.verify import examine, verify_manifest
from sealtrain.records.needs import Needs

pytestmark = pytest.mark.claim("C45")

C = OWNERS[2]


def refusal(world: World, change: Callable[[dict[str, Any]], None] | None = None) -> Refused:
    told = examine(world.manifest(change), world.trust(), artefacts=None, now=NOW)
    assert [one.name for one in told.checks if one.outcome == "failed"] == ["approvals"]
    assert isinstance(told.refusal, Refused)
    return told.refusal


def approved_by_all(world: World) -> Callable[[dict[str, Any]], None]:
    world.releases = world.record(world.receipt(approved_by=OWNERS))

    def change(facts: dict[str, Any]) -> None:
        facts["approvals"].append(world.approval(C).to_dict())
        facts["releases"] = world.releases

    return change


@pytest.mark.parametrize("rules", [{"export_model": 3}, {"own_data_consent": True}], ids=str)
def test_a_run_with_too_little_consent_is_refused(tmp_path: Path, rules: dict[str, Any]) -> None:
    world = make_world(tmp_path, rules=rules)
    assert isinstance(refusal(world), ApprovalsMissing)
    verified = verify_manifest(
        world.manifest(approved_by_all(world)), world.trust(), artefacts=None, now=NOW
    )
    told = next(one.detail for one in verified.checks if one.name == "approvals")
    assert told.startswith("3 of 3 owners approved")


def test_the_report_says_which_action_asked_for_so_many(tmp_path: Path) -> None:
    world = make_world(tmp_path, rules={"export_model": 3})
    told = examine(world.manifest(approved_by_all(world)), world.trust(), artefacts=None, now=NOW)
    assert "3 were needed for export_model" in render(told)


def test_an_approval_that_states_other_needs_does_not_count(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    less = Needs(actions=("approve",), owners=OWNERS)

    def change(facts: dict[str, Any]) -> None:
        facts["approvals"][1] = world.approval(OWNERS[1], needs=less).to_dict()

    assert isinstance(refusal(world, change), ApprovalsMissing)


def test_a_revocation_by_an_owner_of_the_data_before_the_release_is_refused(
    tmp_path: Path,
) -> None:
    world = make_world(tmp_path, rules={"own_data_consent": True, "revoke": 3})
    consent = approved_by_all(world)

    def change(facts: dict[str, Any]) -> None:
        consent(facts)
        facts["approvals"].append(world.revocation(C, signed_at=START - 60).to_dict())

    assert isinstance(refusal(world, change), ApprovalRevoked)
