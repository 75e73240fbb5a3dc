"""Writing decisions and counting them; most rules are in ``vectors/approvals``."""

from __future__ import annotations

from typing import Any

import pytest
from carrying import carries

from sealtrain.consortium.approvals import (
    ApprovalTally,
    DatasetPin,
    Decision,
    Needs,
    SignedDecision,
    require,
    sign_decision,
    tally,
    tally_as_stated,
    verify_decision,
)
from sealtrain.consortium.errors import ApprovalExpired, ApprovalRevoked, ApprovalsMissing
from sealtrain.consortium.members import Consortium
from sealtrain.errors import RecipeChanged
from sealtrain.signing.errors import StatementInvalid
from sealtrain.signing.target import Target

NOW = 1_772_366_400
DAY = 86_400
TARGET = Target(app_id="0a" * 20, compose_hash="0b" * 32, recipe_hash="0c" * 32)
OTHER = Target(app_id="1a" * 20, compose_hash="1b" * 32, recipe_hash="1c" * 32)
NEEDS = Needs(actions=("approve", "export_model"), owners=("ada",))
BROKERS = ("b1" * 32, "b2" * 32)
PINS = [DatasetPin(dataset_id=f"{n}" * 32, root=f"{n}" * 64) for n in (2, 1)]


@pytest.fixture
def approve(consortium: Consortium, members: dict[str, Any]) -> Any:
    def write(name: str, target: Target = TARGET, **changes: Any) -> SignedDecision:
        fields = {"signed_at": NOW, "not_after": NOW + DAY, "needs": NEEDS, **changes}
        named = {"consortium_id": consortium.consortium_id, "brokers": BROKERS}
        decision = Decision.approve(**named, target=target, **fields)
        return verify_decision(sign_decision(decision, members[name].signer), consortium)

    return write


@pytest.fixture
def revoke(consortium: Consortium, members: dict[str, Any]) -> Any:
    def write(name: str, target: Target = TARGET) -> SignedDecision:
        decision = Decision.revoke(
            consortium_id=consortium.consortium_id, brokers=BROKERS, target=target, signed_at=NOW
        )
        return verify_decision(sign_decision(decision, members[name].signer), consortium)

    return write


def test_an_approval_says_what_was_meant(approve: Any, members: dict[str, Any]) -> None:
    signed = approve("ada", datasets=PINS)
    assert signed.owner == members["ada"].public
    assert signed.decision.target == TARGET
    assert (signed.decision.signed, signed.decision.ends) == (NOW, NOW + DAY)
    assert signed.decision.pins() == {"1" * 32: "1" * 64, "2" * 32: "2" * 64}
    assert signed.digest == signed.envelope.digest


def test_nonces_are_random_by_default_and_given_for_tests(consortium: Consortium) -> None:
    def write(**changes: Any) -> Decision:
        named = {"consortium_id": consortium.consortium_id, "brokers": BROKERS}
        return Decision.revoke(**named, target=TARGET, signed_at=NOW, **changes)

    assert write().nonce != write().nonce
    assert write(random=lambda size: b"\x01" * size).nonce == "01" * 16


@pytest.mark.parametrize(
    "changes",
    [
        {"not_after": NOW},
        {"not_after": NOW - 1},
        {"datasets": [PINS[0], PINS[0]]},
        {"target": Target(app_id="", compose_hash="0b" * 32, recipe_hash="0c" * 32)},
        {"datasets": [DatasetPin(dataset_id=f"{n:032x}", root="0" * 64) for n in range(1025)]},
        {"brokers": ()},
        {"brokers": ("b1",)},
        {"brokers": [f"{number:064x}" for number in range(65)]},
    ],
    ids=[
        "ends at once",
        "ended before",
        "a dataset twice",
        "no target",
        "too many datasets",
        "no broker",
        "half a broker",
        "too many brokers",
    ],
)
def test_an_approval_that_nobody_would_read_is_not_written(
    changes: dict[str, Any], consortium: Consortium
) -> None:
    fields = {
        "brokers": BROKERS,
        "target": TARGET,
        "needs": NEEDS,
        "signed_at": NOW,
        "not_after": NOW + DAY,
        **changes,
    }
    with pytest.raises(StatementInvalid):
        Decision.approve(consortium_id=consortium.consortium_id, **fields)


