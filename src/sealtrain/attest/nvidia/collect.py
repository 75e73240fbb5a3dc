"""Collect evidence of a guest's GPUs, and their confidential-computing mode, through NVML.

The driver is an argument: the module ``pynvml``, or anything that has its functions. A report does
not say that confidential mode protects the data, so the measured guest reads the mode here and the
CPU's quote covers what it read. NVSwitches have another library (``nscq``); where a container sees
none, dstack's agent does.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from sealtrain.attest.errors import EvidenceMalformed, GpuReportInvalid, GuestApiUnreachable
from sealtrain.attest.nvidia.parse import Architecture, GpuClaims, GpuDevice, GpuEvidence
from sealtrain.attest.nvidia.spdm import NONCE_BYTES
from sealtrain.base.models import load_model
from sealtrain.errors import ExtraMissing

Asked = Callable[[bytes], Sequence[GpuDevice]]
"""Nonce → reports of devices over it."""

_ARCHITECTURES: dict[int, Architecture] = {9: "HOPPER", 10: "BLACKWELL"}
_ENVIRONMENTS = {0: "UNAVAILABLE", 1: "SIM", 2: "PROD"}
_MULTI_GPU = {0: "none", 1: "protected_pcie", 2: "nvle"}
_SUCCESS = 0
_NOT_SUPPORTED = 3
_CHECK = "GPU driver"
_HINT = "run nvidia-smi conf-compute -q inside the guest to see what the driver says"


class Nvml(Protocol):
    """The functions of ``pynvml`` that are used; names and behaviour are NVML's."""

    NVMLError: type[Exception]
    c_nvmlSystemConfComputeSettings_v1_t: Any  # noqa: N815

    def nvmlInit(self) -> None: ...  # noqa: N802, D102
    def nvmlShutdown(self) -> None: ...  # noqa: N802, D102
    def nvmlSystemGetDriverVersion(self) -> str: ...  # noqa: N802, D102
    def nvmlSystemGetConfComputeSettings(self, settings: Any) -> int: ...  # noqa: N802, D102
    def nvmlDeviceGetCount(self) -> int: ...  # noqa: N802, D102
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any: ...  # noqa: N802, D102
    def nvmlDeviceGetArchitecture(self, device: Any) -> int: ...  # noqa: N802, D102
    def nvmlDeviceGetConfComputeGpuAttestationReport(  # noqa: N802, D102
        self, device: Any, c_nonce: bytes
    ) -> Any: ...
    def nvmlDeviceGetConfComputeGpuCertificate(self, device: Any) -> Any: ...  # noqa: N802, D102


@contextmanager
def open_nvml() -> Iterator[Nvml]:
    """The machine's driver, opened for the length of a block.

    Raises:
        ExtraMissing: ``pynvml`` is not installed.
        GuestApiUnreachable: There is no driver here.
    """
    try:
        import pynvml
    except ImportError as error:
        raise ExtraMissing(
            "reading GPUs needs pynvml", check=_CHECK, hint="pip install 'sealtrain[train]'"
        ) from error
    nvml: Nvml = pynvml
    with _name_failures(nvml, "opening the driver"):
        nvml.nvmlInit()
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def confidential_mode(nvml: Nvml) -> GpuClaims:
    """What the driver says about confidential computing on this machine.

    Protected PCIe is a mode of its own: drivers report the plain feature as off beside it.

    Raises:
        GuestApiUnreachable: The driver does not answer, or is too old to know its mode.
        EvidenceMalformed: It answers with something unknown.
    """
    with _name_failures(nvml, "reading the driver's version"):
        version, count = nvml.nvmlSystemGetDriverVersion(), nvml.nvmlDeviceGetCount()
    environment, feature, devtools, multi = _settings(nvml)
    return load_model(
        GpuClaims,
        {
            "environment": _word("environment", _ENVIRONMENTS, environment),
            "cc_feature": _switch("ccFeature", feature),
            "dev_tools": _switch("devToolsMode", devtools),
            "multi_gpu_mode": _word("multiGpuMode", _MULTI_GPU, multi),
            "driver_version": version,
            "gpu_count": count,
        },
        EvidenceMalformed,
        "GPU driver's answer",
    )


