"""A manifest of several parties against someone who holds a genuine guest and lies about one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from manifest_world import (
    FINISHED,
    NOW,
    RELEASED,
    RUN_ID,
    World,
    limits_of,
    make_joint,
    party,
    party_receipt,
    with_receipts,
)
from world import OWNERS, digest

from sealtrain.base.clock import to_rfc3339
from sealtrain.base.digests import sha256_hex
from sealtrain.consortium.errors import DatasetMismatch
from sealtrain.consortium.receipts import Lease
from sealtrain.errors import LeaseStale, Refused, SealtrainError
from sealtrain.manifest.checks.case import Case
from sealtrain.manifest.checks.collaboration import RULES
from sealtrain.manifest.errors import ClaimContradicted, TranscriptInvalid
from sealtrain.manifest.report import render
from sealtrain.manifest.verify import VerifiedManifest, examine, verify_manifest
from sealtrain.recipe.errors import DatasetUnknown
from sealtrain.signing.parties import party_run_id

pytestmark = pytest.mark.claim("C80")

Change = Callable[[dict[str, Any]], None]
A, B, C = OWNERS


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_joint(tmp_path_factory.mktemp("joint"))


@pytest.fixture(autouse=True)
def rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kind's own rules are not what is looked at here."""
    monkeypatch.setitem(RULES, "federated", lambda _case: "rounds hold")


def verified(world: World, change: Change | None = None, **trust: Any) -> VerifiedManifest:
    return verify_manifest(
        world.manifest(change), world.trust(**trust), artefacts=world.artefacts, now=NOW
    )


def refused(world: World, change: Change, expected: type[SealtrainError]) -> SealtrainError:
    with pytest.raises(Refused) as caught:
        verified(world, change)
    assert type(caught.value) is expected, caught.value
    return caught.value


def listed(*parties: dict[str, Any]) -> Change:
    def change(facts: dict[str, Any]) -> None:
        facts["collaboration"]["parties"] = list(parties)

    return change


def both(*changes: Change) -> Change:
    def change(facts: dict[str, Any]) -> None:
        for change in changes:
            change(facts)

    return change


def without_data_of(owner: str, world: World) -> Change:
    """Its datasets, its receipt and its line are gone."""
    kept = [envelope.to_dict() for key, envelope in world.datasets.items() if owner not in key]
    receipts = [party_receipt(world, name) for name in OWNERS if name != owner]

    def change(facts: dict[str, Any]) -> None:
        facts["datasets"] = kept
        facts["collaboration"]["parties"] = [party(n) for n in OWNERS if n != owner]

    return both(change, with_receipts(world, receipts))


def test_an_honest_run_of_three_parties_verifies_and_is_shown(world: World) -> None:
    found = verified(world)
    assert found.predicate.collaboration is not None
    assert [party.name for party in found.predicate.collaboration.parties] == list(OWNERS)
    page = render(examine(world.manifest(), world.trust(), artefacts=None, now=NOW))
    assert "Training together" in page
    assert party_run_id(RUN_ID, B) in page
    assert "parties-evidence" in {limit.id for limit in found.predicate.limits}


def test_a_party_that_dropped_out_of_three_leaves_two(world: World) -> None:
    found = verified(world, without_data_of(C, world))
    assert len(found.predicate.datasets) == 3


def test_one_party_of_three_is_too_few(world: World) -> None:
    change = both(
        without_data_of(C, world),
        lambda facts: facts.update(
            datasets=[
                world.datasets[f"{A}/biopsies"].to_dict(),
                world.datasets[f"{A}/biopsies-test"].to_dict(),
            ]
        ),
        listed(party(A)),
        with_receipts(world, [party_receipt(world, A)]),
    )
    assert refused(world, change, ClaimContradicted).check == "parties"


def test_a_missing_party_is_missed_by_its_data(world: World) -> None:
    refused(world, listed(party(A), party(B)), DatasetUnknown)


def test_two_parties_cannot_have_one_id(world: World) -> None:
    twice = listed(party(A), party(B), party(C, run_id=party_run_id(RUN_ID, B)))
    assert "run id of hospital-c" in refused(world, twice, ClaimContradicted).message
    double = listed(party(A), party(B), party(B), party(C))
    assert refused(world, double, ClaimContradicted).check == "parties"


def test_a_stranger_is_no_party(world: World) -> None:
    change = listed(party(A), party(B), party(C), party("hospital-d"))
    assert refused(world, change, ClaimContradicted).got == "hospital-d"


def test_a_party_does_what_its_kind_knows(world: World) -> None:
    change = listed(party(A), party(B), party(C, role="listener"))
    assert refused(world, change, ClaimContradicted).got == "listener"