def test_status_words_are_threshold_progress_and_sealed(
    approve: Any, consortium: Consortium
) -> None:
    decisions = [approve("ada")]
    before = tally(decisions, consortium, TARGET, NOW, needs=NEEDS).to_dict()
    assert (before["threshold"], before["progress"], before["sealed"]) == (2, 1, True)
    after = tally([*decisions, approve("cyd")], consortium, TARGET, NOW, needs=NEEDS).to_dict()
    assert (after["threshold"], after["progress"], after["sealed"]) == (2, 2, False)


def test_a_tally_shows_the_pins_of_the_approvals_that_count(
    approve: Any, revoke: Any, consortium: Consortium
) -> None:
    decisions = [approve("ada", datasets=PINS[:1]), approve("ben"), approve("cyd", datasets=PINS)]
    counted = tally([*decisions, revoke("cyd")], consortium, TARGET, NOW, needs=NEEDS)
    assert counted.pins == {"ada": {"2" * 32: "2" * 64}, "ben": {}}
    assert [approval.owner.name for approval in counted.approvals] == ["ada", "ben"]


def test_a_later_approval_replaces_the_pins(approve: Any, consortium: Consortium) -> None:
    first, second = approve("ada", datasets=PINS), approve("ada", datasets=[])
    assert tally([first, second], consortium, TARGET, NOW, needs=NEEDS).pins == {"ada": {}}
    assert tally([second, first], consortium, TARGET, NOW, needs=NEEDS).pins == {"ada": PINS_BY_ID}


PINS_BY_ID = {pin.dataset_id: pin.root for pin in PINS}


def test_an_unsealed_tally_passes_and_is_returned(approve: Any, consortium: Consortium) -> None:
    counted = tally([approve("ada"), approve("ben")], consortium, TARGET, NOW, needs=NEEDS)
    assert require(counted) is counted
    assert counted.valid_until == NOW + DAY


def test_the_boundary_second_counts_and_the_next_does_not(
    approve: Any, consortium: Consortium
) -> None:
    decisions = [approve("ada"), approve("ben", not_after=NOW + 10)]
    assert require(tally(decisions, consortium, TARGET, NOW + 10, needs=NEEDS)).progress == 2
    with pytest.raises(ApprovalExpired) as caught:
        require(tally(decisions, consortium, TARGET, NOW + 11, needs=NEEDS))
    assert caught.value.owner == "ben"
    assert "ben" in str(caught.value.hint)


def test_a_refusal_names_who_approved_who_is_missing_and_what_to_do(
    approve: Any, consortium: Consortium
) -> None:
    with pytest.raises(ApprovalsMissing) as caught:
        require(tally([approve("ben")], consortium, TARGET, NOW, needs=NEEDS))
    told = caught.value.to_dict()
    assert told["owner"] == "ada, cyd"
    assert "approved: ben" in told["got"]
    assert "missing: ada, cyd" in told["got"]
    assert "sealtrain approve" in told["hint"]


def test_a_revocation_names_who_revoked(approve: Any, revoke: Any, consortium: Consortium) -> None:
    decisions = [approve("ada"), approve("ben"), revoke("cyd")]
    with pytest.raises(ApprovalRevoked) as caught:
        require(tally(decisions, consortium, TARGET, NOW, needs=NEEDS))
    assert caught.value.owner == "cyd"


def test_a_changed_recipe_is_told_from_a_missing_approval(
    approve: Any, consortium: Consortium
) -> None:
    decisions = [approve("ada", OTHER), approve("ben", OTHER)]
    with pytest.raises(RecipeChanged) as caught:
        require(tally(decisions, consortium, TARGET, NOW, needs=NEEDS))
    assert (caught.value.got, caught.value.expected) == (TARGET.recipe_hash, OTHER.recipe_hash)


