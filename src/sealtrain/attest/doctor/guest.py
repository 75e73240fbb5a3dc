"""Which TEE a machine is a guest of, and whether it shows evidence."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sealtrain.attest.bundle import Attachments
from sealtrain.attest.doctor.finding import ASKED, Finding, text_of
from sealtrain.attest.errors import CollateralUnreachable
from sealtrain.attest.forms import StatementExhibit
from sealtrain.attest.registry import TEES
from sealtrain.attest.roots import SIMULATED_LABEL, is_simulated_certificate
from sealtrain.attest.verifier import verifier_of
from sealtrain.errors import EvidenceRefused, SealtrainError

_SOCKETS = (
    "var/run/dstack.sock",
    "run/dstack.sock",
    "var/run/dstack/dstack.sock",
    "run/dstack/dstack.sock",
)
_TAPPD = "var/run/tappd.sock"
_REPORTS = "sys/kernel/config/tsm/report"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorEvidence:
    """Evidence of the processor, and what lies beside it (DER)."""

    exhibit: StatementExhibit
    certificates: tuple[bytes, ...] = ()
    crl: bytes | None = None


Show = Callable[[str, Path, bytes], ProcessorEvidence]
"""TEE, its device or socket, 64 bytes → evidence over them."""


def show_guest(tee: str, place: Path, report_data: bytes) -> ProcessorEvidence:
    """Ask the platform this process runs on.

    Args:
        tee: Which one.
        place: Its device or socket.
        report_data: 64 bytes.

    Raises:
        GuestApiUnreachable: It does not answer.
        CollateralUnreachable: A SEV-SNP host hands out no certificates.
        EvidenceRefused: It answers with something else than evidence.
    """
    exhibit, beside = verifier_of(tee).show(place, report_data)
    return ProcessorEvidence(exhibit=exhibit, certificates=beside.certificates, crl=beside.crl)


def find_guest(root: Path) -> tuple[str | None, Path | None, list[Finding]]:
    """The TEE, the place to ask it, and notes about it; ``None`` without a TEE."""
    for name in _SOCKETS:
        if _is_socket(root / name):
            return _report_place("dstack", root / name, f"--platform dstack --guest /{name}")
    if _is_socket(root / _TAPPD):
        return None, None, [_tappd()]
    flags = _flags(root)
    reports = root / _REPORTS
    for tee in TEES:
        device = tee.device
        if device is None:
            continue
        here = root / device.path
        if not here.exists() and (device.flag not in flags or not reports.is_dir()):
            continue
        if not device.alone and not reports.is_dir():
            return tee.name, None, [_no_reports(tee.name, device.path)]
        place = reports if device.reports and reports.is_dir() else here
        shown = f"{tee.name}:/{place.relative_to(root)}"
        return _report_place(tee.name, place, f"--platform {tee.name} --guest {shown}?compose=FILE")
    return None, None, [_none(flags)]


def _report_place(tee: str, place: Path, words: str) -> tuple[str, Path | None, list[Finding]]:
    if os.access(place, os.R_OK | os.W_OK):
        return tee, place, [Finding(topic="tee", name="guest", level="ok", found=words)]
    closed = Finding(
        topic="tee",
        name="guest",
        level="missing",
        found=f"{words}, closed to this user",
        refused="no evidence can be made",
        fix=f"give this user read and write access to {place}",
    )
    return tee, None, [closed]


def _no_reports(tee: str, device: str) -> Finding:
    return Finding(
        topic="tee",
        name="guest",
        level="missing",
        found=f"{tee} at /{device}, no /{_REPORTS}",
        refused="no quote can be made",
        fix="Linux 6.7 or newer with configfs mounted: mount -t configfs none /sys/kernel/config",
    )


def _tappd() -> Finding:
    return Finding(
        topic="tee",
        name="guest",
        level="refused",
        found=f"dstack of the generation tappd at /{_TAPPD}",
        refused="its evidence has another form (guest-api-unreachable)",
        fix="use a guest image of dstack 0.5 or newer and mount /var/run/dstack.sock",
    )


def _none(flags: set[str]) -> Finding:
    devices = [tee.device for tee in TEES if tee.device is not None]
    hidden = {device.flag: device.absent for device in devices if device.absent is not None}
    words = {**hidden, "hypervisor": "an ordinary virtual machine"}
    known = next((flag for flag in words if flag in flags), None)
    return Finding(
        topic="tee",
        name="guest",
        level="missing",
        found="no TEE" if known is None else words[known],
        refused="every policy for hardware (platform-mismatch, simulated-evidence)",
        fix="mount the device or the guest agent's socket into this container"
        if known in hidden
        else "run in a dstack, TDX, SEV-SNP or Nitro guest; with the simulator you can rehearse",
    )


def try_to_show(show: Show, tee: str, place: Path) -> tuple[ProcessorEvidence | None, Finding]:
    """Ask once, over ``ASKED``."""
    try:
        shown = show(tee, place, ASKED.report_data())
    except SealtrainError as error:
        lacking = isinstance(error, CollateralUnreachable)
        return None, Finding(
            topic="tee",
            name="evidence",
            level="missing" if lacking else "refused",
            found=error.message if error.got is None else f"{error.message}: {error.got}",
            refused=f"no evidence can be made ({error.code})",
            fix=error.hint or "read the guest's kernel log",
        )
    simulated = _is_simulated(shown)
    return shown, Finding(
        topic="tee",
        name="evidence",
        level="refused" if simulated else "ok",
        found=SIMULATED_LABEL if simulated else "made, read and deleted",
        refused="every policy for hardware (simulated-evidence)" if simulated else "",
        fix="use a guest on hardware for real data" if simulated else "",
    )


def _is_simulated(shown: ProcessorEvidence) -> bool:
    root = shown.exhibit.root(Attachments(certificates=shown.certificates))
    try:
        return is_simulated_certificate(root)
    except EvidenceRefused:
        return False  # no certificate at all; verification says so


def _flags(root: Path) -> set[str]:
    """The processor's flags, of its first core."""
    for line in text_of(root / "proc/cpuinfo").splitlines():
        name, _, rest = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return set(rest.split())
    return set()


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except OSError:
        return False
