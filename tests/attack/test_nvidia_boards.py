"""Whoever runs the machine shows a part of a board, or devices of two: what devices sign says so.

The attacker holds every device's key, chooses what the driver says and knows the policy, which
counts as many devices as are shown. Files of NVIDIA's own tools meet the same comparisons.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from gpu_world import (
    NONCE,
    NOW,
    Parts,
    captured,
    judged_by,
    machine,
    nvat_file,
    resigned,
    showing,
)

from sealtrain.attest.bundle import Attachments
from sealtrain.attest.errors import GpuModeRefused, GpuNonceMismatch, GpuSetRefused
from sealtrain.attest.exhibits import recognise
from sealtrain.attest.explain.examine import Examined, examine, make_bundle, unwrap_bundle
from sealtrain.attest.explain.explanation import explain
from sealtrain.attest.nvidia.parse import GpuDevice, GpuEvidence
from sealtrain.attest.nvidia.spdm import OpaqueField
from sealtrain.attest.nvidia.verify import VerifiedGpus
from sealtrain.attest.presets import insecure_simulator_policy
from sealtrain.errors import EvidenceRefused
from sealtrain_rehearsal.simulator.gpu import SimulatedGpus
from sealtrain_rehearsal.simulator.gpu_pki import SimulatedDevice
from sealtrain_rehearsal.simulator.pki import SimulatedPki

pytestmark = pytest.mark.claim("C115")

GPUS = machine()
EVIDENCE = GPUS.evidence(NONCE)
GPU_PLACES, SWITCH_PLACES = range(4), range(4, 6)
DEVICES = (*GPUS.gpu_devices, *GPUS.switch_devices)
CPU_ROOT = SimulatedPki(b"a processor that nobody asks").root_der


def judged(evidence: GpuEvidence, **changes: Any) -> VerifiedGpus:
    fields: dict[str, Any] = {"reference_values": "any", **changes}
    return judged_by(GPUS, evidence, None, **fields)


def examined(
    devices: tuple[GpuDevice, ...], beside: Attachments | None = None, **changes: Any
) -> Examined:
    """A file of NVIDIA's tools under the machine's policy."""
    rules = GPUS.policy(**{"reference_values": "any", **changes})
    policy = insecure_simulator_policy(CPU_ROOT, gpu=rules)
    return examine(recognise(nvat_file(devices)), beside or Attachments(), policy, NOW)


def told(at: int, change: Callable[[Parts], Parts]) -> GpuEvidence:
    return resigned(EVIDENCE, at, DEVICES[at], change)


def parts_of_the_board() -> list[tuple[int, ...]]:
    """Every choice of devices with at least one GPU, but the whole."""
    chosen = [
        (*gpus, *switches)
        for many in range(1, 5)
        for gpus in combinations(GPU_PLACES, many)
        for few in range(3)
        for switches in combinations(SWITCH_PLACES, few)
    ]
    return [places for places in chosen if len(places) < len(DEVICES)]


@pytest.mark.negative(45)
@pytest.mark.parametrize("count", ["alike", "any"])
def test_a_part_of_a_board_is_refused_though_driver_and_policy_count_alike(count: str) -> None:
    assert judged(EVIDENCE).mode == "protected_pcie"
    for places in parts_of_the_board():
        shown = showing(EVIDENCE, *places)
        switches: int | str = sum(place in SWITCH_PLACES for place in places)
        rules: dict[str, Any] = {"gpu_count": shown.claims.gpu_count}
        if count == "any" or switches == 0:
            switches = "any"
        with pytest.raises(GpuSetRefused):
            judged(shown, **rules, switch_count=switches)
        with pytest.raises(GpuSetRefused):
            examined(shown.devices, **rules, switch_count=switches)


@pytest.mark.negative(48)
def test_a_gpu_that_the_switches_do_not_name_is_refused() -> None:
    """It names this board's switches under its own key; the switches name another."""
    stranger = SimulatedGpus(b"a simulated machine with GPUs", count=5, mode="mpt")
    device = stranger.gpu_devices[4]
    honest = EVIDENCE.devices[3]
    swapped = GpuDevice.build("HOPPER", honest.report_bytes, device.pem)
    shown = GpuEvidence.build(
        (*EVIDENCE.devices[:3], swapped, *EVIDENCE.devices[4:]), EVIDENCE.claims
    )
    own = resigned(shown, 3, device, lambda parts: parts.with_field(OpaqueField.FWID, device.fwid))
    for decide in (judged, lambda evidence: examined(evidence.devices)):
        with pytest.raises(GpuSetRefused) as refused:
            decide(own)
        assert refused.value.check == "NVSwitch topology"
        assert device.pdi.hex() in str(refused.value.expected)