def test_the_same_recipe_in_another_deployment_is_told_apart(
    approve: Any, consortium: Consortium
) -> None:
    near = Target(app_id=OTHER.app_id, compose_hash="ee" * 32, recipe_hash=TARGET.recipe_hash)
    with pytest.raises(RecipeChanged, check=carries(check="approvals")) as caught:
        require(tally([approve("ada", near)], consortium, TARGET, NOW, needs=NEEDS))
    assert "ee" * 32 in str(caught.value.expected)


def test_a_clock_ahead_is_mentioned(approve: Any, consortium: Consortium) -> None:
    ahead = approve("ada", signed_at=NOW + 400)
    with pytest.raises(ApprovalsMissing) as caught:
        require(tally([ahead, approve("ben")], consortium, TARGET, NOW, needs=NEEDS))
    assert "ada" in str(caught.value.hint)
    assert (
        require(
            tally([ahead, approve("ben")], consortium, TARGET, NOW, needs=NEEDS, skew=400)
        ).progress
        == 2
    )


def test_a_tally_depends_on_nothing_but_its_arguments(approve: Any, consortium: Consortium) -> None:
    decisions = [approve("ada"), approve("ben")]
    assert tally(decisions, consortium, TARGET, NOW, needs=NEEDS) == tally(
        iter(decisions), consortium, TARGET, NOW, needs=NEEDS
    )


def test_decisions_of_another_consortium_cannot_even_be_counted(
    approve: Any, consortium: Consortium, members: dict[str, Any]
) -> None:
    owners = [member.public for member in members.values()]
    other = Consortium.found(name="labs", owners=owners, approve=1)
    with pytest.raises(ValueError, match="verify_decision"):
        tally([approve("ada")], other, TARGET, NOW, needs=NEEDS)


def test_without_the_recipe_the_needs_that_got_furthest_are_counted(
    approve: Any, consortium: Consortium
) -> None:
    less = Needs(actions=("approve",), owners=())
    nobody = tally_as_stated([], consortium, TARGET, NOW)
    assert (nobody.progress, nobody.needs) == (0, less)
    counted = tally_as_stated(
        [approve("ada"), approve("ben"), approve("cyd", needs=less)], consortium, TARGET, NOW
    )
    assert (counted.needs, counted.approved_by, counted.mistaken) == (
        NEEDS,
        ("ada", "ben"),
        ("cyd",),
    )
    # Who approved rightly and then something else still counts for what was right.
    again = [approve("ada"), approve("ben"), approve("ada", needs=less)]
    assert tally_as_stated(again, consortium, TARGET, NOW).approved_by == ("ada", "ben")


def test_one_owner_cannot_make_counting_slow(approve: Any, consortium: Consortium) -> None:
    flood = [
        approve("cyd", needs=Needs(actions=("approve",), owners=(f"owner-{n}",))) for n in range(40)
    ]
    counted = tally_as_stated([*flood, approve("ada")], consortium, TARGET, NOW)
    assert counted.needs in (NEEDS, flood[-1].decision.needs)


@pytest.mark.claim("C574")
def test_an_owner_whose_data_is_read_is_among_those_needed(
    consortium: Consortium, members: dict[str, Any]
) -> None:
    """As many as the threshold approve, and not the owner whose data is read."""
    strict = Consortium.found(
        name="labs", owners=consortium.owners, approve=2, own_data_consent=True
    )
    needs = Needs(actions=("approve",), owners=("cyd",))

    def decided(*names: str) -> ApprovalTally:
        decisions = [
            verify_decision(
                sign_decision(
                    Decision.approve(
                        consortium_id=strict.consortium_id,
                        brokers=BROKERS,
                        target=TARGET,
                        signed_at=NOW,
                        not_after=NOW + DAY,
                        needs=needs,
                    ),
                    members[name].signer,
                ),
                strict,
            )
            for name in names
        ]
        return tally(decisions, strict, TARGET, NOW, needs=needs)

    counted = decided("ada", "ben")
    assert (counted.progress, counted.threshold, counted.sealed) == (2, 2, True)
    assert counted.needed == 3
    assert "3" in counted.in_words()
    whole = decided("ada", "ben", "cyd")
    assert (whole.progress, whole.needed, whole.sealed) == (3, 2, False)
    assert decided("ada").needed == 2
