"""A manifest's series are the approved and newest ones, and its run was counted."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from manifest_world import NOW, START, World, facts_of, limits_of, make_world
from world import DAY, OWNERS, RECIPE, digest

from sealtrain.consortium.approvals import DatasetPin
from sealtrain.consortium.datasets import DatasetManifest
from sealtrain.consortium.series import member_digest
from sealtrain.consortium.series_block import SeriesBlock
from sealtrain.consortium.standing_terms import StandingTerms
from sealtrain.manifest.verify import Report, examine
from sealtrain.signing.dsse import Envelope

A, B, C = OWNERS
NAME = "biopsies"


def manifest_of(envelope: Envelope) -> DatasetManifest:
    return DatasetManifest.from_bytes(envelope.payload)


def member(world: World, number: int, before: Envelope | None, **changed: Any) -> Envelope:
    names = SeriesBlock.model_fields.keys()
    of_block = {name: changed.pop(name) for name in tuple(changed) if name in names}
    previous = None if before is None else member_digest(manifest_of(before))
    block = {"name": NAME, "number": number, "mode": "append", "previous": previous} | of_block
    own = {
        "dataset_id": digest(f"member {number}", 16),
        "root": digest(f"root of member {number}"),
    }
    series = SeriesBlock.model_validate(block)
    return world.dataset(A, NAME, series=series, **own | changed)


def reading(
    folder: Path,
    *,
    mode: str = "append",
    terms: dict[str, Any] | None = None,
    bounds: dict[str, Any] | None = None,
    second: dict[str, Any] | None = None,
) -> tuple[World, list[Envelope]]:
    """A run over two members of A's series, under A's standing approval."""
    recipe = copy.deepcopy(RECIPE)
    one = next(
        found for found in recipe["datasets"] if (found["owner"], found["name"]) == (A, NAME)
    )
    one["series"] = one.pop("name")
    world = make_world(folder, recipe)
    begun = {} if bounds is None else {"bounds": bounds}
    first = member(world, 1, None, mode=mode, **begun)
    last = member(world, 2, first, **({"mode": mode} | (second or {})))
    read = [first, last] if mode == "append" else [last]
    del world.datasets[f"{A}/{NAME}"], world.pins[f"{A}/{NAME}"]
    for number, envelope in enumerate(read, start=1):
        manifest = manifest_of(envelope)
        world.datasets[f"{A}/{NAME}-{number}"] = envelope
        pin = DatasetPin(dataset_id=manifest.dataset_id, root=manifest.root)
        world.pins[f"{A}/{NAME}-{number}"] = pin
    fixed = [pin for key, pin in world.pins.items() if key == f"{A}/biopsies-test"]
    approved = {"name": NAME, "first": member_digest(manifest_of(first))}
    stated = {"runs": 3, "series": (approved,)} | (terms or {})
    signed = world.approval(A, datasets=fixed, standing=StandingTerms.model_validate(stated))
    world.approvals[A] = signed
    world.begins = {
        "standing": [{"owner": A, "approval": signed.digest, "run": 3}],
        "series": [
            {"owner": A, "name": NAME, "number": 2, "member": member_digest(manifest_of(last))}
        ],
    }
    written(
        world, [manifest_of(value).dataset_id for value in read], [first, last][: 2 - len(read)]
    )
    return world, [first, last]


def written(world: World, members: list[str], former: list[Envelope]) -> None:
    world.releases = world.record(world.receipt())
    world.facts = facts_of(world)
    world.facts["series"] = [
        {
            "owner": A,
            "name": NAME,
            "members": members,
            "former": [envelope.to_dict() for envelope in former],
        }
    ]
    world.facts["limits"] = limits_of(world.facts)


def report(
    world: World, change: Callable[[dict[str, Any]], None] | None = None
) -> tuple[str, str] | None:
    """Check and code of the first refusal; ``None`` where the manifest is accepted."""
    found: Report = examine(
        world.manifest(change), world.trust(), artefacts=world.artefacts, now=NOW
    )
    failed = [check for check in found.checks if check.outcome == "failed"]
    if not failed:
        assert {check.outcome for check in found.checks} == {"passed"}
        return None
    error = failed[0].error
    assert error is not None
    return failed[0].name, error.code


@pytest.fixture(scope="module")
def appending(tmp_path_factory: pytest.TempPathFactory) -> tuple[World, list[Envelope]]:
    return reading(tmp_path_factory.mktemp("append"))


@pytest.mark.claim("C189")
@pytest.mark.parametrize("mode", ["append", "replace"])
def test_a_run_over_a_series_is_accepted(tmp_path: Path, mode: str) -> None:
    world, _ = reading(tmp_path, mode=mode)
    assert report(world) is None


@pytest.mark.claim("C189")
def test_a_member_that_is_left_out_is_missed(appending: tuple[World, list[Envelope]]) -> None:
    world, _ = appending

    def shorten(facts: dict[str, Any]) -> None:
        facts["series"][0]["members"].pop()

    def drop(facts: dict[str, Any]) -> None:
        del facts["series"]

    def twice(facts: dict[str, Any]) -> None:
        facts["series"] *= 2

    def swap(facts: dict[str, Any]) -> None:
        facts["series"][0]["members"].reverse()

    def stranger(facts: dict[str, Any]) -> None:
        facts["series"][0]["members"][0] = "00" * 16

    def beside(facts: dict[str, Any]) -> None:
        facts["series"][0]["former"] = [facts["datasets"][0]]

    assert report(world, shorten) == ("datasets", "series-mismatch")
    assert report(world, drop) == ("datasets", "claim-contradicted")
    assert report(world, twice) == ("datasets", "claim-contradicted")
    assert report(world, swap) == ("datasets", "series-mismatch")
    assert report(world, stranger) == ("datasets", "claim-contradicted")
    assert report(world, beside) == ("datasets", "series-mismatch")


@pytest.mark.claim("C189")
@pytest.mark.parametrize(
    "second",
    [
        {"previous": digest("another member")},
        {"records": 10_000},
        {"schema_digest": digest("other columns")},
        {"mode": "replace"},
    ],
)
def test_a_successor_that_may_not_follow_is_refused(tmp_path: Path, second: dict[str, Any]) -> None:
    bounds = {"max_growth": 9_999, "schema": "same"}
    world, _ = reading(tmp_path, bounds=bounds, second=second)
    assert report(world) == ("datasets", "series-mismatch")


@pytest.mark.claim("C189")
def test_a_series_of_another_beginning_is_not_the_approved_one(tmp_path: Path) -> None:
    series = ({"name": NAME, "first": digest("another beginning")},)
    world, _ = reading(tmp_path, terms={"series": series})
    assert report(world) == ("approvals", "dataset-mismatch")


@pytest.mark.claim("C189")
def test_a_broker_that_knew_a_newer_member_gives_the_run_away(
    appending: tuple[World, list[Envelope]], tmp_path: Path
) -> None:
    world, _ = reading(tmp_path)
    newest = world.begins["series"][0] | {"number": 3, "member": digest("member 3")}
    assert rewritten(world, series=[newest]) == ("ledger", "series-mismatch")
    assert rewritten(world, series=None) == ("ledger", "proof-invalid")
    twice = [world.begins["series"][0]] * 2 if "series" in world.begins else [newest] * 2
    assert rewritten(world, series=twice) == ("ledger", "proof-invalid")
    other = [appending[0].begins["series"][0] | {"name": "others"}]
    assert rewritten(world, series=other) == ("ledger", "series-mismatch")


def rewritten(world: World, **begins: Any) -> tuple[str, str] | None:
    """What a manifest ends with whose ledger entry says something else of the run's begin."""
    before = world.begins
    world.begins = {name: value for name, value in (before | begins).items() if value is not None}
    releases = world.record(world.receipt())
    world.begins = before
    return report(world, lambda facts: facts.update(releases=releases))


