"""A builder writes nothing that its own verifier would refuse."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from carrying import carries
from manifest_world import World

from sealtrain.attest.evidence import Evidence
from sealtrain.attest.report_data import Binding
from sealtrain.base.tiers import TIERS
from sealtrain.errors import SealtrainError
from sealtrain.manifest.errors import ClaimContradicted
from sealtrain.manifest.limits import BORDER_CLOSED, DATA_COUNTED, TEXTS, limits_for, list_required
from sealtrain.manifest.predicate import (
    SIMULATED_MARKER,
    Collaboration,
    PatientTraining,
    Predicate,
    PrivateTraining,
    Release,
)
from sealtrain.signing.statement import Subject

pytestmark = pytest.mark.claim("C27")


def test_the_same_run_gives_the_same_bytes(world: World, honest: bytes) -> None:
    assert world.manifest() == honest


def test_the_quote_is_asked_for_once_and_over_the_final_statement(world: World) -> None:
    asked: list[Binding] = []

    def quote(binding: Binding) -> Evidence:
        asked.append(binding)
        return world.evidence(binding)

    world.manifest(quote=quote)
    assert [question.purpose for question in asked] == ["manifest"]


def _hide(facts: dict[str, Any]) -> None:
    facts["simulated"] = False


def _unmark(facts: dict[str, Any]) -> None:
    facts["marker"] = None


def _conceal(facts: dict[str, Any]) -> None:
    facts["limits"] = facts["limits"][1:]


def _rekey(facts: dict[str, Any]) -> None:
    facts["signer"]["public_key"] = "A" * 43 + "="


@pytest.mark.parametrize("change", [_hide, _unmark, _conceal, _rekey])
def test_a_predicate_that_contradicts_itself_is_not_signed(
    world: World, change: Callable[[dict[str, Any]], None]
) -> None:
    def quote(binding: Binding) -> Evidence:
        raise AssertionError("no quote is asked for a contradiction")

    with pytest.raises(ClaimContradicted):
        world.manifest(change, quote=quote)


def test_subjects_are_the_files_that_the_predicate_lists(world: World) -> None:
    with pytest.raises(ClaimContradicted):
        world.manifest(subjects=[Subject(name="model/other.sealed", sha256="00" * 32)])


def test_evidence_that_cannot_be_verified_offline_is_refused(world: World) -> None:
    with pytest.raises(ClaimContradicted, check=carries(check="quote")):
        world.manifest(quote=lambda data: world.evidence(data).with_collateral(None))


def test_an_accelerator_asks_for_its_limit(world: World) -> None:
    def accelerated(facts: dict[str, Any]) -> None:
        facts["compute"]["accelerators"] = ["H200"]

    with pytest.raises(ClaimContradicted, check=carries(check="limits")):
        world.manifest(accelerated)


def test_a_metric_that_is_not_finite_is_null_and_never_nan(world: World) -> None:
    def diverged(facts: dict[str, Any]) -> None:
        facts["run"]["metrics"]["loss"] = None

    envelope = json.loads(world.manifest(diverged))["bundle"]["dsseEnvelope"]
    assert b"NaN" not in base64.b64decode(envelope["payload"])

    def leaked(facts: dict[str, Any]) -> None:
        facts["run"]["metrics"]["loss"] = float("nan")

    with pytest.raises((ValueError, SealtrainError)):
        world.manifest(leaked)


def test_every_required_limit_has_a_text_and_every_text_is_required_once(world: World) -> None:
    honest = Predicate.model_validate_json(json.dumps(world.predicate()))

    def needed(**changed: Any) -> set[str]:
        return set(list_required(honest.model_copy(update=changed)))

    sgd = PrivateTraining.model_construct(dp="sgd", accountant="gdp")
    patients = needed(privacy=PatientTraining.model_construct(dp="patients", accountant="prv"))
    assert "privacy-scope" not in patients
    assert "memorisation" not in patients | needed(privacy=sgd)
    asking = honest.consortium.model_copy(update={"own_data_consent": True})
    ignoring = honest.consortium.model_copy(update={"own_data_consent": False})
    assert "owners-not-asked" not in needed(consortium=asking)
    closed = {"event": BORDER_CLOSED, "fields": {"landlock": 7, "seccomp": True, "unbound": 0}}
    held = honest.run_log.model_copy(update={"entries": [closed]})
    assert "border-in-software" not in needed(run_log=held)
    half = {"records": 2, "whole": 1, "truncated": 0, "filtered": 0, "empty": 1}
    counted = {"event": DATA_COUNTED, "fields": {"ab" * 16: half}}
    left_out = honest.run_log.model_copy(update={"entries": [closed, counted]})
    together = {
        name
        for kind in ("travelling", "federated", "pads", "cut", "nodes")
        for name in needed(collaboration=Collaboration(kind=kind, parties=()))
    }
    recipe = honest.recipe.lock["recipe"]
    hardware = recipe["hardware"] | {"launch_script": "22" * 32}
    lock = honest.recipe.lock | {
        "scripts": {"train.py": "11" * 32},
        "recipe": recipe | {"hardware": hardware},
    }
    for misshapen in (None, [], "hardware", {"hardware": None}, {"hardware": []}):
        of_none = honest.recipe.model_copy(update={"lock": lock | {"recipe": misshapen}})
        assert "platform-script" not in needed(recipe=of_none)
    weaker = {
        name
        for tier in TIERS
        for name in needed(deployment=honest.deployment.model_copy(update={"tier": tier}))
    }
    claim = {"name": "GPU mode", "got": "protected_pcie"}
    receipt = world.receipt(verdict={"submods": {"gpus": {"claims": [claim]}}})
    (listed,) = world.record(receipt)
    of_board = Release.model_validate_json(json.dumps(listed))
    found = (
        needed()
        | needed(simulated=False)
        | needed(compute=honest.compute.model_copy(update={"accelerators": ("H200",)}))
        | needed(releases=(of_board,))
        | needed(privacy=sgd)
        | needed(consortium=ignoring)
        | needed(run_log=left_out)
        | needed(recipe=honest.recipe.model_copy(update={"lock": lock}))
    )
    assert found | patients | together | weaker == set(TEXTS)
    for limit in limits_for(honest):
        assert limit.text.endswith(".")


def test_the_page_lists_every_limit(repository: Any) -> None:
    page = (repository / "spec/run-manifest.md").read_text("utf-8")
    assert [name for name in TEXTS if f"`{name}`" not in page] == []


def test_the_marker_is_the_word_of_the_attestation_layer() -> None:
    from sealtrain.attest.roots import SIMULATED_LABEL

    assert SIMULATED_MARKER == SIMULATED_LABEL
