"""No key leaves with fewer owners than an action takes, nor against the owner of the data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from release_world import ReleaseWorld, audited, release_world, renewed
from world import DAY

from sealtrain.consortium.errors import ApprovalExpired, ApprovalRevoked, ApprovalsMissing
from sealtrain.errors import RecipeChanged, SealtrainError
from sealtrain.signing.needs import Needs

pytestmark = pytest.mark.claim("C45")

A, B, C = "hospital-a", "hospital-b", "hospital-c"
OWN_DATA = {"own_data_consent": True}


@contextmanager
def world_of(
    folder: Path, rules: dict[str, Any], *approved_by: str, logs: str = "none"
) -> Iterator[ReleaseWorld]:
    """A world whose recipe lets so much out of its log."""

    def change(recipe: dict[str, Any]) -> None:
        recipe["release_policy"]["logs"] = logs

    with release_world(folder, approved_by=(), rules=rules) as made:
        if logs != "none":
            made.locked = made.lock(change)
            for owner in (A, B, C):
                made.sealed[owner] = made.seal(owner)
                made.register(made.sealed[owner])
        for owner in approved_by:
            made.approve(owner)
        yield made


def refused(world: ReleaseWorld, error: type[SealtrainError], **changed: Any) -> SealtrainError:
    with pytest.raises(error) as caught:
        world.obtain(**changed)
    assert world.refusals()[-1]["code"] == error.code
    world.assert_no_key_left()
    return caught.value


def test_a_model_leaves_only_with_the_owners_that_takes(tmp_path: Path) -> None:
    with world_of(tmp_path, {"approve": 1, "export_model": 3}, A, B) as world:
        error = refused(world, ApprovalsMissing)
        assert str(error.expected).startswith("3 of 3 owners, because ")
        assert error.owner == C
        world.approve(C)
        assert world.obtain().keys
        assert audited(world).holds


def test_more_than_the_strictest_log_takes_its_own_threshold(tmp_path: Path) -> None:
    rules = {"approve": 1, "export_model": 1, "raise_logging": 2}
    with world_of(tmp_path, rules, A, logs="error-summary") as world:
        error = refused(world, ApprovalsMissing)
        assert str(error.expected).startswith("2 of 3 owners, because ")
        world.approve(B)
        assert world.obtain().keys


def test_the_strictest_log_does_not_take_it(tmp_path: Path) -> None:
    rules = {"approve": 1, "export_model": 1, "raise_logging": 3}
    with world_of(tmp_path, rules, A) as world:
        assert world.obtain().keys


def test_an_approval_that_understates_what_the_recipe_needs_does_not_count(tmp_path: Path) -> None:
    """Two owners and their tampered clients call a recipe harmless that lets the model out."""
    with world_of(tmp_path, {"approve": 1, "export_model": 2}, A) as world:
        for needs in (
            Needs(actions=("approve",), owners=world.needs.owners),
            Needs(actions=world.needs.actions, owners=()),
        ):
            world.approve(B, needs=needs)
            error = refused(world, ApprovalsMissing)
            assert B in str(error.hint)


def test_data_is_not_used_without_its_owner_whatever_the_majority(tmp_path: Path) -> None:
    with world_of(tmp_path, OWN_DATA, A, B) as world:
        error = refused(world, ApprovalsMissing)
        assert error.owner == C
        world.approve(C)
        assert world.obtain().keys


def test_asking_for_the_others_data_only_does_not_get_around_the_owner(tmp_path: Path) -> None:
    """Consent is to the recipe: a guest that leaves a dataset out runs the recipe all the same."""
    with world_of(tmp_path, OWN_DATA, A, B) as world:
        refused(world, ApprovalsMissing, datasets=[world.sealed[owner].asked for owner in (A, B)])


def test_the_owner_of_data_stops_it_alone_at_the_next_renewal(tmp_path: Path) -> None:
    with world_of(tmp_path, OWN_DATA | {"revoke": 3}, A, B, C) as world:
        grant = world.obtain()
        renewed(world, grant)
        world.revoke(C)
        with pytest.raises(ApprovalRevoked) as caught:
            renewed(world, grant)
        assert caught.value.expected == "none by an owner of data it reads"
        refused(world, ApprovalRevoked)
        refused(world, ApprovalRevoked, run_id=grant.run_id, resume=True)
        world.approve(C)
        refused(world, ApprovalRevoked)


def test_without_that_rule_one_of_three_does_not_stop_it(tmp_path: Path) -> None:
    with world_of(tmp_path, {"revoke": 3}, A, B, C) as world:
        grant = world.obtain()
        world.revoke(C)
        assert renewed(world, grant).lease_ends == grant.lease_ends


def test_a_lease_ends_with_the_approval_of_the_datas_owner(tmp_path: Path) -> None:
    with world_of(tmp_path, OWN_DATA, A, B) as world:
        world.approve(C, not_after=world.clock() + 600)
        grant = world.obtain()
        assert grant.lease_ends == world.clock() + 601
        world.clock.advance(601)
        with pytest.raises(ApprovalExpired, match=C):
            renewed(world, grant)


def test_consent_is_asked_for_again_at_every_renewal(tmp_path: Path) -> None:
    with world_of(tmp_path, {"approve": 1, "export_model": 2}, A) as world:
        world.approve(B, not_after=world.clock() + 2 * 3600)
        grant = world.obtain()
        world.clock.advance(3500)
        grant = renewed(world, grant)
        world.clock.advance(3500)
        grant = renewed(world, grant)
        assert grant.lease_ends == world.clock() - 7000 + 7201
        world.clock.advance(300)
        with pytest.raises(ApprovalExpired):
            renewed(world, grant)


@pytest.mark.parametrize("stated", ["what it took", "nothing to consent to"])
def test_a_broker_that_releases_without_consent_is_found_by_an_audit(
    tmp_path: Path, stated: str
) -> None:
    with world_of(tmp_path, OWN_DATA, A, B) as world:
        needs = world.needs.to_dict()
        if stated == "nothing to consent to":
            needs["owners"] = []
        world.ledger.append(
            "release",
            {
                "run_id": "ab" * 16,
                **world.target.to_dict(),
                "datasets": [world.sealed[C].of_run._asdict()],
                "elsewhere": [],
                "submission_id": None,
                "lease_id": "cd" * 32,
                "not_after": "2026-09-21T15:33:20Z",
                "evidence_digest": "01" * 32,
                "receipt_digest": "02" * 32,
                "checkpoint": None,
                "simulated": True,
                "needs": needs,
            },
        )
        problems = [finding.problem for finding in audited(world).findings]
        assert any(
            "keys were granted with 2 of 2 approvals (missing: hospital-c)" in problem
            if stated == "what it took"
            else "keys were granted with 0 of 2 approvals" in problem
            for problem in problems
        ), problems


def test_an_approval_of_the_recipe_for_other_data_is_of_another_recipe(tmp_path: Path) -> None:
    """What counts is the measured lock: needs cannot be carried over to another recipe."""
    with world_of(tmp_path, OWN_DATA, A, B, C) as world:
        other = world.lock(lambda recipe: recipe["datasets"].pop())
        refused(
            world,
            RecipeChanged,
            locked=other,
            datasets=[world.seal(A, locked=other).asked],
        )


def test_an_approval_in_time_counts_to_its_last_second(tmp_path: Path) -> None:
    with world_of(tmp_path, OWN_DATA, A, B) as world:
        world.approve(C, not_after=world.clock() + DAY)
        world.clock.advance(DAY)
        assert world.obtain().keys
        world.clock.advance(1)
        refused(world, ApprovalExpired)
