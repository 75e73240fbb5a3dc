"""Which TEE a machine is a guest of, and whether it shows evidence."""

from __future__ import annotations

import os
import re
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
from sealtrain.attest.tdx.bootlog import CCEL
from sealtrain.attest.tee import TeeDevice
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
_REPORTS_SINCE = (6, 7)
_DRIVERS = {"tdx_guest": ((6, 2), "tdx_guest"), "sev_snp": ((5, 19), "sev_guest")}
"""By the processor's flag: the kernel that the driver came with, and its module."""
_TPM_MODULES = "modprobe tpm-crb tpm-tis"
_NO_GUEST = "run in a dstack, TDX, SEV-SNP or Nitro guest; with the simulator you can rehearse"


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
            return _report_place(root, "dstack", root / name, f"--platform dstack --guest /{name}")
    if _is_socket(root / _TAPPD):
        return None, None, [_tappd()]
    flags = _flags(root)
    reports = root / _REPORTS
    # A cloud's own kind proves more there than the processor's: the document is in the TPM.
    for tee in sorted(TEES, key=lambda tee: tee.device is None or tee.device.cloud is None):
        device = tee.device
        if device is None or not _is_of_cloud(root, device):
            continue
        here = root / device.path
        if not here.exists() and (device.flag not in flags or not reports.is_dir()):
            if device.cloud is None or device.flag:
                continue
            return tee.name, None, [_no_device(root, tee.name, device)]
        if not device.alone and not reports.is_dir():
            return tee.name, None, [_no_reports(root, tee.name, device.path)]
        place = reports if device.reports and reports.is_dir() else here
        shown = f"{tee.name}:/{place.relative_to(root)}"
        words = f"--platform {tee.platform} --guest {shown}?compose=FILE"
        return _report_place(root, tee.name, place, words)
    return None, None, [_none(root, flags)]


def _is_of_cloud(root: Path, device: TeeDevice) -> bool:
    """Whether a machine is one of the cloud that a kind of evidence is of; others always are."""
    if device.cloud is None:
        return True
    name, line = device.cloud
    maker = device.maker is None or device.maker == _of_cpu(root, "vendor_id")
    return maker and text_of(root / "sys/class/dmi/id" / name).strip() == line


def _report_place(
    root: Path, tee: str, place: Path, words: str
) -> tuple[str, Path | None, list[Finding]]:
    if os.access(place, os.R_OK | os.W_OK):
        return tee, place, [Finding(topic="tee", name="guest", level="ok", found=words)]
    closed = Finding(
        topic="tee",
        name="guest",
        level="missing",
        found=f"{words}, closed to this user",
        refused="no evidence can be made",
        fix=f"give this user read and write access to /{place.relative_to(root)}: as root, or by a "
        "udev rule that names its group",
    )
    return tee, None, [closed]


def _no_reports(root: Path, tee: str, device: str) -> Finding:
    release = _release(root)
    old = release is not None and release < _REPORTS_SINCE
    mounted = any(
        line.split()[1:3] == ["/sys/kernel/config", "configfs"]
        for line in text_of(root / "proc/mounts").splitlines()
    )
    if old:
        fix = "boot a kernel of 6.7 or newer: it has configfs-tsm"
    elif mounted:
        fix = "load the module that makes reports: modprobe tsm (tsm_report from Linux 6.16 on)"
    else:
        fix = "mount configfs: mount -t configfs none /sys/kernel/config"
    number = "" if release is None else f", Linux {release[0]}.{release[1]}"
    return Finding(
        topic="tee",
        name="guest",
        level="missing",
        found=f"{tee} at /{device}, no /{_REPORTS}{number}",
        refused="no quote can be made",
        fix=fix,
    )


def _no_device(root: Path, tee: str, device: TeeDevice) -> Finding:
    """A machine of a cloud that shows no TPM to this process."""
    behind = (root / "dev" / "tpm0").exists()
    return Finding(
        topic="tee",
        name="guest",
        level="missing",
        found=f"a machine of the cloud of {tee}, no /{device.path}",
        refused="no evidence can be made",
        fix=f"use /dev/tpm0 in the guest's address, or load the resource manager: {_TPM_MODULES}"
        if behind
        else f"choose a confidential machine with a vTPM; in the guest: {_TPM_MODULES}",
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


def _none(root: Path, flags: set[str]) -> Finding:
    devices = [tee.device for tee in TEES if tee.device is not None and tee.device.cloud is None]
    hidden = {device.flag: device for device in devices if device.absent is not None}
    known = next((flag for flag in hidden if flag in flags), None)
    if known is not None:
        found, fix = str(hidden[known].absent), _hidden_device(root, known, hidden[known])
    elif "hypervisor" in flags:
        found, fix = "an ordinary virtual machine", _NO_GUEST
    else:
        found, fix = "no TEE", _NO_GUEST
    return Finding(
        topic="tee",
        name="guest",
        level="missing",
        found=found,
        refused="every policy for hardware (platform-mismatch, simulated-evidence)",
        fix=fix,
    )


def _hidden_device(root: Path, flag: str, device: TeeDevice) -> str:
    """What brings the device of a guest whose processor says that it is one."""
    since, module = _DRIVERS[flag]
    release = _release(root)
    if release is not None and release < since:
        return f"boot a kernel of {since[0]}.{since[1]} or newer: it has the driver {module}"
    if not (root / "sys/module" / module).is_dir():
        return f"load the driver: modprobe {module.replace('_', '-')}"
    return f"mount the device or the guest agent's socket into this container: /{device.path}"


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


def boot_log_finding(root: Path) -> Finding:
    """Whether a bare TDX guest can show what its firmware measured."""
    path = root / CCEL.relative_to("/")
    found, fix = "readable", ""
    if not path.exists():
        found, fix = "no such table", "boot firmware that writes one: OVMF for TDX does"
    elif not os.access(path, os.R_OK):
        found, fix = "closed to this user", f"let the guest's agent read {CCEL}, which is root's"
    ready = found == "readable"
    return Finding(
        topic="tee",
        name="boot log",
        level="ok" if ready else "note",
        found=f"{found}: {CCEL}",
        refused="" if ready else "a policy with boot_log: require (event-log-mismatch)",
        fix=fix,
    )


def _is_simulated(shown: ProcessorEvidence) -> bool:
    root = shown.exhibit.root(Attachments(certificates=shown.certificates))
    try:
        return is_simulated_certificate(root)
    except EvidenceRefused:
        return False  # no certificate at all; verification says so


def _flags(root: Path) -> set[str]:
    """The processor's flags, of its first core."""
    return set((_of_cpu(root, "flags") or _of_cpu(root, "Features")).split())


def _of_cpu(root: Path, wanted: str) -> str:
    """A line of the processor's first core; empty where there is none."""
    for line in text_of(root / "proc/cpuinfo").splitlines():
        name, _, rest = line.partition(":")
        if name.strip() == wanted:
            return rest.strip()
    return ""


def _release(root: Path) -> tuple[int, int] | None:
    """Major and minor number of the running kernel, where it says one."""
    found = re.match(r"(\d{1,4})\.(\d{1,4})", text_of(root / "proc/sys/kernel/osrelease"))
    return None if found is None else (int(found[1]), int(found[2]))


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except OSError:
        return False
