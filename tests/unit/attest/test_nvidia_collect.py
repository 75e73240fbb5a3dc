"""Collecting through NVML: the binding's shapes, real SPDM bytes, and what a driver may answer."""

from __future__ import annotations

import ctypes
import inspect
import sys
from typing import Any

import pytest
from carrying import carries
from gpu_world import NONCE, NOW, judged_by

from sealtrain.attest.errors import (
    EvidenceMalformed,
    GpuModeRefused,
    GpuReportInvalid,
    GuestApiUnreachable,
)
from sealtrain.attest.nvidia.collect import Nvml, collect_gpus, confidential_mode, open_nvml
from sealtrain.attest.nvidia.parse import GpuDevice
from sealtrain.errors import ExtraMissing
from sealtrain_rehearsal.simulator.gpu import DRIVER_VERSION, SimulatedGpus
from sealtrain_rehearsal.simulator.gpu_collateral import simulate_collateral

pynvml = pytest.importorskip("pynvml", reason="needs nvidia-ml-py (the extra train)")

SEED = b"simulated GPUs behind a driver"


class Driver:
    """Simulated GPUs behind NVML's functions: its structures, its way of returning."""

    NVMLError = pynvml.NVMLError
    c_nvmlSystemConfComputeSettings_v1_t = pynvml.c_nvmlSystemConfComputeSettings_v1_t

    def __init__(self, gpus: SimulatedGpus) -> None:
        self.gpus = gpus
        self.code = pynvml.NVML_SUCCESS
        self.settings = {"environment": 2, "ccFeature": 1, "devToolsMode": 0, "multiGpuMode": 0}
        self.architecture = pynvml.NVML_DEVICE_ARCH_HOPPER
        self.version = DRIVER_VERSION
        self.tail = b""
        self.answered = lambda nonce: nonce
        self.fails: Exception | None = None

    def nvmlInit(self) -> None:
        """Nothing to open."""

    def nvmlShutdown(self) -> None:
        """Nothing to close."""

    def nvmlSystemGetDriverVersion(self) -> str:
        return self.version

    def nvmlSystemGetConfComputeSettings(self, settings: Any) -> int:
        # Only what ``byref`` makes has an object behind it; NVML writes through the pointer.
        assert isinstance(settings._obj, self.c_nvmlSystemConfComputeSettings_v1_t)
        assert settings._obj.version == pynvml.nvmlSystemConfComputeSettings_v1
        if self.code == pynvml.NVML_SUCCESS:
            for name, value in self.settings.items():
                setattr(settings._obj, name, value)
        return self.code

    def nvmlDeviceGetCount(self) -> int:
        if self.fails is not None:
            raise self.fails
        return self.gpus.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetArchitecture(self, device: int) -> int:
        return self.architecture

    def nvmlDeviceGetConfComputeGpuAttestationReport(self, device: int, c_nonce: bytes) -> Any:
        found = pynvml.c_nvmlConfComputeGpuAttestationReport_t()
        found.nonce = (ctypes.c_uint8 * len(c_nonce))(*c_nonce)
        nonce = self.answered(bytes(found.nonce))
        data = self.gpus.evidence(nonce).devices[device].report_bytes + self.tail
        ctypes.memmove(found.attestationReport, data, len(data))
        found.attestationReportSize = len(data)
        return found

    def nvmlDeviceGetConfComputeGpuCertificate(self, device: int) -> Any:
        found = pynvml.c_nvmlConfComputeGpuCertificate_t()
        data = self.gpus.gpu_devices[device].pem + b"\0"
        ctypes.memmove(found.attestationCertChain, data, len(data))
        found.attestationCertChainSize = len(data)
        return found


@pytest.fixture
def driver() -> Driver:
    return Driver(SimulatedGpus(SEED))


def functions() -> list[str]:
    return [name for name in vars(Nvml) if name.startswith("nvml")]


@pytest.mark.parametrize("name", functions())
def test_the_binding_has_every_function_that_is_called(name: str) -> None:
    theirs = inspect.signature(getattr(pynvml, name)).parameters
    ours = list(inspect.signature(getattr(Nvml, name)).parameters)[1:]
    doubles = list(inspect.signature(getattr(Driver, name)).parameters)[1:]
    # Some of the binding's functions are wrapped, and show (*args) instead of their parameters.
    if not any(their.kind is inspect.Parameter.VAR_POSITIONAL for their in theirs.values()):
        assert len(theirs) == len(ours)
    assert ours == doubles


def test_codes_of_the_binding_are_those_that_are_read() -> None:
    assert (pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_SUPPORTED) == (0, 3)
    assert (pynvml.NVML_DEVICE_ARCH_HOPPER, pynvml.NVML_DEVICE_ARCH_BLACKWELL) == (9, 10)
    assert pynvml.NVML_CC_SYSTEM_ENVIRONMENT_PROD == 2
    assert pynvml.NVML_CC_SYSTEM_MULTIGPU_PROTECTED_PCIE == 1
    assert pynvml.NVML_CC_SYSTEM_MULTIGPU_NVLE == 2
    assert len(NONCE) == pynvml.NVML_CC_GPU_CEC_NONCE_SIZE


def test_collected_evidence_verifies(driver: Driver) -> None:
    evidence = collect_gpus(driver, NONCE)
    gpus = driver.gpus
    found = judged_by(gpus, evidence, simulate_collateral(gpus, NOW), revocation="require")
    assert list(found.devices) == ["gpu0"]
    assert found.gpu_claims.driver_version == DRIVER_VERSION
    assert evidence == gpus.evidence(NONCE)


