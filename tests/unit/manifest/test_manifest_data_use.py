"""What owners state about the use of data holds in a manifest, and every export tells it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cyclonedx_schema import judge
from manifest_world import FINISHED, NOW, RELEASED, World, make_world
from world import OWNERS, RECIPE

from sealtrain.base.clock import to_rfc3339
from sealtrain.manifest.checks.case import CLOCK_TOLERANCE_S
from sealtrain.manifest.exports.cyclonedx import cyclonedx
from sealtrain.manifest.exports.model_card import model_card
from sealtrain.manifest.exports.model_facts import ModelFacts, model_facts_of, plain
from sealtrain.manifest.exports.training_summary import training_summary
from sealtrain.manifest.report import render
from sealtrain.manifest.verify import Report, examine
from sealtrain.signing.datause import DataUse
from sealtrain.signing.errors import PurposeMismatch, RetentionEnded

A = OWNERS[0]
PURPOSE = "early detection <b>of</b> cancer | screening"
STATED = DataUse(
    purposes=("care", PURPOSE),
    purposes_bind=True,
    legal_basis="consent",
    legal_basis_note="Art. 9(2)(a) GDPR",
    categories=("health data", "age"),
    phi="limited",
    retention_until=to_rfc3339(NOW),
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A run whose recipe states purpose and legal basis."""
    recipe = {**RECIPE, "purpose": PURPOSE, "legal_basis": "consent"}
    return make_world(tmp_path_factory.mktemp("data-use"), recipe)


def stating(world: World, data_use: DataUse) -> Callable[[dict[str, Any]], None]:
    """The first owner states this of each of its datasets."""

    def state(facts: dict[str, Any]) -> None:
        facts["datasets"] = [
            world.dataset(*key.split("/"), data_use=data_use).to_dict()
            if key.startswith(f"{A}/")
            else envelope.to_dict()
            for key, envelope in world.datasets.items()
        ]

    return state


def report_on(world: World, data_use: DataUse) -> Report:
    data = world.manifest(stating(world, data_use))
    return examine(data, world.trust(), artefacts=world.artefacts, now=NOW)


@pytest.fixture(scope="module")
def account(world: World) -> ModelFacts:
    return model_facts_of(report_on(world, STATED))


def failed(report: Report) -> list[str]:
    return [check.name for check in report.checks if check.outcome == "failed"]


@pytest.mark.claim("C177")
@pytest.mark.parametrize(
    ("last", "accepted"),
    [
        (NOW, True),
        (FINISHED, True),
        (FINISHED - CLOCK_TOLERANCE_S, True),
        (FINISHED - CLOCK_TOLERANCE_S - 1, False),
        (RELEASED, False),
        (RELEASED - 1, False),
    ],
)
def test_no_data_was_in_use_after_its_retention(world: World, last: int, accepted: bool) -> None:
    report = report_on(world, DataUse(retention_until=to_rfc3339(last)))
    assert report.accepted == accepted
    if not accepted:
        assert failed(report) == ["times"]
        assert isinstance(report.refusal, RetentionEnded)
        assert report.refusal.owner == A


@pytest.mark.claim("C177")
def test_a_receipt_after_the_retention_is_refused_without_tolerance(world: World) -> None:
    receipt = world.receipt(released_at=to_rfc3339(FINISHED - 30))
    use = DataUse(retention_until=to_rfc3339(FINISHED - 31))

    def late(facts: dict[str, Any]) -> None:
        stating(world, use)(facts)
        facts["releases"] = world.record(receipt)

    data = world.manifest(late)
    report = examine(data, world.trust(), artefacts=world.artefacts, now=NOW)
    assert isinstance(report.refusal, RetentionEnded)


@pytest.mark.claim("C177")
@pytest.mark.parametrize("bind", [True, False])
def test_purposes_that_bind_hold_in_a_manifest(world: World, bind: bool) -> None:
    report = report_on(world, DataUse(purposes=("care",), purposes_bind=bind))
    assert report.accepted == (not bind)
    if bind:
        assert failed(report) == ["datasets"]
        assert isinstance(report.refusal, PurposeMismatch)


@pytest.mark.claim("C178")
def test_the_report_tells_what_is_stated_and_as_text(world: World) -> None:
    page = render(report_on(world, STATED))
    assert "<b>of</b>" not in page
    for text in ("Art. 9(2)(a) GDPR", "health data; age", "limited", to_rfc3339(NOW), "consent"):
        assert text in page
    assert "early detection &lt;b&gt;of&lt;/b&gt; cancer" in page


@pytest.mark.claim("C178")
@pytest.mark.parametrize("export", [model_card, training_summary])
def test_markdown_exports_tell_it(
    account: ModelFacts, export: Callable[[ModelFacts], bytes]
) -> None:
    text = export(account).decode()
    assert PURPOSE not in text
    for stated in (*STATED.in_words().values(), PURPOSE):
        assert plain(stated) in text


@pytest.mark.claim("C178")
@pytest.mark.parametrize("version", ["1.6", "1.7"])
def test_cyclonedx_tells_it(account: ModelFacts, version: Any) -> None:
    document = json.loads(cyclonedx(account, version=version))
    own = [
        {property_["name"]: property_["value"] for property_ in part["properties"]}
        for part in document["components"]
        if part["bom-ref"].startswith(f"dataset:{A}/")
    ]
    assert own
    for properties in own:
        assert properties["sealtrain:retention-until"] == STATED.retention_until
        assert properties["sealtrain:phi"] == "limited"
    of_run = {
        property_["name"]: property_["value"] for property_ in document["metadata"]["properties"]
    }
    assert of_run["sealtrain:purpose"] == PURPOSE
    assert list(judge(version).iter_errors(document)) == []


def test_nothing_is_told_where_nothing_is_stated(tmp_path: Path) -> None:
    bare = make_world(tmp_path)
    report = examine(bare.manifest(), bare.trust(), artefacts=bare.artefacts, now=NOW)
    facts = model_facts_of(report)
    assert facts.intended == {}
    assert all(not dataset.data_use for dataset in facts.datasets)
    assert "Stated by" not in render(report)
