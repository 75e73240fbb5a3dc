"""An enclave under a test root is taken by a policy that names this root, and by nothing else.

The attacker runs enclaves whose module a test root certified, holds each document that such a
module made, and starts other images and documents. They do not hold a key below the root that the
policy names.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from machines_world import ELSEWHERE, LIES, MACHINES, Lie, MachinePark, judge

from sealtrain.attest.errors import (
    EvidenceMalformed,
    MeasurementMismatch,
    PlatformMismatch,
    QuoteRootUntrusted,
    ReportDataMismatch,
)
from sealtrain.attest.evidence import Evidence
from sealtrain.attest.policy import AppraisalPolicy, policy_from_dict
from sealtrain.attest.presets import PRESETS, insecure_simulator_policy, preset
from sealtrain.attest.registry import tee_of
from sealtrain.errors import EvidenceRefused, TrustInvalid
from sealtrain_rehearsal.simulator.nitro import SimulatedNitroPki

pytestmark = [pytest.mark.claim("C755"), pytest.mark.negative(127)]
MACHINE = MACHINES["test-nitro"]
OWN_LIES = [lie for lie in LIES if lie.name == "test-nitro"]


@pytest.fixture(scope="module")
def park(tmp_path_factory: pytest.TempPathFactory) -> MachinePark:
    return MachinePark(tmp_path_factory.mktemp("enclave"))


def with_rules(policy: AppraisalPolicy, **rules: object) -> AppraisalPolicy:
    document = policy.to_dict()
    return policy_from_dict({**document, "cpu": {**document["cpu"], **rules}})  # type: ignore[dict-item]


def as_kind(evidence: Evidence, kind: str, platform: str) -> Evidence:
    """The same document, shown as another kind."""
    shown = evidence.to_dict()
    return Evidence.from_dict(
        {**shown, "platform": platform, "cpu": {**shown["cpu"], "tee": kind}}  # type: ignore[dict-item]
    )


def test_it_is_taken_under_the_root_that_the_policy_names(park: MachinePark) -> None:
    verdict = judge(park.evidence(MACHINE), park.pin(MACHINE))
    assert verdict.simulated
    assert verdict.tier == "cloud"


@pytest.mark.parametrize("lie", OWN_LIES, ids=str)
def test_each_lie_is_refused_by_its_own_code(park: MachinePark, lie: Lie) -> None:
    with pytest.raises(EvidenceRefused) as caught:
        judge(park.evidence(lie.machine), park.pin(replace(lie.machine, fault=None)))
    assert caught.value.code == lie.code


def test_a_document_of_another_conversation_is_refused(park: MachinePark) -> None:
    with pytest.raises(ReportDataMismatch):
        judge(park.evidence(MACHINE, ELSEWHERE), park.pin(MACHINE))


def test_another_test_root_is_not_the_one_that_is_named(park: MachinePark) -> None:
    other = SimulatedNitroPki(b"another test root").root_der
    with pytest.raises(QuoteRootUntrusted):
        judge(park.evidence(MACHINE), insecure_simulator_policy(other, tee="test-nitro"))


def test_images_are_named_without_exception(park: MachinePark) -> None:
    with pytest.raises(MeasurementMismatch):
        judge(park.evidence(MACHINE), with_rules(park.pin(MACHINE), images=[]))
    zeros = {"pcr0": "00" * 48, "pcr1": "11" * 48, "pcr2": "11" * 48}
    for images in ("any", [zeros]):
        with pytest.raises(TrustInvalid):
            with_rules(park.pin(MACHINE), images=images)


def test_it_is_no_evidence_of_hardware_under_another_name(park: MachinePark) -> None:
    """The bytes that the module signed are of the same form as an AWS enclave's."""
    evidence = park.evidence(MACHINE)
    with pytest.raises(EvidenceMalformed):
        as_kind(evidence, "test-nitro", "nitro")
    renamed = as_kind(evidence, "nitro", "nitro")
    with pytest.raises(EvidenceRefused) as caught:
        judge(renamed, preset("nitro"))
    assert caught.value.code == "simulated-evidence"
    with pytest.raises(PlatformMismatch):
        judge(as_kind(evidence, "nitro", "simulator"), park.pin(MACHINE))
    with pytest.raises(PlatformMismatch):
        judge(renamed, park.pin(MACHINE))


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_no_policy_for_hardware_takes_it(park: MachinePark, name: str) -> None:
    with pytest.raises(EvidenceRefused):
        judge(park.evidence(MACHINE), preset(name))


@pytest.mark.parametrize("root", ["intel", "amd", "aws", "test", "simulator"])
@pytest.mark.parametrize("platform", ["simulator", "nitro"])
def test_no_policy_can_ask_for_it_under_a_vendor(
    park: MachinePark, root: str, platform: str
) -> None:
    policy = park.pin(MACHINE).to_dict()
    with pytest.raises(TrustInvalid):
        policy_from_dict({**policy, "root": root, "platform": platform})
    assert tee_of("test-nitro").rules.presets == {}