def collect_gpus(
    nvml: Nvml, nonce: bytes, *, switches: Asked | None = None, agent: Asked | None = None
) -> GpuEvidence:
    """Evidence of every accelerator of the guest over one nonce.

    Args:
        nvml: The driver.
        nonce: 32 bytes that stand in every report.
        switches: Asks the NVSwitches; ``None`` where this process sees none.
        agent: Asks the guest's agent for all devices; ``None`` where it cannot.

    Raises:
        GuestApiUnreachable: The driver does not answer, or refuses to make a report; NVSwitches
            that belong to the GPUs cannot be asked.
        EvidenceMalformed: No GPU, a family that makes no reports, or a malformed answer.
        GpuReportInvalid: The driver's report is truncated or for another nonce.
    """
    if len(nonce) != NONCE_BYTES:
        raise EvidenceMalformed(
            "GPU nonce has the wrong length", got=len(nonce), expected=NONCE_BYTES
        )
    claims = confidential_mode(nvml)

    def gpus(nonce: bytes) -> list[GpuDevice]:
        return [_device(nvml, index, nonce) for index in range(claims.gpu_count)]

    devices = devices_of(claims, nonce, gpus=gpus, switches=switches, agent=agent)
    return GpuEvidence.build(tuple(devices), claims)


def devices_of(
    claims: GpuClaims,
    nonce: bytes,
    *,
    gpus: Asked,
    switches: Asked | None,
    agent: Asked | None,
) -> Sequence[GpuDevice]:
    """All devices that have to be shown in the mode that the driver names.

    GPUs that protect their links together with NVSwitches are shown with them. Where this process
    does not see the switches, as in a container, the agent shows both.

    Raises:
        GuestApiUnreachable: The switches cannot be asked.
    """
    if claims.multi_gpu_mode != "protected_pcie":
        return gpus(nonce)
    if switches is not None:
        return [*gpus(nonce), *switches(nonce)]
    if agent is not None:
        return agent(nonce)
    raise GuestApiUnreachable(
        "GPUs protect their links together with NVSwitches that this guest cannot see",
        check="NVSwitches",
        got="neither device files nor an agent that asks them",
        hint="hand /dev/nvidia-nvswitch* and libnvidia-nscq to the trainer, or use an image of "
        "dstack whose agent has AttestGpu",
    )


def _device(nvml: Nvml, index: int, nonce: bytes) -> GpuDevice:
    with _name_failures(nvml, f"reading GPU {index}"):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        architecture = _ARCHITECTURES.get(nvml.nvmlDeviceGetArchitecture(handle))
    if architecture is None:
        raise EvidenceMalformed(
            f"GPU {index} is of a family that makes no attestation reports",
            check=_CHECK,
            expected=" or ".join(_ARCHITECTURES.values()),
            hint="confidential training needs Hopper or Blackwell GPUs",
        )
    with _name_failures(nvml, f"making a report of GPU {index}"):
        report = nvml.nvmlDeviceGetConfComputeGpuAttestationReport(handle, nonce)
        chain = nvml.nvmlDeviceGetConfComputeGpuCertificate(handle)
    device = GpuDevice.build(
        architecture,
        _octets(report.attestationReport, report.attestationReportSize),
        _octets(chain.attestationCertChain, chain.attestationCertChainSize).rstrip(b"\0"),
    )
    if device.report_bytes[4 : 4 + NONCE_BYTES] != nonce:
        raise GpuReportInvalid(
            f"driver made a report of GPU {index} for another nonce", check=_CHECK, hint=_HINT
        )
    return device


def _settings(nvml: Nvml) -> tuple[int, int, int, int]:
    """Environment, feature, developer mode, multi-GPU mode; all off where CC does not exist."""
    settings = nvml.c_nvmlSystemConfComputeSettings_v1_t()
    with _name_failures(nvml, "reading the confidential-computing settings"):
        # The binding neither passes this structure by reference nor looks at what is returned.
        code = nvml.nvmlSystemGetConfComputeSettings(ctypes.byref(settings))
    if code == _NOT_SUPPORTED:
        return 0, 0, 0, 0
    if code != _SUCCESS:
        raise _unreachable("reading the confidential-computing settings", f"NVML error {code}")
    return (
        int(settings.environment),
        int(settings.ccFeature),
        int(settings.devToolsMode),
        int(settings.multiGpuMode),
    )


def _octets(array: Any, size: int) -> bytes:
    data = bytes(array)
    if not 0 < size <= len(data):
        raise EvidenceMalformed(
            "GPU driver's answer has no plausible length", check=_CHECK, got=size
        )
    return data[:size]


def _word(name: str, words: dict[int, str], value: int) -> str:
    if value not in words:
        raise EvidenceMalformed(
            f"GPU driver reports an unknown {name}",
            check=_CHECK,
            got=value,
            expected=", ".join(words.values()),
            hint="update sealtrain",
        )
    return words[value]


def _switch(name: str, value: int) -> bool:
    return _word(name, {0: "off", 1: "on"}, value) == "on"


@contextmanager
def _name_failures(nvml: Nvml, doing: str) -> Iterator[None]:
    try:
        yield
    except nvml.NVMLError as error:
        raise _unreachable(doing, str(error)) from error


def _unreachable(doing: str, reason: str) -> GuestApiUnreachable:
    return GuestApiUnreachable(
        f"GPU driver does not answer while {doing}", check=_CHECK, got=reason[:200], hint=_HINT
    )
