"""A manifest of a run that several brokers released: enough of them, at each moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from manifest_world import FINISHED, NOW, RELEASED, World
from world import digest, signer

from sealtrain.base.canonical import parse_json
from sealtrain.base.clock import from_rfc3339, to_rfc3339
from sealtrain.base.encoding import from_base64
from sealtrain.consortium.errors import DatasetMismatch
from sealtrain.consortium.receipts import Lease, ReleaseReceipt
from sealtrain.errors import LeaseStale
from sealtrain.manifest.condense import select_releases
from sealtrain.manifest.errors import ClaimContradicted
from sealtrain.manifest.report import render
from sealtrain.manifest.verify import Report, examine
from sealtrain.signing.ed25519 import key_id
from sealtrain.signing.errors import ProofInvalid
from sealtrain.signing.identity import broker_id

pytestmark = pytest.mark.claim("C67")

A, B, C, X = (signer(name) for name in ("broker", "broker b", "broker c", "nobody's broker"))
LONG = FINISHED + 600 - RELEASED


def lease(world: World, name: str, at: int = 0, *, until: int = LONG, **changed: Any) -> Any:
    """One receipt ``at`` so many seconds after the first, its lease until so many."""
    renewal = {"datasets": ()} if changed.get("kind") == "renewal" else {}
    return world.receipt(
        released_at=to_rfc3339(RELEASED + at),
        lease=Lease(lease_id=digest(name), not_after=to_rfc3339(RELEASED + until)),
        **(renewal | changed),
    )


def judged(
    world: World,
    receipts: dict[Any, Sequence[ReleaseReceipt]],
    *,
    threshold: int = 2,
    datasets: str = "all",
    resumes: int = 0,
    trusted: Sequence[Any] = (A, B, C),
    change: Callable[[list[Any]], list[Any]] = list,
) -> Report:
    """Examine a manifest with these receipts, by broker, as a reader who trusts these brokers."""
    listed = [
        value for broker, found in receipts.items() for value in world.record(*found, key=broker)
    ]

    def several(facts: dict[str, Any]) -> None:
        facts["releases"] = change(sorted(listed, key=released_at))
        facts["run"]["resumes"] = [
            {
                "at": to_rfc3339(RELEASED + 300),
                "counter": number + 1,
                "step": 10,
                "checkpoint": digest("checkpoint"),
            }
            for number in range(resumes)
        ]

    brokers = world.brokers(*trusted, threshold=threshold, datasets=datasets)
    return examine(world.manifest(several), world.trust(brokers=brokers), artefacts=None, now=NOW)


def released_at(listed: Any) -> int:
    receipt: Any = parse_json(from_base64(listed["receipt"]["payload"]))
    return from_rfc3339(receipt["released_at"])


def test_two_of_three_brokers_are_enough(world: World) -> None:
    report = judged(world, {A: [lease(world, "a")], C: [lease(world, "c", 1)]})
    assert report.accepted, report.refusal
    assert "2 release by 2 brokers" in next(
        check.detail for check in report.checks if check.name == "releases"
    )


def test_one_of_three_brokers_is_too_few(world: World) -> None:
    assert isinstance(judged(world, {A: [lease(world, "a")]}).refusal, DatasetMismatch)


def test_a_guest_that_shows_one_receipt_twice_is_refused(world: World) -> None:
    shown = judged(world, {A: [lease(world, "a")]}, change=lambda listed: listed * 2)
    assert isinstance(shown.refusal, ClaimContradicted)
    assert shown.refusal.check == "releases"


def test_two_releases_of_one_broker_are_not_two_brokers(world: World) -> None:
    twice = [lease(world, "a"), lease(world, "a2", 5, resume=True)]
    assert isinstance(judged(world, {A: twice}).refusal, DatasetMismatch)


def test_a_broker_that_nobody_trusts_counts_nothing(world: World) -> None:
    both = {A: [lease(world, "a")], X: [lease(world, "x")]}
    assert isinstance(judged(world, both).refusal, DatasetMismatch)
    report = judged(world, both | {B: [lease(world, "b")]})
    assert report.accepted, report.refusal
    assert "1 receipts of other brokers do not count" in next(
        check.detail for check in report.checks if check.name == "releases"
    )


def test_a_receipt_that_names_a_trusted_key_it_is_not_signed_by(world: World) -> None:
    def relabelled(listed: list[Any]) -> list[Any]:
        listed[1]["receipt"]["signatures"][0]["keyid"] = key_id(B.public)
        return listed

    shown = judged(world, {A: [lease(world, "a")], X: [lease(world, "x", 1)]}, change=relabelled)
    assert shown.refusal is not None
    assert shown.refusal.code == "signature-invalid"


def test_a_proof_out_of_another_brokers_ledger_is_refused(world: World) -> None:
    def exchanged(listed: list[Any]) -> list[Any]:
        listed[1]["proof"] = listed[0]["proof"]
        return listed

    both = {A: [lease(world, "a")], B: [lease(world, "b", 1)]}
    refusal = judged(world, both, change=exchanged).refusal
    assert refusal is not None
    assert refusal.code in ("signature-invalid", ProofInvalid.code)


def test_a_broker_that_drops_out_in_mid_run_does_no_harm_while_two_stand(world: World) -> None:
    report = judged(
        world,
        {
            A: [lease(world, "a")],
            B: [lease(world, "b", 1, until=200)],
            C: [lease(world, "c", 2)],
        },
    )
    assert report.accepted, report.refusal


@pytest.mark.parametrize("others", [False, True])
def test_a_run_that_went_on_under_one_lease_is_refused(world: World, others: bool) -> None:
    leases = {A: [lease(world, "a")], B: [lease(world, "b", 1, until=100)]}
    if others:
        leases[C] = [lease(world, "c", 2, until=150)]
    assert isinstance(judged(world, leases).refusal, LeaseStale)


def test_leases_that_were_never_live_at_once_are_refused(world: World) -> None:
    after = {A: [lease(world, "a", until=100)], B: [lease(world, "b", 100)]}
    assert isinstance(judged(world, after).refusal, LeaseStale)


def test_a_lease_that_a_resume_ended_does_not_count_beside_its_successor(world: World) -> None:
    again = [lease(world, "a"), lease(world, "a2", 50, resume=True)]
    leases = {A: again, B: [lease(world, "b", 1, until=60)]}
    assert isinstance(judged(world, leases).refusal, LeaseStale)


def test_a_gap_before_a_resume_is_no_gap(world: World) -> None:
    leases = {
        A: [lease(world, "a", until=100), lease(world, "a2", 300, resume=True)],
        B: [lease(world, "b", 1, until=100)],
        C: [lease(world, "c", 301)],
    }
    report = judged(world, leases, resumes=1)
    assert report.accepted, report.refusal


def test_a_resume_that_asked_too_few_brokers_is_refused(world: World) -> None:
    leases = {
        A: [lease(world, "a"), lease(world, "a2", 300, resume=True)],
        B: [lease(world, "b", 1)],
    }
    assert judged(world, leases).accepted
    assert isinstance(judged(world, leases, resumes=1).refusal, ClaimContradicted)


def owners_of(world: World, *owners: str) -> dict[str, Any]:
    ids = {pin.dataset_id for key, pin in world.pins.items() if key.split("/")[0] in owners}
    whole = world.receipt().datasets
    return {"datasets": tuple(dataset for dataset in whole if dataset.dataset_id in ids)}


def test_each_owner_may_have_an_own_broker(world: World) -> None:
    owners = sorted({key.split("/")[0] for key in world.pins})
    leases = {
        broker: [lease(world, owner, place, **owners_of(world, owner))]
        for place, (broker, owner) in enumerate(zip((A, B, C), owners, strict=False))
    }
    report = judged(world, leases, threshold=1)
    assert report.accepted, report.refusal
    del leases[B]
    assert isinstance(judged(world, leases, threshold=1).refusal, DatasetMismatch)


def test_one_brokers_own_view_asks_only_about_its_own(world: World) -> None:
    owners = sorted({key.split("/")[0] for key in world.pins})
    alone = {A: [lease(world, "a", until=60, **owners_of(world, owners[0]))]}
    assert not judged(world, alone, threshold=1).accepted
    report = judged(world, alone, threshold=1, datasets="theirs", trusted=(A,))
    assert report.accepted, report.refusal
    assert any("its own brokers" in limit for limit in report.limits)
    renewed = [*alone[A], lease(world, "another", 61, kind="renewal")]
    refused = judged(world, {A: renewed}, threshold=1, datasets="theirs", trusted=(A,))
    assert isinstance(refused.refusal, ClaimContradicted)


def test_each_brokers_chain_is_kept_short_by_itself(world: World) -> None:
    def chain(name: str, offset: int) -> list[ReleaseReceipt]:
        return [
            lease(
                world,
                name,
                at + offset,
                until=at + offset + 100,
                kind="renewal" if at else "release",
            )
            for at in range(0, FINISHED - RELEASED - 5, 10)
        ]

    every = {A: chain("a", 0), B: chain("b", 3)}
    counts: list[tuple[int, int]] = []

    def short(listed: list[Any]) -> list[Any]:
        kept = select_releases(listed)
        counts.append((len(listed), len(kept)))
        return kept

    report = judged(world, every, change=short)
    assert report.accepted, report.refusal
    ((before, after),) = counts
    assert after < before / 5


def test_a_report_says_which_broker_released_when(world: World) -> None:
    page = render(judged(world, {A: [lease(world, "a")], B: [lease(world, "b", 1)]}))
    for broker in (A, B):
        assert f"clock of broker {broker_id(broker.public)[:8]}" in page
    assert "clock of broker" not in render(judged(world, {A: [lease(world, "a")]}, threshold=1))
