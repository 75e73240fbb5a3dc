"""Inspect a machine from inside, before anything is sent.

Nothing is executed, nothing is sent, no secret is involved. Processor and accelerators are asked
for one piece of evidence each, for a purpose that answers no conversation; it is read and deleted.
Everything is looked for below ``root``, so that a made folder can be looked at, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sealtrain.attest.doctor.agent import agent_findings
from sealtrain.attest.doctor.finding import ASKED, Finding, text_of
from sealtrain.attest.doctor.guest import (
    ProcessorEvidence,
    Show,
    boot_log_finding,
    find_guest,
    show_guest,
    try_to_show,
)
from sealtrain.attest.doctor.surroundings import (
    Installed,
    clock_findings,
    find_version,
    memory_findings,
    own_requirements,
    software_findings,
)
from sealtrain.attest.dstack.client import DstackClient
from sealtrain.attest.guest import agents_devices
from sealtrain.attest.nvidia.collect import Asked, Nvml, collect_gpus, confidential_mode, open_nvml
from sealtrain.attest.nvidia.nscq import CONTROL, collect_switches
from sealtrain.attest.nvidia.parse import GpuClaims, GpuEvidence
from sealtrain.attest.nvidia.topology import protection_checks
from sealtrain.attest.registry import tee_of
from sealtrain.errors import EvidenceRefused, ExtraMissing, SealtrainError

Driver = Callable[[], AbstractContextManager[Nvml]]
"""Opens the driver for the length of a block."""
AskAgent = Callable[[Path, Path, ProcessorEvidence | None], Iterable[Finding]]
"""Root of the machine, the agent's socket, its evidence → findings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A machine that was looked at.

    Attributes:
        tee: The TEE of this guest; ``None`` outside a TEE.
        shown: What its processor showed, ``None`` where it shows nothing.
        driver: What the driver of its accelerators says.
        gpus: What its accelerators showed.
    """

    findings: tuple[Finding, ...]
    tee: str | None
    shown: ProcessorEvidence | None
    driver: GpuClaims | None
    gpus: GpuEvidence | None


def look(
    root: Path = Path("/"),
    *,
    now: int,
    show: Show = show_guest,
    driver: Driver = open_nvml,
    requirements: Sequence[str] | None = None,
    installed: Installed = find_version,
    agent: AskAgent = agent_findings,
) -> Seen:
    """Look at a machine.

    Args:
        root: Folder that is taken for ``/``.
        now: What the machine's clock says, seconds since 1970.
        show: How a guest shows evidence.
        driver: How the driver of accelerators is opened.
        requirements: Of sealtrain; those of the installed one unless told.
        installed: Looks up versions of packages.
        agent: Asks the agent of a dstack guest.
    """
    tee, place, findings = find_guest(root)
    shown = None
    if tee is not None and place is not None:
        shown, told = try_to_show(show, tee, place)
        findings.append(told)
        if tee == "tdx":
            findings.append(boot_log_finding(root))
        if tee == "dstack":
            findings += agent(root, place, shown)
    kind = tee
    if shown is not None and tee_of(shown.exhibit.tee).of == tee:
        kind = shown.exhibit.tee  # dstack's agent also runs on rented machines
    devices = partial(_agents_devices, place if tee == "dstack" else None)
    claims, gpus, of_gpus = find_accelerators(root, driver, devices)
    wanted = own_requirements() if requirements is None else requirements
    count = 0 if claims is None else claims.gpu_count
    return Seen(
        findings=(
            *findings,
            *of_gpus,
            *clock_findings(root, now),
            *memory_findings(root),
            *software_findings(wanted, installed, gpus=count),
        ),
        tee=kind,
        shown=shown,
        driver=claims,
        gpus=gpus,
    )


def _agents_devices(socket: Path | None) -> Asked | None:
    return None if socket is None else agents_devices(DstackClient(str(socket)))


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
