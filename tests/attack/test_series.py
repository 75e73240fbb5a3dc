"""A series only grows as its owner signed it, and a run reads the whole and newest of it."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from release_world import ReleaseWorld, SealedSet, audited, document_of
from series_world import (
    NAME,
    A,
    B,
    C,
    follow,
    manifest_of,
    sealed_member,
    standing,
    use_series,
)
from world import digest, identity

from sealtrain.base.canonical import canonical_json
from sealtrain.base.clock import to_rfc3339
from sealtrain.consortium.datasets import PAYLOAD_TYPE
from sealtrain.consortium.errors import ApprovalSpent, BudgetSpent, DatasetMismatch, SeriesMismatch
from sealtrain.consortium.series import member_digest
from sealtrain.consortium.withdrawals import Withdrawal
from sealtrain.errors import RunMismatch, SealtrainError
from sealtrain.release.errors import DatasetWithdrawn
from sealtrain.signing import dsse
from sealtrain.signing.errors import StatementInvalid

pytestmark = pytest.mark.claim("C187")


def findings(world: ReleaseWorld) -> list[str]:
    return [finding.check for finding in audited(world).findings]


def run(world: ReleaseWorld, *members: SealedSet, **changed: Any) -> Any:
    asked = [world.sealed[owner].asked for owner in (A, B)]
    return world.obtain(datasets=[*asked, *(member.asked for member in members)], **changed)


def refused(world: ReleaseWorld, error: type[SealtrainError], *members: SealedSet) -> None:
    with pytest.raises(error) as caught:
        run(world, *members)
    assert (caught.value.owner, caught.value.exit_code) == (C, 3)
    assert world.refusals()[-1]["code"] == error.code
    world.assert_no_key_left()


def approve(world: ReleaseWorld, first: SealedSet, runs: int = 9) -> None:
    world.approve(A)
    world.approve(B)
    world.approve(C, datasets=[], standing=standing(runs, first=first))


def newest_in_ledger(world: ReleaseWorld) -> list[dict[str, Any]]:
    bodies = [entry["body"] for entry in world.ledger.entries() if entry["kind"] == "release"]
    return [dict(member) for member in bodies[-1].get("series", [])]


def test_a_run_reads_every_member_and_the_ledger_names_the_newest(world: ReleaseWorld) -> None:
    first = use_series(world)
    approve(world, first)
    run(world, first)
    second = follow(world, first, 2)
    third = follow(world, second, 3)
    assert len(run(world, first, second, third).keys) == 5
    assert newest_in_ledger(world) == [
        {"owner": C, "name": NAME, "number": 3, "member": member_digest(manifest_of(third))}
    ]
    assert findings(world) == []


def test_a_run_reads_the_newest_member_alone_where_it_replaces(world: ReleaseWorld) -> None:
    first = use_series(world, mode="replace")
    approve(world, first)
    second = follow(world, first, 2, mode="replace")
    assert len(run(world, second).keys) == 3
    refused(world, SeriesMismatch, first)
    refused(world, SeriesMismatch, first, second)
    assert findings(world) == []


def test_an_operator_who_withholds_a_member_gets_no_key(world: ReleaseWorld) -> None:
    first = use_series(world)
    approve(world, first)
    second = follow(world, first, 2)
    third = follow(world, second, 3)
    for shown in ((first, second), (first, third), (first,), (), (second, third)):
        refused(world, SeriesMismatch, *shown)
    run(world, first, second, third)


def test_a_resume_goes_on_with_the_members_it_began_with(world: ReleaseWorld) -> None:
    first = use_series(world)
    approve(world, first)
    run_id = os.urandom(16).hex()
    run(world, first, run_id=run_id)
    second = follow(world, first, 2)
    run(world, first, run_id=run_id, resume=True)
    assert newest_in_ledger(world) == []
    with pytest.raises(RunMismatch):
        run(world, first, second, run_id=run_id, resume=True)
    assert findings(world) == []


def test_no_member_has_two_successors(world: ReleaseWorld) -> None:
    first = use_series(world)
    second = follow(world, first, 2)
    with pytest.raises(SeriesMismatch):
        follow(world, first, 2)
    third = follow(world, second, 3)
    with pytest.raises(SeriesMismatch):
        follow(world, first, 2)
    with pytest.raises(SeriesMismatch):
        follow(world, second, 3)
    approve(world, first)
    run(world, first, second, third)
    assert world.refusals()[-1]["code"] == "series-mismatch"
    assert findings(world) == []


def test_no_series_has_two_beginnings(world: ReleaseWorld) -> None:
    use_series(world)
    with pytest.raises(SeriesMismatch):
        world.register(sealed_member(world, 1, None))


def test_a_gap_is_refused(world: ReleaseWorld) -> None:
    first = use_series(world)
    second = sealed_member(world, 2, first)
    with pytest.raises(SeriesMismatch):
        follow(world, second, 3)
    world.register(second)
    follow(world, second, 3)


@pytest.mark.parametrize(
    "changed",
    [
        {"previous": digest("another member")},
        {"mode": "replace"},
    ],
)
def test_a_successor_that_drops_or_swaps_what_was_before_is_refused(
    world: ReleaseWorld, changed: dict[str, Any]
) -> None:
    first = use_series(world)
    with pytest.raises(SeriesMismatch):
        follow(world, first, 2, **changed)


def test_a_member_is_not_swapped_for_other_data(world: ReleaseWorld) -> None:
    first = use_series(world)
    approve(world, first)
    swapped = sealed_member(
        world,
        1,
        None,
        dataset_id=first.dataset_id,
        root=digest("other records"),
        previous=None,
    )
    with pytest.raises((SeriesMismatch, DatasetMismatch)):
        world.register(swapped)
    plain = world.seal(C, dataset_id=first.dataset_id, root=first.root)
    with pytest.raises(SeriesMismatch):
        world.register(plain)
    run(world, first)


def test_no_other_owner_adds_a_successor(world: ReleaseWorld) -> None:
    first = use_series(world)
    stranger = sealed_member(world, 2, first, owner=B)
    with pytest.raises(SeriesMismatch):
        world.register(stranger)
    in_name = world.seal(C, signed_by=B)
    with pytest.raises(DatasetMismatch):
        world.register(in_name)


def test_the_series_of_another_beginning_is_not_the_approved_one(world: ReleaseWorld) -> None:
    first = use_series(world)
    world.approve(A)
    world.approve(B)
    other = sealed_member(world, 1, None)
    world.approve(C, datasets=[], standing=standing(3, first=other))
    refused(world, DatasetMismatch, first)


def test_a_dataset_that_is_no_member_is_refused(world: ReleaseWorld) -> None:
    first = use_series(world)
    approve(world, first)
    plain = world.seal(C)
    world.register(plain)
    refused(world, DatasetMismatch, first, plain)
    refused(world, DatasetMismatch, plain)


def test_pins_alone_admit_no_new_member(world: ReleaseWorld) -> None:
    first = use_series(world)
    for owner in (A, B, C):
        world.approve(owner)  # pins member 1
    run(world, first)
    second = follow(world, first, 2)
    refused(world, DatasetMismatch, first, second)


def test_a_withdrawn_member_ends_the_series(world: ReleaseWorld) -> None:

    first = use_series(world)
    approve(world, first)
    second = follow(world, first, 2)
    me = identity(C)
    document = {
        "version": 1,
        "consortium_id": world.consortium.consortium_id,
        "owner": C,
        "owner_id": me.public.owner_id,
        "datasets": [first.dataset_id],
        "nonce": "00" * 16,
        "signed_at": to_rfc3339(world.clock()),
    }
    envelope = dsse.sign(canonical_json(document), Withdrawal.payload_type, me.signer)
    world.broker.registry.hand_in("withdrawal", document_of(envelope))
    refused(world, DatasetWithdrawn, first, second)
    refused(world, SeriesMismatch, second)


@pytest.mark.parametrize(
    ("bounds", "first", "successor"),
    [
        ({"min_growth": 10}, {}, {"records": 9}),
        ({"max_growth": 100}, {}, {"records": 101}),
        ({"schema": "same"}, {}, {"schema_digest": digest("other columns")}),
    ],
)
def test_a_successor_beyond_the_bounds_is_refused(
    world: ReleaseWorld, bounds: dict[str, Any], first: dict[str, Any], successor: dict[str, Any]
) -> None:
    begin = use_series(world, bounds=bounds, **first)
    with pytest.raises(SeriesMismatch):
        follow(world, begin, 2, **successor)
    assert world.refusals()[-1]["code"] == "series-mismatch"


@pytest.mark.parametrize(
    ("records", "holds"), [(151, False), (152, True), (252, True), (253, False)]
)
def test_growth_of_a_replacement_is_its_difference(
    world: ReleaseWorld, records: int, holds: bool
) -> None:
    bounds = {"min_growth": 0, "max_growth": 100}
    first = use_series(world, mode="replace", bounds=bounds)
    if holds:
        follow(world, first, 2, mode="replace", records=records)
    else:
        with pytest.raises(SeriesMismatch):
            follow(world, first, 2, mode="replace", records=records)


def test_runs_over_a_series_are_counted_like_others(world: ReleaseWorld) -> None:
    first = use_series(world)
    world.approve(A)
    world.approve(C, datasets=[], standing=standing(1, first=first))
    run(world, first)
    second = follow(world, first, 2)
    with pytest.raises(ApprovalSpent):
        run(world, first, second)


def test_an_audit_finds_a_run_that_left_the_newest_member_out(world: ReleaseWorld) -> None:
    first = use_series(world)
    approve(world, first)
    run(world, first)
    body = next(entry["body"] for entry in world.ledger.entries() if entry["kind"] == "release")
    assert isinstance(body, dict)
    follow(world, first, 2)
    use = body["standing"][0]
    fresh = {"lease_id": "11" * 32, "receipt_digest": "22" * 32, "run_id": "33" * 16}
    world.ledger.append("release", body | fresh | {"standing": [use | {"run": 2}]})
    assert findings(world) == ["release"]
    other = {"lease_id": "44" * 32, "receipt_digest": "55" * 32, "run_id": "66" * 16}
    silent = {name: value for name, value in body.items() if name != "series"}
    world.ledger.append("release", silent | other | {"standing": [use | {"run": 3}]})
    assert findings(world) == ["release", "release"]


def test_an_audit_finds_a_fork_that_a_broker_recorded(world: ReleaseWorld) -> None:
    first = use_series(world)
    follow(world, first, 2)
    fork = sealed_member(world, 2, first)
    manifest = manifest_of(fork)
    world.ledger.append(
        "dataset",
        {
            "owner": C,
            "owner_id": manifest.owner_id,
            "name": NAME,
            "dataset_id": fork.dataset_id,
            "root": fork.root,
            "app_id": manifest.app_id,
            "compose_hash": manifest.compose_hash,
            "digest": fork.envelope.digest,
            "envelope": fork.envelope.to_dict(),
        },
    )
    assert findings(world) == ["dataset"]


@pytest.mark.parametrize(
    "said",
    [
        {"number": 0},
        {"number": 513},
        {"number": 1, "previous": "00" * 32},
        {"number": 2, "previous": None},
        {"mode": "merge"},
        {"bounds": {}},
        {"bounds": None},
        {"bounds": {"min_growth": 2, "max_growth": 1}},
        {"mode": "replace", "bounds": {"schema": "nullable-columns"}},
        {"number": 2, "previous": "00" * 32, "bounds": {"min_growth": 1}},
        {"name": "others"},
        {"more": 1},
    ],
)
def test_a_broker_refuses_a_series_of_another_form(
    world: ReleaseWorld, said: dict[str, Any]
) -> None:

    honest = sealed_member(world, 1, None)
    document = json.loads(honest.envelope.payload)
    document["series"] |= said
    envelope = dsse.sign(canonical_json(document), PAYLOAD_TYPE, identity(C).signer)
    with pytest.raises(StatementInvalid):
        world.broker.registry.hand_in("dataset", document_of(envelope))


def counts_in_private(recipe: dict[str, Any]) -> None:
    """A clean room that measures a model of A on a series of C, with noise in every count."""
    for name in ("peft", "trainer"):
        recipe.pop(name)
    recipe |= {
        "phase": "evaluate",
        "model": {"sealed": "diagnosis"},
        "datasets": [
            {"owner": A, "name": "diagnosis", "role": "model"},
            {"owner": C, "series": NAME, "role": "test"},
        ],
        "columns": {"text": "prompt", "label": "completion"},
        "labels": ["benign", "malignant"],
        "privacy": {"dp": "counts", "target_epsilon": 2.0, "budgets": {C: 5.0}},
        "release_policy": {"metrics": ["accuracy"], "round_to": 2, "model": {"recipients": [A]}},
    }


@pytest.mark.claim("C186")
@pytest.mark.parametrize("mode", ["replace", "append"])
def test_members_that_differ_by_a_record_do_not_tell_it_by_private_counts(
    world: ReleaseWorld, mode: Any
) -> None:
    """A run over each member has noise of its own, and all reserve from one budget."""
    world.locked = world.lock(counts_in_private)
    world.sealed[A] = world.seal(A, name="diagnosis")
    world.register(world.sealed[A])
    first = sealed_member(world, 1, None, mode=mode)
    world.register(first)
    for owner, how in (
        (A, {}),
        (B, {}),
        (C, {"datasets": [], "standing": standing(9, first=first)}),
    ):
        world.approve(owner, **how)

    def measured(*members: SealedSet) -> Any:
        return world.obtain(datasets=[dataset.asked for dataset in (world.sealed[A], *members)])

    measured(first)
    second = follow(world, first, 2, mode=mode, records=manifest_of(first).records + 1)
    members = (second,) if mode == "replace" else (first, second)
    measured(*members)
    with pytest.raises(BudgetSpent):
        measured(*members)
    reserved = [
        [(share["owner"], share["name"], share["epsilon"]) for share in entry["body"]["privacy"]]
        for entry in world.ledger.entries()
        if entry["kind"] == "release"
    ]
    assert reserved == [[(C, NAME, 2.0)]] * 2
    assert findings(world) == []
