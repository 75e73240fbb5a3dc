"""Inspect a machine from inside, before anything is sent.

Nothing is executed, nothing is sent, no secret is involved. Processor and accelerators are asked
for one piece of evidence each, for a purpose that answers no conversation; it is read and deleted.
Everything is looked for below ``root``, so that a made folder can be looked at, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sealtrain.attest.doctor.accelerators import Driver, find_accelerators
from sealtrain.attest.doctor.finding import Finding
from sealtrain.attest.doctor.guest import Show, Shown, find_guest, show_guest, try_to_show
from sealtrain.attest.doctor.surroundings import (
    Installed,
    clock_findings,
    installed_version,
    memory_findings,
    own_requirements,
    software_findings,
)
from sealtrain.attest.dstack.client import DstackClient
from sealtrain.attest.guest import agents_devices
from sealtrain.attest.nvidia.collect import Asked, open_nvml
from sealtrain.attest.nvidia.parse import GpuClaims, GpuEvidence

__all__ = ["Seen", "look"]


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
    shown: Shown | None
    driver: GpuClaims | None
    gpus: GpuEvidence | None


def look(
    root: Path = Path("/"),
    *,
    now: int,
    show: Show = show_guest,
    driver: Driver = open_nvml,
    requirements: Sequence[str] | None = None,
    installed: Installed = installed_version,
) -> Seen:
    """Look at a machine.

    Args:
        root: Folder that is taken for ``/``.
        now: What the machine's clock says, seconds since 1970.
        show: How a guest shows evidence.
        driver: How the driver of accelerators is opened.
        requirements: Of sealtrain; those of the installed one unless told.
        installed: Looks up versions of packages.
    """
    tee, place, findings = find_guest(root)
    shown = None
    if tee is not None and place is not None:
        shown, told = try_to_show(show, tee, place)
        findings.append(told)
    agent = partial(_agent, place if tee == "dstack" else None)
    claims, gpus, of_gpus = find_accelerators(root, driver, agent)
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
        tee=tee,
        shown=shown,
        driver=claims,
        gpus=gpus,
    )


def _agent(socket: Path | None) -> Asked | None:
    return None if socket is None else agents_devices(DstackClient(str(socket)))