@pytest.mark.claim("C185")
@pytest.mark.parametrize(
    ("use", "code"),
    [
        ({"run": 4}, "approval-spent"),
        ({"run": 0}, "proof-invalid"),
        ({"approval": digest("another approval")}, "proof-invalid"),
        ({"owner": B}, "proof-invalid"),
        ({"owner": "hospital-x"}, "proof-invalid"),
        ({"epsilon": 1.0}, "proof-invalid"),
        ({"epsilon": None}, "proof-invalid"),
        ({"more": 1}, "proof-invalid"),
        (None, "proof-invalid"),
    ],
)
def test_a_run_that_was_not_counted_is_refused(
    appending: tuple[World, list[Envelope]], use: dict[str, Any] | None, code: str
) -> None:
    world, _ = appending
    counted = None if use is None else [world.begins["standing"][0] | use]
    assert rewritten(world, standing=counted) == ("ledger", code)


@pytest.mark.claim("C185")
def test_the_same_owner_is_not_counted_twice(appending: tuple[World, list[Envelope]]) -> None:
    world, _ = appending
    assert rewritten(world, standing=world.begins["standing"] * 2) == ("ledger", "proof-invalid")
    assert rewritten(world, standing=[]) == ("ledger", "proof-invalid")


@pytest.mark.claim("C186")
@pytest.mark.parametrize(
    ("epsilon", "ends"),
    [(8.0, None), (8.1, ("ledger", "budget-spent")), (None, ("ledger", "proof-invalid"))],
)
def test_a_run_beyond_the_budget_is_refused(
    tmp_path: Path, epsilon: float | None, ends: tuple[str, str] | None
) -> None:
    world, _ = reading(tmp_path, terms={"epsilon": 8.0})
    use = dict(world.begins["standing"][0])
    if epsilon is not None:
        use["epsilon"] = epsilon
    assert rewritten(world, standing=[use]) == ends


@pytest.mark.claim("C185")
def test_an_owner_who_also_approved_without_a_limit_need_not_be_counted(tmp_path: Path) -> None:
    world, _ = reading(tmp_path)
    plain = world.approval(
        A,
        signed_at=START - 3000,
        datasets=[],
        not_after=START + 30 * DAY,
        random=lambda size: bytes([7]) * size,
    )
    before = world.begins
    world.begins = {"series": before["series"]}
    releases = world.record(world.receipt())
    approvals = [plain.to_dict(), *(approval.to_dict() for approval in world.approvals.values())]

    def both(facts: dict[str, Any]) -> None:
        facts.update(releases=releases, approvals=approvals)

    assert report(world, both) is None
