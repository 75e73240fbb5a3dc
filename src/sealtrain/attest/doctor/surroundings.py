"""Clock, memory and software of a machine: a run needs them and no quote covers them."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from packaging.requirements import Requirement

from sealtrain.attest.doctor.finding import Finding, text_of
from sealtrain.base.clock import to_rfc3339
from sealtrain.base.extras import belongs

Installed = Callable[[str], str | None]
"""Version of an installed package."""

_RELEASED = 1_767_225_600
"""2026-01-01: no machine that runs this release has an honest clock before it."""
_FAR = 4_102_444_800  # 2100-01-01
_EXTRAS = {
    "seal": "sealtrain seal and open, of records",
    "train": "sealtrain train and rehearse",
    "broker": "sealtrain broker serve",
    "remote": "sealed data in S3 and publishing",
    "aws": "keys from AWS KMS inside an enclave",
    "validation": "rules for personal data with check digits",
    "quantize": "bases in four bits",
    "simulator": "sealtrain simulator serve",
}
"""What each needs."""


def clock_findings(root: Path, now: int) -> Iterator[Finding]:
    """Whether certificates can be valid at the machine's time, and the source of that time."""
    sane = _RELEASED <= now < _FAR
    yield Finding(
        topic="clock",
        name="time",
        level="ok" if sane else "refused",
        found=to_rfc3339(now) if 0 <= now < _FAR else f"{now} s",
        refused="" if sane else "collateral and certificates (collateral-expired, evidence-stale)",
        fix="" if sane else "set the clock; start a time service before the guest's work",
    )
    source = text_of(
        root / "sys/devices/system/clocksource/clocksource0/current_clocksource"
    ).strip()
    if source in ("kvm-clock", "hyperv_clocksource_tsc_page", "xen"):
        yield Finding(
            topic="clock",
            name="source",
            level="note",
            found=source,
            refused="nothing; the host decides what time it is here",
            fix="boot with clocksource=tsc where the TEE protects it (TDX does)",
        )


def memory_findings(root: Path) -> Iterator[Finding]:
    """Ways in which memory reaches a disk."""
    disks = [
        line.split()[0]
        for line in text_of(root / "proc/swaps").splitlines()[1:]
        if line.strip() and not line.startswith("/dev/zram")
    ]
    yield Finding(
        topic="memory",
        name="swap",
        level="note" if disks else "ok",
        found=", ".join(disks) or "none on disk",
        refused="nothing; records and keys in memory may reach the disk" if disks else "",
        fix="swapoff -a, or swap to zram" if disks else "",
    )
    pattern = text_of(root / "proc/sys/kernel/core_pattern").strip()
    limit = next(
        (
            line.split()[4]
            for line in text_of(root / "proc/self/limits").splitlines()
            if line.startswith("Max core file size") and len(line.split()) > 4
        ),
        "0",
    )
    dumps = pattern.startswith("|") or (bool(pattern) and limit != "0")
    yield Finding(
        topic="memory",
        name="core dumps",
        level="note" if dumps else "ok",
        found=f"{pattern or 'no pattern'}, limit {limit}",
        refused="nothing; sealtrain train forbids its own, other programs may still leave memory"
        if dumps
        else "",
        fix="ulimit -c 0, and sysctl kernel.core_pattern=core" if dumps else "",
    )


def software_findings(
    requirements: Sequence[str], installed: Installed, *, gpus: int
) -> Iterator[Finding]:
    """Versions, and which extras are complete; nothing is imported.

    Args:
        requirements: Of sealtrain, as its package lists them.
        installed: Looks a version up.
        gpus: How many the machine has.
    """
    own = installed("sealtrain")
    yield Finding(
        topic="software",
        name="sealtrain",
        level="ok" if own else "note",
        found=f"{own or 'not installed as a package'}, Python {platform.python_version()}",
        refused="" if own else "nothing; a recipe pins the installed package (environment-changed)",
        fix="" if own else "pip install .",
    )
    wanted = [Requirement(text) for text in requirements]
    for extra, needs in _EXTRAS.items():
        own_part = [requirement for requirement in wanted if belongs(requirement, extra)]
        lacking = [name for requirement in own_part if (name := _lacking(requirement, installed))]
        if own_part:
            yield Finding(
                topic="software",
                name=f"extra {extra}",
                level="missing" if lacking else "ok",
                found=", ".join(lacking) or "complete",
                refused=f"{needs} (extra-missing)" if lacking else "",
                fix=f"pip install 'sealtrain[{extra}]'" if lacking else "",
            )
    torch = installed("torch")
    if torch is not None:
        blind = bool(gpus) and torch.endswith("+cpu")
        yield Finding(
            topic="software",
            name="torch",
            level="note" if blind else "ok",
            found=torch,
            refused="nothing; training does not see the GPUs" if blind else "",
            fix="install torch with CUDA, of the same version" if blind else "",
        )


def find_version(name: str) -> str | None:
    """Version of a package in this environment."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def own_requirements() -> tuple[str, ...]:
    """What the installed sealtrain asks for; nothing where it runs from a checkout."""
    try:
        return tuple(importlib.metadata.requires("sealtrain") or ())
    except importlib.metadata.PackageNotFoundError:
        return ()


def _lacking(wanted: Requirement, installed: Installed) -> str | None:
    found = installed(wanted.name)
    if found is None:
        return f"{wanted.name} is missing"
    if not wanted.specifier.contains(found, prereleases=True):
        return f"{wanted.name} is {found}, wanted {wanted.specifier}"
    return None
