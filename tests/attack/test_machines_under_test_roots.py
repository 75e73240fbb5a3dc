"""A TPM under a test root is taken by a policy that names this root, and by nothing else.

The attacker runs any machine whose TPM's key a test root certified, holds each quote that such a
machine made, and boots other images and documents. They do not hold a key below the root that the
policy names.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from machines_world import ELSEWHERE, LIES, MACHINES, Lie, MachinePark, judge

from sealtrain.attest.errors import MeasurementMismatch, ReportDataMismatch
from sealtrain.attest.policy import AppraisalPolicy, policy_from_dict
from sealtrain.attest.presets import PRESETS, preset
from sealtrain.attest.registry import tee_of
from sealtrain.errors import EvidenceRefused, TrustInvalid

pytestmark = pytest.mark.claim("C664")
MACHINE = MACHINES["test-vtpm"]
OWN_LIES = [lie for lie in LIES if lie.name == "test-vtpm"]


@pytest.fixture(scope="module")
def park(tmp_path_factory: pytest.TempPathFactory) -> MachinePark:
    return MachinePark(tmp_path_factory.mktemp("vtpm"))


def with_boots(policy: AppraisalPolicy, boots: list[dict[str, str]]) -> AppraisalPolicy:
    document = policy.to_dict()
    return policy_from_dict({**document, "cpu": {**document["cpu"], "boots": boots}})  # type: ignore[dict-item]


def test_it_is_taken_under_the_root_that_the_policy_names(park: MachinePark) -> None:
    verdict = judge(park.evidence(MACHINE), park.pin(MACHINE))
    assert verdict.simulated
    assert verdict.tier == "cloud"


@pytest.mark.parametrize("lie", OWN_LIES, ids=str)
def test_each_lie_is_refused_by_its_own_code(park: MachinePark, lie: Lie) -> None:
    with pytest.raises(EvidenceRefused) as caught:
        judge(park.evidence(lie.machine), park.pin(replace(lie.machine, fault=None)))
    assert caught.value.code == lie.code


def test_a_quote_of_another_conversation_is_refused(park: MachinePark) -> None:
    with pytest.raises(ReportDataMismatch):
        judge(park.evidence(MACHINE, ELSEWHERE), park.pin(MACHINE))


def test_a_policy_without_boots_takes_none(park: MachinePark) -> None:
    with pytest.raises(MeasurementMismatch):
        judge(park.evidence(MACHINE), with_boots(park.pin(MACHINE), []))
    for never in ("pcr4", "pcr7"):
        boot = dict.fromkeys(("pcr8", "pcr9", "pcr11", "pcr12", "pcr4", "pcr7"), "11" * 32)
        with pytest.raises(TrustInvalid):
            with_boots(park.pin(MACHINE), [{**boot, never: "00" * 32}])


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_no_policy_for_hardware_takes_it(park: MachinePark, name: str) -> None:
    with pytest.raises(EvidenceRefused):
        judge(park.evidence(MACHINE), preset(name))


@pytest.mark.parametrize("root", ["intel", "amd", "aws", "test", "simulator"])
@pytest.mark.parametrize("platform", ["simulator", "tdx", "snp"])
def test_no_policy_can_ask_for_it_under_a_vendor(
    park: MachinePark, root: str, platform: str
) -> None:
    policy = park.pin(MACHINE).to_dict()
    with pytest.raises(TrustInvalid):
        policy_from_dict({**policy, "root": root, "platform": platform})
    assert tee_of("test-vtpm").rules.presets == {}
