"""Check 12 asks for as many owners as the lock's actions take, and for those of its data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from manifest_world import NOW, RELEASED, START, World, make_world
from world import OWNERS, digest, identity, signer

from sealtrain.base.clock import to_rfc3339
from sealtrain.consortium.errors import ApprovalRevoked, ApprovalsMissing
from sealtrain.consortium.receipts import Lease, ReleasedDataset
from sealtrain.errors import Refused
from sealtrain.manifest.errors import ClaimContradicted
from sealtrain.manifest.exports.model_card import model_card
from sealtrain.manifest.exports.model_facts import model_facts_of, plain
from sealtrain.manifest.report import render
from sealtrain.manifest.verify import Report, examine, verify_manifest
from sealtrain.signing.dsse import Envelope
from sealtrain.signing.needs import REASONS, Needs

pytestmark = pytest.mark.claim("C45")

A, B, C = OWNERS
Change = Callable[[dict[str, Any]], None]


def refusal(world: World, change: Change | None = None, *also: str) -> Refused:
    told = examine(world.manifest(change), world.trust(), artefacts=None, now=NOW)
    assert [check.name for check in told.checks if check.outcome == "failed"] == [
        "approvals",
        *also,
    ]
    assert isinstance(told.refusal, Refused)
    return told.refusal


def approved_by(world: World, *names: str) -> Change:
    releases = world.record(world.receipt(approved_by=names))

    def change(facts: dict[str, Any]) -> None:
        facts["approvals"] = [world.approvals[name].to_dict() for name in names]
        facts["releases"] = releases

    return change


@pytest.mark.parametrize(
    "rules",
    [{"export_model": 3, "own_data_consent": False}, {"own_data_consent": True}, {}],
    ids=str,
)
def test_a_run_with_too_little_consent_is_refused(tmp_path: Path, rules: dict[str, Any]) -> None:
    world = make_world(tmp_path, rules=rules)
    assert isinstance(refusal(world, approved_by(world, A, B)), ApprovalsMissing)
    verified = verify_manifest(world.manifest(), world.trust(), artefacts=None, now=NOW)
    told = next(check.detail for check in verified.checks if check.name == "approvals")
    assert told.startswith("3 of 3 owners approved")


def test_the_report_says_which_action_asked_for_so_many(tmp_path: Path) -> None:
    world = make_world(tmp_path, rules={"export_model": 3})
    told = examine(world.manifest(), world.trust(), artefacts=None, now=NOW)
    assert f"3 had to, because {REASONS['export_model']}" in render(told)


def test_an_approval_that_states_other_needs_does_not_count(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    less = Needs(actions=("approve",), owners=OWNERS)

    def change(facts: dict[str, Any]) -> None:
        facts["approvals"][1] = world.approval(B, needs=less).to_dict()

    assert isinstance(refusal(world, change), ApprovalsMissing)


def test_a_revocation_by_an_owner_of_the_data_before_the_release_is_refused(
    tmp_path: Path,
) -> None:
    world = make_world(tmp_path, rules={"revoke": 3})

    def change(facts: dict[str, Any]) -> None:
        facts["approvals"].append(world.revocation(C, signed_at=START - 60).to_dict())

    assert isinstance(refusal(world, change), ApprovalRevoked)


# --- Where the consortium does not ask for it ---------------------------------------------------


@pytest.fixture
def careless(tmp_path: Path) -> World:
    """A consortium that lets data be used that its owner did not approve."""
    return make_world(tmp_path, rules={"own_data_consent": False})


def told(world: World, change: Change | None = None, **trust: Any) -> Report:
    found = examine(world.manifest(change), world.trust(**trust), artefacts=None, now=NOW)
    assert found.accepted, found.refusal
    return found


def unasked(world: World, change: Change | None = None, **trust: Any) -> tuple[str, ...] | None:
    return told(world, change, **trust).facts.unasked


@pytest.mark.claim("C113")
def test_an_owner_whose_data_was_used_without_approval_is_named_everywhere(
    careless: World,
) -> None:
    found = told(careless, approved_by(careless, A, B))
    assert found.facts.unasked == (C,)
    assert found.to_dict()["own_data"] == {"consent": False, "used_without_approval": [C]}
    limits = [limit for limit in found.limits if "approval" in limit and C in limit]
    assert len(limits) == 1
    assert limits[0] in found.to_dict()["limits"]
    (check,) = (check for check in found.checks if check.name == "approvals")
    assert C in check.detail
    page = render(found)
    assert page.count(f"Data of {C} was used without approval.") >= 3
    assert plain(C) in model_card(model_facts_of(found)).decode().partition("## Limits")[2]


@pytest.mark.claim("C113")
def test_where_all_owners_approved_the_rule_is_still_shown(careless: World) -> None:
    found = told(careless)
    assert found.facts.unasked == ()
    assert found.to_dict()["own_data"] == {"consent": False, "used_without_approval": []}
    assert any("without that owner's approval" in limit for limit in found.limits)


def test_where_the_consortium_asks_for_consent_nothing_is_said(tmp_path: Path) -> None:
    found = told(make_world(tmp_path))
    assert found.to_dict()["own_data"] == {"consent": True, "used_without_approval": []}
    assert not any("without that owner's approval" in limit for limit in found.limits)


@pytest.mark.claim("C113")
def test_a_manifest_cannot_leave_the_limit_out_or_soften_it(careless: World) -> None:
    honest = approved_by(careless, A, B)

    def conceal(facts: dict[str, Any]) -> None:
        honest(facts)
        facts["limits"] = [limit for limit in facts["limits"] if limit["id"] != "owners-not-asked"]

    def soften(facts: dict[str, Any]) -> None:
        honest(facts)
        for limit in facts["limits"]:
            limit["text"] = f"Nobody was left out. {C} agreed."

    with pytest.raises(ClaimContradicted):
        careless.manifest(conceal)
    found = told(careless, soften)
    assert not any("left out" in limit for limit in found.limits)
    assert any(f"Data of {C} was used without approval." in limit for limit in found.limits)


def test_a_receipt_does_not_count_an_owner_who_did_not_approve(careless: World) -> None:
    lying = careless.record(careless.receipt(approved_by=OWNERS))

    def change(facts: dict[str, Any]) -> None:
        approved_by(careless, A, B)(facts)
        facts["releases"] = lying

    # What the ledger counts by is the approvals too: one of them is not listed.
    assert isinstance(refusal(careless, change, "ledger"), ClaimContradicted)


def with_approval_of_c(careless: World, approval: Envelope, *receipts: Any) -> Change:
    releases = careless.record(*receipts) if receipts else None

    def change(facts: dict[str, Any]) -> None:
        approved_by(careless, A, B)(facts)
        facts["approvals"].append(approval.to_dict())
        if releases is not None:
            facts["releases"] = releases

    return change


@pytest.mark.claim("C113")
@pytest.mark.parametrize(
    "changed",
    [
        {"not_after": RELEASED - 1},
        {"signed_at": RELEASED + 301},
        {"needs": Needs(actions=("approve",), owners=OWNERS)},
    ],
    ids=["over", "too late", "of something else"],
)
def test_an_approval_counts_only_while_it_is_valid(
    careless: World, changed: dict[str, Any]
) -> None:
    assert unasked(careless, with_approval_of_c(careless, careless.approval(C, **changed))) == (C,)


@pytest.mark.claim("C113")
def test_an_approval_that_ends_before_a_renewal_is_not_enough(careless: World) -> None:
    end = to_rfc3339(RELEASED + 3600)
    lease = Lease(lease_id=digest("lease"), not_after=end)
    receipts = (
        careless.receipt(approved_by=OWNERS, lease=lease),
        careless.receipt(
            kind="renewal",
            datasets=(),
            approved_by=(A, B),
            lease=lease,
            released_at=to_rfc3339(RELEASED + 200),
        ),
    )
    approval = careless.approval(C, not_after=RELEASED + 100)
    assert unasked(careless, with_approval_of_c(careless, approval, *receipts)) == (C,)
    approval = careless.approval(C, not_after=RELEASED + 300)
    both = (receipts[0], careless.receipt(**renewal_of(receipts[1], OWNERS)))
    assert unasked(careless, with_approval_of_c(careless, approval, *both)) == ()


def renewal_of(receipt: Any, approved: tuple[str, ...]) -> dict[str, Any]:
    return {
        "kind": "renewal",
        "datasets": (),
        "approved_by": approved,
        "lease": receipt.lease,
        "released_at": receipt.released_at,
    }


def data_of(world: World, *names: str) -> tuple[ReleasedDataset, ...]:
    return tuple(
        ReleasedDataset(
            dataset_id=pin.dataset_id,
            owner_id=identity(key.partition("/")[0]).public.owner_id,
            root=pin.root,
        )
        for key, pin in world.pins.items()
        if key.partition("/")[0] in names
    )


@pytest.mark.claim("C113")
@pytest.mark.parametrize(("signed", "found"), [(RELEASED + 350, ()), (RELEASED + 700, (C,))])
def test_data_counts_from_its_own_release_on(
    careless: World, signed: int, found: tuple[str, ...]
) -> None:
    """Two brokers release one after another; the second one has what C approved meanwhile."""
    other = signer("broker b")
    first = careless.record(careless.receipt(approved_by=(A, B), datasets=data_of(careless, A, B)))
    second = careless.record(
        careless.receipt(
            approved_by=OWNERS if not found else (A, B),
            datasets=data_of(careless, C),
            released_at=to_rfc3339(RELEASED + 380),
            lease=Lease(lease_id=digest("other"), not_after=to_rfc3339(RELEASED + 3600)),
        ),
        key=other,
    )

    def change(facts: dict[str, Any]) -> None:
        approved_by(careless, A, B)(facts)
        facts["approvals"].append(careless.approval(C, signed_at=signed).to_dict())
        facts["releases"] = first + second

    brokers = careless.brokers(careless.broker, other)
    assert unasked(careless, change, brokers=brokers) == found


@pytest.mark.claim("C113")
def test_whoever_sees_one_broker_of_several_counts_the_others_data_too(careless: World) -> None:
    releases = careless.record(
        careless.receipt(approved_by=(A, B), datasets=data_of(careless, A, B))
    )

    def change(facts: dict[str, Any]) -> None:
        approved_by(careless, A, B)(facts)
        facts["releases"] = releases

    brokers = careless.brokers(careless.broker, datasets="theirs")
    assert unasked(careless, change, brokers=brokers) == (C,)


@pytest.mark.claim("C113")
def test_where_approvals_do_not_verify_nobody_is_cleared(careless: World) -> None:
    def change(facts: dict[str, Any]) -> None:
        approved_by(careless, A, B)(facts)
        facts["approvals"] = facts["approvals"][:1]

    found = examine(careless.manifest(change), careless.trust(), artefacts=None, now=NOW)
    assert not found.accepted
    assert found.facts.unasked is None
    assert found.to_dict()["own_data"] == {"consent": False, "used_without_approval": None}
    assert "not established" in render(found)