def test_a_machine_with_switches_takes_their_reports_along() -> None:
    gpus = SimulatedGpus(SEED, count=2, switches=1, mode="protected_pcie")
    driver = Driver(gpus)
    driver.settings["multiGpuMode"] = 1

    def switches(nonce: bytes) -> list[GpuDevice]:
        return [device for device in gpus.evidence(nonce).devices if device.kind == "switch"]

    evidence = collect_gpus(driver, NONCE, switches=switches)
    assert [device.kind for device in evidence.devices] == ["gpu", "gpu", "switch"]
    found = judged_by(gpus, evidence, simulate_collateral(gpus, NOW))
    assert found.mode == "protected_pcie"


def test_what_a_driver_appends_to_a_report_is_cut(driver: Driver) -> None:
    driver.tail = b"\0"
    assert collect_gpus(driver, NONCE) == driver.gpus.evidence(NONCE)


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"environment": 0}, "environment", "UNAVAILABLE"),
        ({"environment": 1}, "environment", "SIM"),
        ({"ccFeature": 0}, "cc_feature", False),
        ({"devToolsMode": 1}, "dev_tools", True),
        ({"multiGpuMode": 2}, "multi_gpu_mode", "nvle"),
    ],
)
@pytest.mark.negative(47)
def test_the_mode_is_told_as_it_is_and_a_bad_one_refused(
    driver: Driver, changes: dict[str, int], field: str, value: Any
) -> None:
    driver.settings.update(changes)
    evidence = collect_gpus(driver, NONCE)
    assert getattr(evidence.claims, field) == value
    gpus = driver.gpus
    with pytest.raises(GpuModeRefused):
        judged_by(gpus, evidence, None, reference_values="any")


def test_a_machine_without_confidential_computing_says_so(driver: Driver) -> None:
    driver.code = pynvml.NVML_ERROR_NOT_SUPPORTED
    claims = confidential_mode(driver)
    assert (claims.environment, claims.cc_feature) == ("UNAVAILABLE", False)


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_UNINITIALIZED])
def test_an_error_code_that_the_binding_passes_over_is_seen(driver: Driver, code: int) -> None:
    driver.code = code
    with pytest.raises(GuestApiUnreachable, match=f"NVML error {code}"):
        confidential_mode(driver)


@pytest.mark.parametrize("name", ["environment", "ccFeature", "devToolsMode", "multiGpuMode"])
def test_an_unknown_word_is_not_guessed_at(driver: Driver, name: str) -> None:
    driver.settings[name] = 7
    with pytest.raises(EvidenceMalformed, match=name):
        confidential_mode(driver)


def test_a_driver_that_fails_is_named(driver: Driver) -> None:
    driver.fails = pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
    with pytest.raises(GuestApiUnreachable, check=carries(check="GPU driver", got="GPU is lost")):
        collect_gpus(driver, NONCE)


@pytest.mark.parametrize("version", ["", "a" * 100, "580 95"])
def test_a_malformed_version_is_refused(driver: Driver, version: str) -> None:
    driver.version = version
    with pytest.raises(EvidenceMalformed):
        confidential_mode(driver)


def test_a_family_without_reports_is_named(driver: Driver) -> None:
    driver.architecture = pynvml.NVML_DEVICE_ARCH_AMPERE
    with pytest.raises(
        EvidenceMalformed, check=carries(check="GPU driver", expected="HOPPER or BLACKWELL")
    ):
        collect_gpus(driver, NONCE)


def test_a_report_for_another_nonce_is_not_passed_on(driver: Driver) -> None:
    driver.answered = lambda nonce: bytes(32)
    with pytest.raises(GpuReportInvalid, check=carries(check="GPU driver")):
        collect_gpus(driver, NONCE)


@pytest.mark.parametrize("size", [0, 1 << 20])
def test_a_length_beyond_the_structure_is_refused(
    driver: Driver, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = driver.nvmlDeviceGetConfComputeGpuAttestationReport

    def lying(device: int, c_nonce: bytes) -> Any:
        found = whole(device, c_nonce)
        found.attestationReportSize = size
        return found

    monkeypatch.setattr(driver, "nvmlDeviceGetConfComputeGpuAttestationReport", lying)
    with pytest.raises(EvidenceMalformed, check=carries(check="GPU driver")):
        collect_gpus(driver, NONCE)


@pytest.mark.parametrize("nonce", [b"", NONCE[:-1], NONCE + b"\0"])
def test_a_nonce_of_another_length_is_refused(driver: Driver, nonce: bytes) -> None:
    with pytest.raises(EvidenceMalformed, check=carries(expected="32")):
        collect_gpus(driver, nonce)


def test_without_the_binding_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(ExtraMissing), open_nvml():
        raise AssertionError("opened a driver that is not there")


def test_without_a_driver_the_reason_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", absent)
    with (
        pytest.raises(
            GuestApiUnreachable,
            check=carries(check="GPU driver", got="NVML Shared Library Not Found"),
        ),
        open_nvml(),
    ):
        raise AssertionError("opened a driver that is not there")


def test_a_device_file_of_a_switch_is_what_collect_takes(driver: Driver) -> None:
    gpus = SimulatedGpus(SEED, count=1, switches=1, mode="protected_pcie")
    [switch] = [device for device in gpus.evidence(NONCE).devices if device.kind == "switch"]
    rebuilt = GpuDevice.build("LS10", switch.report_bytes, switch.certificate_chain.encode())
    driver.settings["multiGpuMode"] = 1
    assert collect_gpus(driver, NONCE, switches=lambda _nonce: [rebuilt]).devices[1] == switch
