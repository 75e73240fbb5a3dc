"""A builder writes nothing that its own verifier would refuse."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from manifest_world import World

from sealtrain.attest.evidence import Evidence
from sealtrain.attest.report_data import Binding
from sealtrain.errors import ClaimContradicted, SealtrainError
from sealtrain.manifest.limits import TEXTS, limits_for, required
from sealtrain.manifest.predicate import SIMULATED_MARKER
from sealtrain.records.statement import Subject

pytestmark = pytest.mark.claim("C27")


def test_the_same_run_gives_the_same_bytes(world: World, honest: bytes) -> None:
    assert world.manifest() == honest


def test_the_quote_is_asked_for_once_and_over_the_final_statement(world: World) -> None:
    asked: list[Binding] = []

    def quote(binding: Binding) -> Evidence:
        asked.append(binding)
        return world.evidence(binding)

    world.manifest(quote=quote)
    assert [one.purpose for one in asked] == ["manifest"]


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
    with pytest.raises(ClaimContradicted, match="collateral"):
        world.manifest(quote=lambda data: world.evidence(data).with_collateral(None))


def test_an_accelerator_asks_for_its_limit(world: World) -> None:
    def accelerated(facts: dict[str, Any]) -> None:
        facts["compute"]["accelerators"] = ["H200"]

    with pytest.raises(ClaimContradicted, match="limits"):
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


def test_every_required_limit_has_a_text_and_every_text_is_required_once() -> None:
    hardware = required(simulated=False, dp="none", accelerators=True)
    simulated = required(simulated=True, dp="none", accelerators=False)
    private = required(simulated=True, dp="sgd", accelerators=False, accountant="gdp")
    patients = required(simulated=True, dp="patients", accelerators=False, accountant="prv")
    assert "privacy-scope" not in patients
    kinds = ("travelling", "federated", "pads", "cut")
    together = {
        name
        for kind in kinds
        for name in required(simulated=True, dp="none", accelerators=False, collaboration=kind)
    }
    assert {*hardware, *simulated, *private, *patients} | together == set(TEXTS)
    assert "memorisation" not in required(simulated=False, dp="dp-sgd", accelerators=False)
    for limit in limits_for(simulated=True, accelerators=True):
        assert limit.text.endswith(".")


def test_the_page_lists_every_limit(repository: Any) -> None:
    page = (repository / "spec/run-manifest.md").read_text("utf-8")
    assert [name for name in TEXTS if f"`{name}`" not in page] == []


def test_the_marker_is_the_word_of_the_attestation_layer() -> None:
    from sealtrain.attest.roots import SIMULATED_LABEL

    assert SIMULATED_MARKER == SIMULATED_LABEL