def test_receipts_of_another_run_do_not_count(world: World) -> None:
    other = party_receipt(world, C, run_id=party_run_id("66" * 16, C))
    change = with_receipts(world, [party_receipt(world, A), party_receipt(world, B), other])
    error = refused(world, change, ClaimContradicted)
    assert (error.check, error.got) == ("releases", party_run_id("66" * 16, C))


def test_a_receipt_under_the_runs_own_id_does_not_count(world: World) -> None:
    """A guest that asked for everybody's keys under the whole run's id is no party."""
    refused(world, with_receipts(world, [world.receipt()]), ClaimContradicted)


def test_a_party_that_was_released_anothers_data_is_refused(world: World) -> None:
    stolen = party_receipt(world, B, datasets=party_receipt(world, A).datasets)
    receipts = [party_receipt(world, A), stolen, party_receipt(world, C)]
    assert refused(world, with_receipts(world, receipts), DatasetMismatch).owner == B


def test_data_of_a_party_without_a_receipt_was_never_released(world: World) -> None:
    receipts = [party_receipt(world, A), party_receipt(world, B)]
    assert refused(world, with_receipts(world, receipts), DatasetMismatch).owner == C


def test_a_lease_that_ended_before_its_party_left_is_stale(world: World) -> None:
    ended = Lease(lease_id=digest("short"), not_after=to_rfc3339(RELEASED + 60))
    short = party_receipt(world, B, lease=ended)
    receipts = [party_receipt(world, A), short, party_receipt(world, C)]
    refused(world, with_receipts(world, receipts), LeaseStale)
    # Whoever left by then did not go on without one: its own end counts, not the run's.
    left = party(B, until=to_rfc3339(RELEASED + 50))
    verified(world, both(with_receipts(world, receipts), listed(party(A), left, party(C))))


@pytest.mark.parametrize(
    "times",
    [
        {"from": to_rfc3339(RELEASED - 3600)},
        {"until": to_rfc3339(FINISHED + 3600)},
        {"from": to_rfc3339(FINISHED), "until": to_rfc3339(RELEASED)},
    ],
)
def test_a_part_lies_within_the_run(world: World, times: dict[str, str]) -> None:
    assert refused(world, listed(party(A), party(B, **times), party(C)), ClaimContradicted)


def test_nobody_took_part_long_before_its_keys_were_released(world: World) -> None:
    late = party_receipt(world, C, released_at=to_rfc3339(FINISHED - 60))
    change = with_receipts(world, [party_receipt(world, A), party_receipt(world, B), late])
    error = refused(world, change, ClaimContradicted)
    assert (error.check, "hospital-c" in error.message) == ("times", True)


def test_a_guest_of_another_deployment_cannot_lead(world: World, tmp_path: Path) -> None:
    """The receipts name the deployment that owners approved; the lead measured another."""
    other = make_joint(tmp_path, name="another")
    assert other.locked.compose_hash != world.locked.compose_hash
    with pytest.raises(Refused):
        verified(other, lambda facts: facts.update(releases=world.releases))


def test_the_kind_is_the_recipes(world: World) -> None:
    def other(facts: dict[str, Any]) -> None:
        facts["collaboration"]["kind"] = "cut"
        facts["limits"] = limits_of(facts)

    def none(facts: dict[str, Any]) -> None:
        del facts["collaboration"]

    assert refused(world, other, ClaimContradicted).check == "parties"
    assert refused(world, none, ClaimContradicted).got == "none"


def test_a_run_without_parties_claims_none(tmp_path: Path) -> None:
    from manifest_world import make_world

    alone = make_world(tmp_path)

    def joined(facts: dict[str, Any]) -> None:
        facts["collaboration"] = {"kind": "federated", "parties": [party(A)]}
        facts["limits"] = limits_of(facts)

    assert refused(alone, joined, ClaimContradicted).check == "parties"


def test_the_rules_of_the_kind_decide(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_case: Case) -> str:
        raise TranscriptInvalid("a round is missing", check="rounds")

    monkeypatch.setitem(RULES, "federated", broken)
    refused(world, lambda _facts: None, TranscriptInvalid)
    monkeypatch.delitem(RULES, "federated")
    assert refused(world, lambda _facts: None, ClaimContradicted).check == "collaboration"


def test_the_limit_cannot_be_left_out(world: World) -> None:
    def silent(facts: dict[str, Any]) -> None:
        facts["limits"] = [limit for limit in facts["limits"] if limit["id"] != "parties-evidence"]

    with pytest.raises(ClaimContradicted, check=carries(check="limits")):
        world.manifest(silent)


def test_one_brokers_view_asks_for_its_own_datasets_alone(world: World) -> None:
    """Broker of hospital-a alone: the others' receipts are of brokers it does not know."""
    mine = world.brokers(world.broker, datasets="theirs")
    change = with_receipts(world, [party_receipt(world, A)])
    assert sha256_hex(world.manifest(change))
    verified(world, change, brokers=mine)
