"""Which accelerators a machine has, in which mode, and whether they make reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from sealtrain.attest.doctor.finding import ASKED, Finding, text_of
from sealtrain.attest.nvidia.collect import Asked, Nvml, collect_gpus, confidential_mode
from sealtrain.attest.nvidia.nscq import CONTROL, collect_switches
from sealtrain.attest.nvidia.parse import GpuClaims, GpuEvidence
from sealtrain.attest.nvidia.topology import protection_checks
from sealtrain.errors import EvidenceRefused, ExtraMissing, SealtrainError

__all__ = ["Driver", "find_accelerators"]

Driver = Callable[[], AbstractContextManager[Nvml]]
"""Opens the driver for the length of a block."""


def find_accelerators(
    root: Path, driver: Driver, agent: Callable[[], Asked | None]
) -> tuple[GpuClaims | None, GpuEvidence | None, list[Finding]]:
    """Settings from the driver, evidence of the accelerators, and findings about both."""
    switches = collect_switches if (root / "dev" / CONTROL.name).exists() else None
    if not (root / "dev/nvidiactl").exists():
        return None, None, [_no_driver(root)]
    try:
        with driver() as nvml:
            claims = confidential_mode(nvml)
            findings = list(_mode(claims))
            try:
                gpus = collect_gpus(nvml, ASKED.gpu_nonce(), switches=switches, agent=agent())
            except SealtrainError as error:
                return claims, None, [*findings, _unreadable("reports", error)]
    except SealtrainError as error:
        return None, None, [_unreadable("driver", error)]
    made = Finding(
        topic="gpu",
        name="reports",
        level="ok",
        found=f"{len(gpus.devices)} made, read and deleted",
    )
    return claims, gpus, [*findings, made]


def _no_driver(root: Path) -> Finding:
    vendors = (root / "sys/bus/pci/devices").glob("*/vendor")
    cards = sum(text_of(path).strip() == "0x10de" for path in vendors)
    return Finding(
        topic="gpu",
        name="driver",
        level="missing" if cards else "ok",
        found=f"{cards} NVIDIA devices, no /dev/nvidiactl" if cards else "no accelerator",
        refused="a policy that asks for GPUs (gpu-set-refused)" if cards else "",
        fix="install NVIDIA's driver in the guest and load it" if cards else "",
    )


def _mode(claims: GpuClaims) -> Iterator[Finding]:
    yield Finding(
        topic="gpu",
        name="driver",
        level="ok",
        found=f"{claims.gpu_count} GPUs, driver {claims.driver_version}, "
        f"between them: {claims.multi_gpu_mode.replace('_', ' ')}",
    )
    for check in protection_checks(claims):
        try:
            claim = check()
        except EvidenceRefused as error:
            yield Finding(
                topic="gpu",
                name=error.check or error.code,
                level="refused",
                found=str(error.got),
                refused=f"{error.message} ({error.code})",
                fix=error.hint or "",
            )
        else:
            yield Finding(topic="gpu", name=claim.name, level="ok", found=claim.got)


def _unreadable(name: str, error: SealtrainError) -> Finding:
    return Finding(
        topic="gpu",
        name=name,
        level="missing" if isinstance(error, ExtraMissing) else "refused",
        found=error.message if error.got is None else f"{error.message}: {error.got}",
        refused=f"a policy that asks for GPUs ({error.code})",
        fix=error.hint or "run nvidia-smi conf-compute -q inside the guest",
    )