@pytest.mark.negative(48)
@pytest.mark.parametrize(
    "named",
    [
        b"",
        bytes(64),
        b"".join(device.pdi for device in GPUS.gpu_devices[:3]).ljust(64, b"\0"),
        b"".join(device.pdi for device in GPUS.gpu_devices) + b"\x11" * 8 + bytes(24),
        b"".join(device.pdi[::-1] for device in GPUS.gpu_devices).ljust(64, b"\0"),
        # Behind the eighth stands a map of ports: it names nobody.
        bytes(64) + b"".join(device.pdi for device in GPUS.gpu_devices),
    ],
    ids=["empty", "zeros", "one less", "one more", "backwards", "behind the list"],
)
def test_a_switch_that_names_other_gpus_is_refused(named: bytes) -> None:
    evidence = told(5, lambda parts: parts.with_field(OpaqueField.GPU_PDIS, named))
    for decide in (judged, lambda evidence: examined(evidence.devices)):
        with pytest.raises(GpuSetRefused) as refused:
            decide(evidence)
        assert refused.value.check == "NVSwitch topology"


@pytest.mark.negative(48)
def test_a_switch_that_does_not_name_gpus_at_all_is_refused() -> None:
    with pytest.raises(GpuSetRefused):
        judged(told(4, lambda parts: parts.with_field(OpaqueField.GPU_PDIS, None)))


@pytest.mark.negative(48)
def test_a_switch_that_reports_another_identity_than_its_certificate_is_refused() -> None:
    """Otherwise a switch of anywhere could stand in for the one that GPUs name."""
    stranger = SimulatedGpus(
        b"a simulated machine with GPUs", count=4, switches=3, mode="protected_pcie"
    ).switch_devices[2]
    taken = GPUS.switch_devices[1]
    honest = EVIDENCE.devices[5]
    devices = (*EVIDENCE.devices[:5], GpuDevice.build("LS10", honest.report_bytes, stranger.pem))
    shown = GpuEvidence.build(devices, EVIDENCE.claims)
    posing = resigned(
        shown,
        5,
        stranger,
        lambda parts: parts.with_field(OpaqueField.FWID, stranger.fwid).with_field(
            OpaqueField.PDI, taken.pdi
        ),
    )
    with pytest.raises(GpuSetRefused) as refused:
        judged(posing)
    assert refused.value.got == taken.pdi.hex()
    assert refused.value.expected == stranger.pdi.hex()


@pytest.mark.negative(48)
def test_protected_gpus_that_name_no_switch_are_no_board() -> None:
    evidence = EVIDENCE
    for at in GPU_PLACES:
        evidence = resigned(
            evidence, at, DEVICES[at], lambda parts: parts.with_field(OpaqueField.PDI, bytes(144))
        )
    alone = showing(evidence, *GPU_PLACES)
    for changes in ({"switch_count": "any"}, {"switch_count": "any", "gpu_count": 4}):
        with pytest.raises(GpuSetRefused):
            judged(alone, **changes)
        with pytest.raises(GpuSetRefused):
            examined(alone.devices, **changes)


@pytest.mark.negative(45)
def test_captured_gpus_of_a_board_are_not_the_board(shared: Path) -> None:
    """Four of eight, without their switches: genuine, of one conversation, and a part."""
    from exhibit_world import gpu_rules

    from sealtrain.attest.policy import policy_from_dict

    for name, count in (("hopper_multi4_ppcie", 4), ("hopper_single_ppcie", 1)):
        for switches in ("any", 4):
            rules = gpu_rules(gpu_count=count, switch_count=switches, mode=["protected_pcie"])
            exhibit = recognise(nvat_file(captured(shared, name)))
            with pytest.raises(GpuSetRefused):
                examine(exhibit, Attachments(), policy_from_dict(rules), NOW)


# --- Files of NVIDIA's own tools ------------------------------------------------------------------


def test_a_whole_board_in_two_files_is_accepted_and_in_one_is_not() -> None:
    gpus, switches = EVIDENCE.devices[:4], EVIDENCE.devices[4:]
    found = examined(gpus, Attachments(switches=switches))
    names = {claim.name: claim for claim in found.submods["gpus"].claims}
    assert names["GPU topology"].outcome == names["NVSwitch topology"].outcome == "equal"
    assert names["GPU mode"].got == "protected_pcie"
    # What only a measured guest can say is nowhere said to hold.
    assert {
        names[name].outcome
        for name in ("GPU environment", "GPU confidential computing", "GPU developer tools")
    } == {"any"}
    with pytest.raises(GpuSetRefused):
        examined(gpus)
    with pytest.raises(GpuSetRefused):
        examined(switches)
    with pytest.raises(GpuSetRefused):
        examined(gpus, Attachments(switches=switches[:1]))


def test_files_without_a_guest_are_not_called_verified_without_a_word() -> None:
    hardware = replace(
        examined(EVIDENCE.devices, Attachments(nonce=NONCE)), simulated=False
    )  # the simulator's own label says more
    assert "no guest vouches" in hardware.label


