"""Through which doors a guest is asked for evidence, and what a border has to leave open for it."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from gpu_world import NONCE
from nscq_world import FakeNscq

from sealtrain.attest import guest as guests
from sealtrain.attest.dstack.client import DstackClient
from sealtrain.attest.errors import GuestApiUnreachable
from sealtrain.attest.guest import open_guest
from sealtrain.attest.nvidia import nscq
from sealtrain.attest.report_data import Binding
from sealtrain.errors import UsageError
from sealtrain_rehearsal.simulator.gpu import DRIVER_VERSION, SimulatedGpus
from sealtrain_rehearsal.simulator.machine import Machine
from sealtrain_rehearsal.simulator.server import running

NOW = 1_800_000_000
ASKED = Binding("release", {"challenge": "first"})
BOARD = SimulatedGpus(b"a board behind drivers", count=8, switches=4, mode="protected_pcie")

pynvml = pytest.importorskip("pynvml", reason="needs nvidia-ml-py (the extra train)")


@pytest.mark.parametrize(
    ("platform", "form", "writable"),
    [
        ("tdx", "tdx:{reports}?compose={compose}", True),
        ("snp", "snp:{reports}?compose={compose}", True),
        ("snp", "snp:{reports}?compose={compose}&certificates={folder}", True),
        ("simulator", "tdx:{reports}?compose={compose}", True),
        ("snp", "snp:/dev/sev-guest?compose={compose}", False),
        ("nitro", "nitro:/dev/nsm?compose={compose}", False),
        ("tdx", "tdx:{folder}/absent?compose={compose}", False),
        ("dstack", "{folder}/dstack.sock", False),
    ],
)
def test_a_border_opens_the_reports_folder_and_nothing_else(
    tmp_path: Path, platform: Any, form: str, writable: bool
) -> None:
    reports, compose = tmp_path / "report", tmp_path / "app-compose.json"
    reports.mkdir()
    address = form.format(reports=reports, compose=compose, folder=tmp_path)
    found = open_guest(platform, address, collateral="file:collateral.json")
    assert found.writable == ((reports,) if writable else ())


@pytest.mark.parametrize("platform", ["dstack", "tdx", "nitro"])
def test_a_door_of_another_platform_is_refused(tmp_path: Path, platform: Any) -> None:
    with pytest.raises(UsageError):
        open_guest(platform, f"snp:{tmp_path}?compose=x", collateral="file:collateral.json")


class Module:
    """NVIDIA's binding over a simulated board: its names, structures and ways of returning."""

    NVMLError = pynvml.NVMLError
    c_nvmlSystemConfComputeSettings_v1_t = pynvml.c_nvmlSystemConfComputeSettings_v1_t

    def __init__(self) -> None:
        self.evidence = BOARD.evidence

    def nvmlInit(self) -> None:
        """Nothing to open."""

    def nvmlShutdown(self) -> None:
        """Nothing to close."""

    def nvmlSystemGetDriverVersion(self) -> str:
        return DRIVER_VERSION

    def nvmlSystemGetConfComputeSettings(self, settings: Any) -> int:
        settings._obj.environment, settings._obj.multiGpuMode = 2, 1
        return int(pynvml.NVML_SUCCESS)

    def nvmlDeviceGetCount(self) -> int:
        return BOARD.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetArchitecture(self, device: int) -> int:
        return int(pynvml.NVML_DEVICE_ARCH_HOPPER)

    def nvmlDeviceGetConfComputeGpuAttestationReport(self, device: int, c_nonce: bytes) -> Any:
        data = self.evidence(c_nonce).devices[device].report_bytes
        found = pynvml.c_nvmlConfComputeGpuAttestationReport_t()
        found.attestationReport[: len(data)] = data
        found.attestationReportSize = len(data)
        return found

    def nvmlDeviceGetConfComputeGpuCertificate(self, device: int) -> Any:
        data = self.evidence(NONCE).devices[device].certificate_chain.encode()
        found = pynvml.c_nvmlConfComputeGpuCertificate_t()
        found.attestationCertChain[: len(data)] = data
        found.attestationCertChainSize = len(data)
        return found


@pytest.fixture
def drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A guest with NVIDIA's driver and a board; where its control device of switches would be."""
    (tmp_path / "nvidiactl").touch()
    monkeypatch.setattr(guests, "GPU_DRIVER", tmp_path / "nvidiactl")
    monkeypatch.setattr(nscq, "CONTROL", tmp_path / "nvidia-nvswitchctl")
    monkeypatch.setitem(sys.modules, "pynvml", Module())
    return tmp_path / "nvidia-nvswitchctl"


def told(devices: Any) -> list[bytes]:
    """Devices without their signatures, which are random."""
    return [device.report_bytes[:-96] for device in devices]


def test_a_guest_that_sees_its_switches_asks_both_libraries(
    tmp_path: Path, drivers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drivers.touch()
    library = FakeNscq(tmp_path, BOARD)
    asked = partial(nscq.collect_switches, library=str(library.path))
    monkeypatch.setattr(nscq, "collect_switches", asked)
    found = open_guest("nitro", "nitro:/dev/nsm?compose=x", collateral=None).accelerators(NONCE)
    assert found is not None
    assert told(found.devices) == told(BOARD.evidence(NONCE).devices)
    assert found.claims == BOARD.evidence(NONCE).claims


def test_a_guest_that_sees_no_switches_says_that_the_board_is_not_whole(drivers: Path) -> None:
    guest = open_guest("nitro", "nitro:/dev/nsm?compose=x", collateral=None)
    with pytest.raises(GuestApiUnreachable):
        guest.accelerators(NONCE)


@pytest.mark.parametrize("old", [False, True])
def test_an_app_of_dstack_has_its_agent_ask(tmp_path: Path, drivers: Path, old: bool) -> None:
    """The mode is what the app's own driver says; an agent of 0.5 cannot ask."""
    (tmp_path / "app-compose.json").write_bytes(b"{}")
    machine = Machine(gpus=8, switches=4, emit_events=old)
    with running(
        tmp_path / "d.sock", tmp_path / "app-compose.json", tmp_path / "state", machine=machine
    ) as socket:
        guest = open_guest("dstack", str(socket), collateral="file:collateral.json")
        if old:
            with pytest.raises(GuestApiUnreachable):
                guest.accelerators(NONCE)
        else:
            found = guest.accelerators(NONCE)
            assert found is not None
            assert [device.kind for device in found.devices] == ["gpu"] * 8 + ["switch"] * 4
            assert found.claims.multi_gpu_mode == "protected_pcie"
            assert all(device.report_bytes[4:36] == NONCE for device in found.devices)


def test_an_agent_without_accelerators_says_so(tmp_path: Path) -> None:
    (tmp_path / "app-compose.json").write_bytes(b"{}")
    with running(tmp_path / "d.sock", tmp_path / "app-compose.json", tmp_path / "state") as socket:
        asked = guests.agents_devices(DstackClient(str(socket)))
        assert asked is not None
        with pytest.raises(GuestApiUnreachable):
            asked(NONCE)
