"""A standing approval lets no more runs begin than its owner said, within the owner's budget."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from release_world import ReleaseWorld, audited, document_of, renewed
from series_world import standing
from world import DAY, OWNERS, identity

from sealtrain.base.canonical import canonical_json
from sealtrain.broker.store.memory import Store
from sealtrain.consortium.decisions import PAYLOAD_TYPE, Decision
from sealtrain.consortium.errors import ApprovalExpired, ApprovalRevoked, ApprovalSpent, BudgetSpent
from sealtrain.errors import LedgerInconsistent, RunMismatch
from sealtrain.ledger.ledger import Ledger
from sealtrain.release.messages import ledger_origin
from sealtrain.signing import dsse
from sealtrain.signing.errors import StatementInvalid

A, B, C = OWNERS


def release_bodies(world: ReleaseWorld) -> list[dict[str, Any]]:
    return [dict(entry["body"]) for entry in world.ledger.entries() if entry["kind"] == "release"]


def findings(world: ReleaseWorld) -> list[str]:
    return [finding.check for finding in audited(world).findings]


def private(recipe: dict[str, Any]) -> None:
    recipe["privacy"] = {"dp": "sgd", "target_epsilon": 2.0, "delta": 1e-5, "budgets": {}}
    recipe["release_policy"]["metrics"] = ["accuracy"]


def with_privacy(world: ReleaseWorld, **terms: Any) -> None:
    """A private recipe, which A approves standing and B as before."""
    world.locked = world.lock(private)
    for owner in OWNERS:
        world.sealed[owner] = world.seal(owner)
        world.register(world.sealed[owner])
    world.approve(A, standing=standing(**terms))
    world.approve(B)


@pytest.mark.claim("C185")
def test_the_run_after_the_last_allowed_gets_no_key(world: ReleaseWorld) -> None:
    approval = world.approve(A, standing=standing(2))
    for run in (1, 2):
        world.obtain()
        (use,) = release_bodies(world)[-1]["standing"]
        assert use == {"owner": A, "approval": approval.digest, "run": run}
    with pytest.raises(ApprovalSpent) as caught:
        world.obtain()
    assert (caught.value.owner, caught.value.exit_code) == (A, 3)
    assert world.refusals()[-1]["code"] == "approval-spent"
    world.assert_no_key_left()
    assert findings(world) == []


@pytest.mark.claim("C185")
def test_a_resume_is_no_run_and_goes_on_when_the_approval_is_spent(world: ReleaseWorld) -> None:
    world.approve(A, standing=standing(1))
    run_id = os.urandom(16).hex()
    grant = world.obtain(run_id=run_id)
    renewed(world, grant)
    for _ in range(3):
        world.obtain(run_id=run_id, resume=True)
    assert [body.get("standing") for body in release_bodies(world)][1:] == [None] * 3
    with pytest.raises(ApprovalSpent):
        world.obtain()
    assert findings(world) == []


@pytest.mark.claim("C185")
def test_a_resume_of_a_run_that_never_began_begins_none(world: ReleaseWorld) -> None:
    world.approve(A, standing=standing(1))
    world.obtain()
    with pytest.raises(RunMismatch):
        world.obtain(resume=True)


@pytest.mark.claim("C185")
def test_two_guests_at_once_do_not_both_get_the_last_run(world: ReleaseWorld) -> None:
    world.approve(A, standing=standing(3))
    world.obtain()
    assert sorted(world.outcomes_at_once(5)) == ["approval-spent"] * 3 + ["released"] * 2
    assert findings(world) == []


@pytest.mark.claim("C185")
def test_a_spent_approval_counts_for_nobody_else(world: ReleaseWorld) -> None:
    world.approve(A, standing=standing(1))
    world.obtain()
    with pytest.raises(ApprovalSpent):
        world.obtain()
    world.approve(C)  # B and C suffice: the consortium asks for no consent on own data
    world.obtain()
    assert release_bodies(world)[-1].get("standing") is None
    assert findings(world) == []


@pytest.mark.claim("C185")
def test_runs_before_an_approval_and_of_other_recipes_do_not_count(world: ReleaseWorld) -> None:
    world.obtain()
    world.obtain()
    world.approve(A, standing=standing(1))
    world.obtain()
    with pytest.raises(ApprovalSpent):
        world.obtain()
    world.clock.advance(60)
    world.approve(A, standing=standing(1))
    world.obtain()
    assert findings(world) == []


@pytest.mark.claim("C185")
@pytest.mark.claim("C186")
def test_a_replayed_approval_revives_neither_runs_nor_what_was_revoked(
    world: ReleaseWorld,
) -> None:
    signed = world.decision(A, standing=standing(1))
    first = world.submit(signed)
    world.obtain()
    world.clock.advance(60)
    assert world.submit(signed).index == first.index  # the same decision, not another one
    with pytest.raises(ApprovalSpent):
        world.obtain()
    world.revoke(A)
    assert world.submit(signed).index == first.index
    with pytest.raises(ApprovalRevoked):
        world.obtain()
    assert findings(world) == []


@pytest.mark.claim("C185")
@pytest.mark.claim("C97")
def test_a_clock_that_is_set_back_gives_no_run_back(world: ReleaseWorld) -> None:
    world.approve(A, standing=standing(1), not_after=world.clock() + 3 * DAY)
    world.clock.advance(DAY)
    world.obtain()
    world.clock.advance(-DAY)
    with pytest.raises(ApprovalSpent):
        world.obtain()
    world.clock.advance(4 * DAY)
    with pytest.raises(ApprovalExpired):
        world.obtain()


@pytest.mark.claim("C185")
def test_a_database_made_anew_from_the_ledger_keeps_the_count(
    world: ReleaseWorld, tmp_path: Path
) -> None:
    world.approve(A, standing=standing(2))
    world.obtain()
    anew = Store(tmp_path / "anew.sqlite")
    try:
        world.restart(store=anew)
        world.obtain()
        with pytest.raises(ApprovalSpent):
            world.obtain()
    finally:
        anew.close()
    assert findings(world) == []


@pytest.mark.claim("C185")
def test_an_audit_finds_a_run_that_a_broker_did_not_count(world: ReleaseWorld) -> None:
    world.approve(A, standing=standing(1))
    world.obtain()
    (database,) = world.folder.glob("state-*/broker.sqlite")
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE runs SET ledger_index = 0")
    world.obtain()
    assert findings(world) == ["release", "release"]


@pytest.mark.claim("C185")
@pytest.mark.parametrize(
    "changed",
    [
        {"run": 2},
        {"approval": "00" * 32},
        {"owner": B},
        {"epsilon": 1.0},
    ],
)
def test_an_audit_finds_an_entry_that_counts_otherwise(
    world: ReleaseWorld, changed: dict[str, Any]
) -> None:
    world.approve(A, standing=standing(9))
    world.obtain()
    (body,) = release_bodies(world)
    forged = body | {
        "run_id": os.urandom(16).hex(),
        "lease_id": "11" * 32,
        "receipt_digest": "22" * 32,
        "standing": [body["standing"][0] | {"run": 2}],
    }
    world.ledger.append("release", forged)
    assert findings(world) == []
    wrong = forged | {
        "run_id": os.urandom(16).hex(),
        "lease_id": "33" * 32,
        "receipt_digest": "44" * 32,
        "standing": [forged["standing"][0] | {"run": 3} | changed],
    }
    world.ledger.append("release", wrong)
    assert set(findings(world)) == {"release"}


@pytest.mark.claim("C186")
def test_a_run_that_would_pass_the_owners_budget_gets_no_key(world: ReleaseWorld) -> None:
    with_privacy(world, runs=9, epsilon=5.0)
    sums = []
    for _ in range(2):
        world.obtain()
        sums.append(release_bodies(world)[-1]["standing"][0]["epsilon"])
    assert sums == [2.0, 4.0]
    with pytest.raises(BudgetSpent) as caught:
        world.obtain()
    assert caught.value.owner == A
    assert world.refusals()[-1]["code"] == "budget-spent"
    world.assert_no_key_left()
    assert findings(world) == []


@pytest.mark.claim("C186")
def test_two_guests_at_once_do_not_both_get_the_rest_of_a_budget(world: ReleaseWorld) -> None:
    with_privacy(world, runs=9, epsilon=5.0)
    world.obtain()
    assert sorted(world.outcomes_at_once(3)) == ["budget-spent"] * 2 + ["released"]


@pytest.mark.claim("C186")
def test_a_run_without_a_finite_epsilon_has_no_place_in_a_budget(world: ReleaseWorld) -> None:
    world.approve(A, standing=standing(3, epsilon=8.0))
    with pytest.raises(BudgetSpent):
        world.obtain()


@pytest.mark.claim("C186")
def test_an_older_ledger_gives_no_budget_back(world: ReleaseWorld, tmp_path: Path) -> None:
    (path,) = world.folder.glob("state-*/ledger.sqlite")
    with_privacy(world, runs=9, epsilon=2.0)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    (tmp_path / "old.sqlite").write_bytes(path.read_bytes())
    world.obtain()
    origin = ledger_origin(world.consortium.consortium_id)
    with Ledger.open(
        tmp_path / "old.sqlite", origin=origin, signer=world.keyring.signer, clock=world.clock
    ) as old:
        object.__setattr__(world.parts, "ledger", old)  # under the running broker
        with pytest.raises(LedgerInconsistent):
            world.obtain()


@pytest.mark.claim("C185")
def test_what_a_broker_says_of_an_approval_is_what_runs_used(world: ReleaseWorld) -> None:
    with_privacy(world, runs=3, epsilon=8.0)
    world.obtain()
    said = world.broker.registry.tally(world.target)
    assert [(approval.owner, approval.runs, approval.epsilon) for approval in said.standing] == [
        (A, 1, 2.0)
    ]


def test_a_broker_of_before_refuses_what_it_would_not_count() -> None:
    """An unknown field is refused: no reader takes a standing approval for an unlimited one."""
    fields = set(Decision.model_fields)
    assert "standing" in fields
    assert Decision.model_config["extra"] == "forbid"


@pytest.mark.parametrize(
    "terms",
    [
        {"runs": 0},
        {"runs": 1_000_001},
        {"runs": True},
        {"runs": 1, "epsilon": 0},
        {"runs": 1, "epsilon": None},
        {"runs": 1, "series": []},
        {"epsilon": 1},
        {"runs": 1, "days": 3},
        None,
    ],
)
def test_a_broker_refuses_terms_of_another_form(world: ReleaseWorld, terms: Any) -> None:

    document = json.loads(world.decision(A).payload) | {"standing": terms}
    envelope = dsse.sign(canonical_json(document), PAYLOAD_TYPE, identity(A).signer)
    with pytest.raises(StatementInvalid):
        world.broker.registry.hand_in("approval", document_of(envelope))


def test_an_approval_without_terms_has_the_bytes_it_had(world: ReleaseWorld) -> None:

    assert "standing" not in json.loads(world.decision(A).payload)
