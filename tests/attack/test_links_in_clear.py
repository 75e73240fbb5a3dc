"""A manifest of GPUs in protected PCIe says that their links are in clear, in both verifiers.

The attacker holds the guest's own key and lets a genuine (simulated) guest quote the statement.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from manifest_world import NOW, World, make_world, with_receipts
from second_verifier import Question, compare

from sealtrain.attest.report_data import Binding
from sealtrain.base.canonical import canonical_json
from sealtrain.errors import Refused
from sealtrain.manifest import form
from sealtrain.manifest.limits import TEXTS
from sealtrain.manifest.verify import examine, verify_manifest
from sealtrain.signing import dsse, statement

pytestmark = pytest.mark.claim("C717")

LIMIT = "nvlink-in-clear"


def verdict(mode: str) -> dict[str, Any]:
    """What a broker signed of a board."""
    claim = {"name": "GPU mode", "got": mode, "expected": mode, "source": "", "outcome": "allowed"}
    return {"submods": {"cpu0": {"claims": []}, "gpus": {"claims": [claim]}}}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("board"))


def told(world: World, mode: str, *, hidden: bool = False) -> bytes:
    """A manifest of a run whose broker saw GPUs in a mode."""
    honest = world.manifest(
        with_limits(with_receipts(world, [world.receipt(verdict=verdict(mode))]), mode)
    )
    return without(world, honest) if hidden else honest


def with_limits(change: Any, mode: str) -> Any:
    def changed(facts: dict[str, Any]) -> None:
        change(facts)
        if mode == "protected_pcie":
            facts["limits"].append({"id": LIMIT, "text": TEXTS[LIMIT]})

    return changed


def without(world: World, honest: bytes) -> bytes:
    """The statement without the limit, signed by the guest's key and quoted by the guest."""
    document = json.loads(form.read(honest).signed_statement.payload)
    predicate = document["predicate"]
    predicate["limits"] = [limit for limit in predicate["limits"] if limit["id"] != LIMIT]
    payload, public = canonical_json(document), world.guest_key.public
    committed = form.commitment(payload, public, predicate["run_log"]["head"])
    evidence = world.evidence(Binding("manifest", committed))
    return form.write(
        dsse.sign(payload, statement.PAYLOAD_TYPE, world.guest_key),
        dsse.sign(evidence.to_bytes(), form.EVIDENCE_PAYLOAD_TYPE, world.guest_key),
        public,
    )


def agreed(world: World, data: bytes) -> str:
    found = compare(
        [Question(label="", manifest=data, trust=world.trust(), artefacts=None, now=NOW)]
    )
    assert not found.disagreements
    assert not found.crashes
    (said,) = found.verdicts
    return said


def test_a_board_whose_links_are_in_clear_says_so(world: World) -> None:
    data = told(world, "protected_pcie")
    report = verify_manifest(data, world.trust(), artefacts=world.artefacts, now=NOW)
    assert TEXTS[LIMIT] in report.limits
    assert agreed(world, data) == "verified"


@pytest.mark.parametrize("mode", ["mpt", "single"])
def test_gpus_that_encrypt_their_links_have_no_such_limit(world: World, mode: str) -> None:
    data = told(world, mode)
    report = verify_manifest(data, world.trust(), artefacts=world.artefacts, now=NOW)
    assert TEXTS[LIMIT] not in report.limits
    assert agreed(world, data) == "verified"


@pytest.mark.negative(119)
def test_links_in_clear_cannot_be_concealed(world: World) -> None:
    data = told(world, "protected_pcie", hidden=True)
    with pytest.raises(Refused) as caught:
        verify_manifest(data, world.trust(), artefacts=world.artefacts, now=NOW)
    assert (caught.value.code, caught.value.check) == ("claim-contradicted", "limits")
    assert agreed(world, data) == "limits claim-contradicted"
    # A reader is told of it all the same.
    concealed = examine(data, world.trust(), artefacts=world.artefacts, now=NOW)
    assert TEXTS[LIMIT] in concealed.limits


def test_a_final_evidence_in_that_mode_needs_the_limit_without_any_verdict(
    world: World, tmp_path: Path
) -> None:
    from sealtrain.manifest.checks.case import Case
    from sealtrain.manifest.checks.outcome import limits_are_said

    manifest = form.read(world.manifest())

    class Claims:
        multi_gpu_mode = "protected_pcie"

    class Gpu:
        claims = Claims()

    class Shown:
        gpu = Gpu()

    shown: Any = Shown()
    case = Case(manifest=manifest, trust=world.trust(), artefacts=None, now=NOW, evidence=shown)
    with pytest.raises(Refused) as caught:
        limits_are_said(case)
    assert caught.value.got is not None
    assert caught.value.expected == LIMIT
