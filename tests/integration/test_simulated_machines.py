"""Every machine the simulator plays, from its socket to a verdict, and what is exchanged behind it.

``test_simulated_lies`` has every lie that a machine can tell by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from machines_world import ASKED, BARE, ELSEWHERE, MACHINES, NOW, MachinePark, judge

from sealtrain.attest.errors import (
    GpuModeRefused,
    GpuNonceMismatch,
    GpuSetRefused,
    PlatformMismatch,
    ReportDataMismatch,
    SimulatedEvidence,
)
from sealtrain.attest.evidence import Evidence
from sealtrain.attest.policy import policy_from_dict
from sealtrain.attest.presets import PRESETS, preset
from sealtrain.attest.report_data import Binding
from sealtrain.attest.verify import verify
from sealtrain.errors import SealtrainError

pytestmark = pytest.mark.long

LARGE = MACHINES["dstack-8-gpus-4-switches"]
TWO = MACHINES["dstack-2-gpus"]


@pytest.fixture(scope="module")
def park(tmp_path_factory: pytest.TempPathFactory) -> MachinePark:
    return MachinePark(tmp_path_factory.mktemp("park"))


# --- Truth --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MACHINES)
def test_an_honest_machine_is_accepted(park: MachinePark, name: str) -> None:
    machine = MACHINES[name]
    verdict = judge(park.evidence(machine), park.pin(machine))
    accelerators = ["gpus"] if machine.gpus else []
    accelerators += [f"gpu{number}" for number in range(machine.gpus)]
    accelerators += [f"switch{number}" for number in range(machine.switches)]
    assert list(verdict.submods) == ["cpu0", *accelerators]
    assert all(submod.claims for submod in verdict.submods.values())
    assert verdict.simulated
    assert "SIMULATED" in verdict.label
    assert all(
        verdict.submods[submod].eat["ueid"] for submod in verdict.submods if submod != "gpus"
    )


@pytest.mark.parametrize("name", MACHINES)
def test_another_conversation_gets_nothing_from_it(park: MachinePark, name: str) -> None:
    machine = MACHINES[name]
    policy = park.trust(machine)
    refusal = GpuNonceMismatch if machine.gpus else ReportDataMismatch
    for other in (Binding("renewal", ASKED.transcript), ELSEWHERE):
        with pytest.raises(refusal) as caught:
            judge(park.evidence(machine), policy, other)
        assert type(caught.value) is refusal


@pytest.mark.parametrize("name", MACHINES)
def test_no_policy_for_hardware_accepts_it(park: MachinePark, name: str) -> None:
    for hardware in PRESETS:
        with pytest.raises(SimulatedEvidence):
            judge(park.evidence(MACHINES[name]), preset(hardware))


def test_a_policy_for_one_simulated_tee_refuses_the_others(park: MachinePark) -> None:
    for trusted in BARE:
        policy = park.trust(MACHINES[trusted])
        for shown in BARE:
            if shown != trusted:
                with pytest.raises(PlatformMismatch):
                    judge(park.evidence(MACHINES[shown]), policy)


# --- Accelerators exchanged behind the quote ------------------------------------------------------


def with_gpus(evidence: Evidence, change: Callable[[dict[str, Any]], None]) -> Evidence:
    """The evidence with its accelerators' part changed after the quote was made."""
    document: Any = evidence.to_dict()
    change(document["gpu"])
    return Evidence.from_dict(document)


@pytest.mark.negative(45)
def test_every_device_left_out_is_missed(park: MachinePark) -> None:
    policy, whole = park.trust(LARGE), park.evidence(LARGE)
    for left_out in range(12):
        shown = with_gpus(whole, lambda gpu, at=left_out: gpu["devices"].pop(at))  # type: ignore[misc]
        with pytest.raises(GpuSetRefused):
            judge(shown, policy)


@pytest.mark.negative(6)
@pytest.mark.negative(45)
def test_a_gpu_left_out_with_a_count_and_policy_to_match_is_missed_by_the_quote(
    park: MachinePark,
) -> None:
    def leave_out(gpu: dict[str, Any]) -> None:
        gpu["devices"].pop()
        gpu["claims"]["gpu_count"] = 1

    document: Any = park.trust(TWO).to_dict()
    document["gpu"]["gpu_count"] = 1
    with pytest.raises(ReportDataMismatch):
        judge(with_gpus(park.evidence(TWO), leave_out), policy_from_dict(document))


@pytest.mark.negative(44)
def test_accelerators_of_another_conversation_are_refused(park: MachinePark) -> None:
    other = park.evidence(TWO, ELSEWHERE)
    spliced = park.evidence(TWO).model_copy(update={"gpu": other.gpu})
    with pytest.raises(GpuNonceMismatch):
        judge(spliced, park.trust(TWO))


@pytest.mark.negative(44)
def test_accelerators_of_another_machine_are_refused_in_the_same_conversation(
    park: MachinePark, tmp_path: Path
) -> None:
    elsewhere = MachinePark(tmp_path)
    other = elsewhere.evidence(TWO)
    mine: Any = park.trust(TWO).to_dict()
    theirs: Any = elsewhere.trust(TWO).to_dict()
    both = policy_from_dict({**mine, "gpu": theirs["gpu"]})
    spliced = park.evidence(TWO).model_copy(
        update={"gpu": other.gpu, "gpu_collateral": other.gpu_collateral}
    )
    # Each half is genuine, and made for this conversation.
    facts = verify(spliced, both, NOW, binding=ASKED)
    assert facts.gpus is not None
    with pytest.raises(ReportDataMismatch):
        judge(spliced, both)


@pytest.mark.negative(6)
@pytest.mark.negative(47)
@pytest.mark.parametrize(
    ("name", "claim", "value", "refusal"),
    [
        ("dstack-2-gpus", "environment", "SIM", GpuModeRefused),
        ("dstack-2-gpus", "cc_feature", False, GpuModeRefused),
        ("dstack-2-gpus", "dev_tools", True, GpuModeRefused),
        ("dstack-2-gpus", "multi_gpu_mode", "protected_pcie", GpuModeRefused),
        ("dstack-2-gpus", "gpu_count", 3, GpuSetRefused),
        # Nothing else speaks against it: only the quote can tell.
        ("dstack-2-gpus", "multi_gpu_mode", "nvle", ReportDataMismatch),
    ],
)
def test_a_claim_of_the_driver_changed_after_the_quote_is_refused(
    park: MachinePark,
    name: str,
    claim: str,
    value: Any,
    refusal: type[SealtrainError],
) -> None:
    whole = park.evidence(MACHINES[name])
    shown = with_gpus(whole, lambda gpu: gpu["claims"].update({claim: value}))
    assert shown != whole
    with pytest.raises(refusal) as caught:
        judge(shown, park.trust(MACHINES[name]))
    assert type(caught.value) is refusal


def test_accelerators_taken_away_after_the_quote_are_missed(park: MachinePark) -> None:
    bare = park.evidence(TWO).model_copy(update={"gpu": None, "gpu_collateral": None})
    with pytest.raises(GpuSetRefused):
        judge(bare, park.trust(TWO))
    with pytest.raises(ReportDataMismatch):
        judge(bare, park.trust(MACHINES["dstack"]))
