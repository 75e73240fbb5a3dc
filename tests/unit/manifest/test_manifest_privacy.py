"""A manifest cannot claim more privacy than its recipe asked, its ledger holds, its facts allow."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from manifest_world import NOW, World, limits_of, make_world
from world import RECIPE

from sealtrain.manifest.errors import ClaimContradicted
from sealtrain.manifest.report import render
from sealtrain.manifest.verify import examine, verify_manifest
from sealtrain.signing.errors import ProofInvalid

pytestmark = pytest.mark.claim("C37")

Facts = dict[str, Any]
DATASETS = [
    {
        "owner": owner,
        "name": "biopsies",
        "records": 152,
        "sample_rate": 0.035,
        "epsilon": 6.5 if owner == "hospital-b" else 6.1,
    }
    for owner in ("hospital-a", "hospital-b", "hospital-c")
]
CLAIM = {
    "dp": "sgd",
    "epsilon": 6.5,
    "delta": 1e-5,
    "accountant": "gdp",
    "noise_multiplier": 1.1,
    "max_grad_norm": 1.0,
    "sampling": "poisson",
    "unit": "record",
    "batch": 16,
    "steps": 300,
    "datasets": DATASETS,
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    recipe = copy.deepcopy(dict(RECIPE))
    recipe["privacy"] = {
        "dp": "sgd",
        "target_epsilon": 7.0,
        "delta": 1e-5,
        "accountant": "gdp",
        "budgets": {"hospital-a": 20},
    }
    recipe["release_policy"]["metrics"] = ["accuracy"]
    made = make_world(tmp_path_factory.mktemp("private"), recipe)
    made.facts["privacy"] = copy.deepcopy(CLAIM)
    made.facts["run"]["history"] = []
    made.facts["run"]["metrics"] = {"accuracy": 0.9}
    made.facts["limits"] = limits_of(made.facts)
    return made


def verify(world: World, change: Callable[[Facts], None] | None = None) -> Any:
    data = world.manifest(change)
    return verify_manifest(data, world.trust(), artefacts=world.artefacts, now=NOW)


def test_an_honest_private_run_verifies_and_says_its_price(world: World) -> None:
    verified = verify(world)
    details = {check.name: check.detail for check in verified.checks}
    assert "epsilon 6.5 at delta 1e-05 by gdp" in details["policy"]
    assert any("central limit" in limit for limit in verified.limits)
    assert not any("trained without differential privacy" in limit for limit in verified.limits)


def test_the_report_shows_it(world: World) -> None:
    report = examine(world.manifest(), world.trust(), artefacts=world.artefacts, now=NOW)
    page = render(report)
    assert "epsilon 6.5 at delta 1e-05" in page
    assert "noise multiplier 1.1" in page


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epsilon", 7.5),
        ("epsilon", 6.0),
        ("delta", 1e-6),
        ("accountant", "prv"),
        ("max_grad_norm", 0.5),
        ("steps", 299),
        ("datasets", DATASETS[:2]),
        ("datasets", [*DATASETS, {**DATASETS[0], "name": "biopsies-test"}]),
    ],
)
def test_another_mechanism_or_price_is_refused(world: World, name: str, value: Any) -> None:
    def changed(facts: Facts) -> None:
        facts["privacy"][name] = value
        if name == "epsilon" and value > 7:
            facts["privacy"]["datasets"][1]["epsilon"] = value

    with pytest.raises(ClaimContradicted, check=carries(check="privacy")):
        verify(world, changed)


def test_privacy_that_the_recipe_did_not_ask_for_is_refused(tmp_path: Path) -> None:
    plain = make_world(tmp_path)

    def boasting(facts: Facts) -> None:
        facts["privacy"] = CLAIM
        facts["limits"] = limits_of(facts)

    with pytest.raises(ClaimContradicted, check=carries(check="privacy", got="sgd")):
        verify(plain, boasting)


@pytest.mark.claim("C38")
@pytest.mark.parametrize("kept", [0, 2])
def test_keys_that_were_released_without_the_reservation_are_noticed(
    world: World, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = World.reserved

    def short(self: World, receipt: Any) -> dict[str, Any]:
        return {"privacy": honest(self, receipt)["privacy"][:kept]} if kept else {}

    monkeypatch.setattr(World, "reserved", short)
    releases = world.record(world.receipt())

    with pytest.raises(ProofInvalid, check=carries(check="ledger")):
        verify(world, lambda facts: facts.update(releases=releases))


@pytest.mark.claim("C38")
def test_a_smaller_reservation_does_not_do(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = World.reserved

    def cheap(self: World, receipt: Any) -> dict[str, Any]:
        return {
            "privacy": [{**value, "epsilon": 0.1} for value in honest(self, receipt)["privacy"]]
        }

    monkeypatch.setattr(World, "reserved", cheap)
    releases = world.record(world.receipt())
    with pytest.raises(ProofInvalid, check=carries(check="ledger")):
        verify(world, lambda facts: facts.update(releases=releases))


@pytest.mark.claim("C38")
@pytest.mark.parametrize(
    "shown", [{}, {"reserved_at": 5}, {"reserved_at": -1}, {"reserved_at": True}, {"privacy": []}]
)
def test_a_run_that_shows_only_its_resume_names_an_earlier_reservation(
    world: World, shown: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run killed before its first checkpoint has the receipt of its resume alone."""
    alone = world.record(world.receipt(resume=True))
    assert verify(world, lambda facts: facts.update(releases=alone)).predicate.releases
    monkeypatch.setattr(World, "reserved", lambda _self, _receipt: shown)
    releases = world.record(world.receipt(resume=True))
    with pytest.raises(ProofInvalid):
        verify(world, lambda facts: facts.update(releases=releases))


@pytest.mark.claim("C38")
def test_a_first_release_names_no_earlier_reservation(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = World.reserved
    monkeypatch.setattr(World, "reserved", lambda self, one: honest(self, one) | {"reserved_at": 0})
    releases = world.record(world.receipt())
    with pytest.raises(ProofInvalid):
        verify(world, lambda facts: facts.update(releases=releases))
