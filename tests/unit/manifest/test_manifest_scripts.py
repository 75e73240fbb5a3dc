"""Where a script of the engineer's trained, everything that tells of the run says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from manifest_world import NOW, World, make_world
from world import RECIPE

from sealtrain.manifest.errors import ClaimContradicted
from sealtrain.manifest.exports.cyclonedx import cyclonedx
from sealtrain.manifest.exports.model_card import model_card
from sealtrain.manifest.exports.model_facts import ModelFacts, model_facts_of, plain
from sealtrain.manifest.exports.training_summary import training_summary
from sealtrain.manifest.report import render
from sealtrain.manifest.verify import Report, examine

pytestmark = pytest.mark.claim("C114")

NAME = "train.py"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("script")
    (folder / NAME).write_text("import sealtrain\n")
    return make_world(folder, {**RECIPE, "scripts": [NAME]})


@pytest.fixture(scope="module")
def report(world: World) -> Report:
    return examine(world.manifest(), world.trust(), artefacts=world.artefacts, now=NOW)


@pytest.fixture(scope="module")
def facts(report: Report) -> ModelFacts:
    return model_facts_of(report)


@pytest.fixture(scope="module")
def digest(world: World) -> str:
    return world.locked.lock.script_digests[NAME]


def test_verification_names_the_script_and_its_limit(report: Report, digest: str) -> None:
    assert report.to_dict()["scripts"] == {NAME: digest}
    assert sum("trainer settings" in limit for limit in report.limits) == 1


def test_the_report_shows_it_and_does_not_pass_settings_off_as_used(
    report: Report, digest: str
) -> None:
    page = render(report)
    assert digest in page
    assert "Trainer settings of the recipe" in page


@pytest.mark.parametrize("export", [model_card, training_summary])
def test_documents_name_it(export: Any, facts: ModelFacts, digest: str) -> None:
    text = export(facts).decode()
    assert digest in text
    assert plain(NAME) in text


def test_the_bill_of_materials_lists_it_as_a_part(facts: ModelFacts, digest: str) -> None:
    document = json.loads(cyclonedx(facts))
    (part,) = (
        component
        for component in document["components"]
        if component["bom-ref"] == f"script:{NAME}"
    )
    assert part["hashes"] == [{"alg": "SHA-256", "content": digest}]
    (model,) = (
        dependency for dependency in document["dependencies"] if dependency["ref"] == "model"
    )
    assert f"script:{NAME}" in model["dependsOn"]


def test_a_manifest_cannot_leave_the_limit_out(world: World) -> None:
    def conceal(facts: dict[str, Any]) -> None:
        facts["limits"] = [limit for limit in facts["limits"] if limit["id"] != "own-script"]

    with pytest.raises(ClaimContradicted):
        world.manifest(conceal)


def test_without_a_script_nothing_is_said(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    found = examine(world.manifest(), world.trust(), artefacts=world.artefacts, now=NOW)
    assert found.to_dict()["scripts"] == {}
    assert "Trainer settings of the recipe" not in render(found)
    assert "script:" not in cyclonedx(model_facts_of(found)).decode()
