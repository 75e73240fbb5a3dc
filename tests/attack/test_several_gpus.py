"""GPUs of one guest say how they protect what they say to each other, or are refused."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from carrying import carries
from gpu_world import (
    NONCE,
    captured,
    claiming,
    claims,
    hardware_policy_fields,
    judged_by,
    resigned,
)
from public_evidence import FILES, devices_in, published

from sealtrain.attest.errors import GpuModeRefused, GpuReportInvalid, GpuSetRefused
from sealtrain.attest.nvidia.parse import GpuDevice, GpuEvidence
from sealtrain.attest.nvidia.policy import NvidiaPolicy
from sealtrain.attest.nvidia.spdm import FeatureFlag, parse_report
from sealtrain.attest.nvidia.verify import VerifiedGpus, verify_gpus
from sealtrain.base.models import load_model
from sealtrain.errors import TrustInvalid
from sealtrain_rehearsal.simulator.gpu import SimulatedGpus

pytestmark = pytest.mark.claim("C40")

B200 = "eight B200 that encrypt NVLink"
H100 = "one H100 passed through alone"
IN_TIME = 1_779_999_999
FLAG = 36


def judged(devices: tuple[GpuDevice, ...], told: dict[str, Any], **rules: Any) -> VerifiedGpus:
    evidence = GpuEvidence.build(devices, claims(**told))
    fields = hardware_policy_fields(**rules)
    policy = load_model(NvidiaPolicy, fields, TrustInvalid, "policy")
    nonce = devices[0].report_bytes[4:36]
    return verify_gpus(evidence, policy, None, nonce=nonce, simulator_root=None, now=IN_TIME)


@pytest.fixture(scope="module")
def eight() -> tuple[GpuDevice, ...]:
    return devices_in(published(B200))


BOARD = {"gpu_count": 8, "driver_version": FILES[B200]["driver_version"]}
RULES = {"gpu_count": 8, "mode": ["mpt"], "architectures": ["BLACKWELL"]}


@pytest.mark.parametrize("driver", ["none", "nvle"])
def test_eight_genuine_b200_are_in_the_mode_that_encrypts(
    eight: tuple[GpuDevice, ...], driver: str
) -> None:
    flags = {parse_report(device.report_bytes).feature_flag for device in eight}
    assert flags == {FeatureFlag.MPT} == {FeatureFlag(FILES[B200]["feature_flag"])}
    found = judged(eight, BOARD | {"multi_gpu_mode": driver}, **RULES)
    assert (found.mode, len(found.devices), found.simulated) == ("mpt", 8, False)


def test_eight_genuine_b200_pass_for_nothing_else(eight: tuple[GpuDevice, ...]) -> None:
    for mode in (["single"], ["protected_pcie"]):
        with pytest.raises(GpuModeRefused):
            judged(
                eight,
                BOARD | {"multi_gpu_mode": "none"},
                **RULES | {"mode": mode, "switch_count": "any"},
            )
    with pytest.raises(GpuModeRefused):
        judged(eight, BOARD | {"multi_gpu_mode": "protected_pcie"}, **RULES)
    with pytest.raises(GpuSetRefused):
        judged(eight[:7], BOARD, **RULES)
    with pytest.raises(GpuSetRefused):
        judged((*eight[:7], eight[0]), BOARD, **RULES)


def test_no_bit_of_the_flag_can_be_another(eight: tuple[GpuDevice, ...]) -> None:
    raw = eight[0].report_bytes
    at = raw.index(struct.pack("<HHH", FLAG, 2, 1)) + 4
    for bit in range(8):
        altered = bytearray(raw)
        altered[at] ^= 1 << bit
        changed = GpuDevice.build("BLACKWELL", bytes(altered), eight[0].certificate_chain.encode())
        with pytest.raises((GpuReportInvalid, GpuModeRefused)):
            judged((changed, *eight[1:]), BOARD, **RULES)


def test_a_genuine_h100_alone_is_in_the_mode_of_one(shared: Any) -> None:
    (device,) = captured(shared, "hopper_580_mpt")
    assert parse_report(device.report_bytes).feature_flag == FILES[H100]["feature_flag"] == 0
    told = {"driver_version": FILES[H100]["driver_version"]}
    assert judged((device,), told, mode=["single"]).mode == FILES[H100]["mode"]
    with pytest.raises(GpuModeRefused):
        judged((device,), told | {"multi_gpu_mode": "nvle"}, mode=["single", "mpt"])
    with pytest.raises(GpuModeRefused):
        judged((device,), told, mode=["mpt", "protected_pcie"])


@pytest.mark.negative(46)
@pytest.mark.parametrize("driver", ["none", "nvle", "protected_pcie"])
def test_gpus_that_are_passed_through_alone_are_no_set(driver: str) -> None:
    """Flag 0 of several GPUs: whatever the driver says, their links are in clear."""
    gpus = SimulatedGpus(b"two GPUs, each passed on alone", count=2, mode="mpt")
    evidence = claiming(gpus.evidence(NONCE), multi_gpu_mode=driver)
    for at, device in enumerate(gpus.gpu_devices):
        evidence = resigned(
            evidence, at, device, lambda parts: parts.with_field(FLAG, struct.pack("<H", 0))
        )
    flags = {parse_report(device.report_bytes).feature_flag for device in evidence.devices}
    assert flags == {FeatureFlag.SPT}
    modes = ["single", "mpt", "protected_pcie"]
    with pytest.raises(GpuModeRefused, check=carries(check="GPU mode")):
        judged_by(gpus, evidence, None, mode=modes, switch_count="any", reference_values="any")