@pytest.mark.negative(43)
def test_reports_of_two_conversations_are_not_one_machine() -> None:
    other = GPUS.evidence(bytes(32))
    for at in range(len(DEVICES)):
        devices = list(EVIDENCE.devices)
        devices[at] = other.devices[at]
        with pytest.raises(GpuNonceMismatch):
            examined(tuple(devices))
    gpus, switches = EVIDENCE.devices[:4], other.devices[4:]
    with pytest.raises(GpuNonceMismatch):
        examined(gpus, Attachments(switches=switches))


@pytest.mark.negative(46)
@pytest.mark.parametrize(
    ("status", "flag", "mode", "accepted"),
    [
        (b"\x55", b"\x01\x00", "mpt", True),
        (b"\x55", b"\x00\x00", "single", True),
        (None, None, "single", True),
        (b"\x55", b"\x01\x00", "single", False),
        (b"\x55", b"\x00\x00", "mpt", False),
        # Status and flag disagree: no mode at all, whatever is accepted.
        (b"\xaa", b"\x00\x00", None, False),
        (b"\xaa", b"\x01\x00", None, False),
        (b"\x55", b"\x02\x00", None, False),
        (None, b"\x02\x00", None, False),
    ],
)
def test_the_mode_is_read_from_what_gpus_sign(
    status: bytes | None, flag: bytes | None, mode: str | None, accepted: bool
) -> None:
    alone = SimulatedGpus(b"one GPU and what it signs", count=1)
    evidence = resigned(
        alone.evidence(NONCE),
        0,
        alone.gpu_devices[0],
        lambda parts: parts.with_field(OpaqueField.PROTECTED_PCIE, status).with_field(
            OpaqueField.FEATURE_FLAG, flag
        ),
    )
    modes = ["single", "mpt", "protected_pcie"] if mode is None else [mode]
    rules = alone.policy(reference_values="any", mode=modes, switch_count="any")
    policy = insecure_simulator_policy(CPU_ROOT, gpu=rules)
    exhibit = recognise(nvat_file(evidence.devices))
    if accepted:
        assert examine(exhibit, Attachments(), policy, NOW).submods["gpus"].claims
        return
    with pytest.raises(GpuModeRefused):
        examine(exhibit, Attachments(), policy, NOW)


@pytest.mark.negative(46)
def test_several_gpus_that_say_nothing_of_how_they_talk_are_refused_from_a_file() -> None:
    mpt = SimulatedGpus(b"two GPUs with an old driver", count=2, mode="mpt")
    evidence = mpt.evidence(NONCE)
    for at in (0, 1):
        device: SimulatedDevice = mpt.gpu_devices[at]
        evidence = resigned(
            evidence, at, device, lambda parts: parts.with_field(OpaqueField.FEATURE_FLAG, None)
        )
    rules = mpt.policy(reference_values="any", mode=["single", "mpt"])
    policy = insecure_simulator_policy(CPU_ROOT, gpu=rules)
    with pytest.raises(GpuModeRefused):
        examine(recognise(nvat_file(evidence.devices)), Attachments(), policy, NOW)


def test_one_report_by_itself_meets_the_same_comparisons() -> None:
    gpu, *others = EVIDENCE.devices
    chain = tuple(
        certificate.public_bytes(Encoding.DER)
        for certificate in x509.load_pem_x509_certificates(gpu.certificate_chain.encode())
    )
    policy = insecure_simulator_policy(
        CPU_ROOT, gpu=GPUS.policy(reference_values="any", gpu_count=1, switch_count="any")
    )
    report = recognise(gpu.report_bytes)
    for switches in ((), tuple(others[3:])):
        with pytest.raises(GpuSetRefused):
            examine(report, Attachments(certificates=chain, switches=switches), policy, NOW)


def test_an_explanation_shows_what_the_decision_refuses() -> None:
    policy = insecure_simulator_policy(
        CPU_ROOT, gpu=GPUS.policy(reference_values="any", switch_count="any")
    )
    gpus, switches = EVIDENCE.devices[:4], EVIDENCE.devices[4:]
    whole = explain(recognise(nvat_file(gpus)), Attachments(switches=switches), policy, NOW)
    assert not [line for line in whole.lines if line.standing == "broken"]
    part = explain(recognise(nvat_file(gpus)), Attachments(), policy, NOW)
    assert {line.code for line in part.lines if line.standing == "broken"} == {"gpu-set-refused"}


def test_a_bundle_keeps_both_files() -> None:
    gpus, switches = EVIDENCE.devices[:4], EVIDENCE.devices[4:]
    policy = insecure_simulator_policy(CPU_ROOT, gpu=GPUS.policy(reference_values="any"))
    beside = Attachments(nonce=NONCE, switches=switches)
    made = make_bundle(recognise(nvat_file(gpus)), beside, policy, NOW)
    inner, kept = unwrap_bundle(recognise(made.to_bytes()), Attachments())
    assert kept.switches == switches
    assert examine(inner, kept, policy, NOW).bound
    lost = recognise(made.model_copy(update={"switches": ()}).to_bytes())
    with pytest.raises(EvidenceRefused):
        examine(*unwrap_bundle(lost, Attachments()), policy, NOW)
