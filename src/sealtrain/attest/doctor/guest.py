"""Which TEE a machine is a guest of, and whether it shows evidence."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sealtrain.attest.doctor.finding import ASKED, Finding, text_of
from sealtrain.attest.forms import DstackQuote, Exhibit, Nitro, Quote, Snp
from sealtrain.attest.roots import SIMULATED_LABEL, is_simulated_certificate
from sealtrain.errors import CollateralUnreachable, EvidenceRefused, SealtrainError

__all__ = ["Show", "Shown", "Tee", "find_guest", "show_guest", "try_to_show"]

Tee = Literal["dstack", "tdx", "nitro", "snp"]

_SOCKETS = (
    "var/run/dstack.sock",
    "run/dstack.sock",
    "var/run/dstack/dstack.sock",
    "run/dstack/dstack.sock",
)
_TAPPD = "var/run/tappd.sock"
_REPORTS = "sys/kernel/config/tsm/report"
_DEVICES: tuple[tuple[Tee, str, str], ...] = (
    ("nitro", "dev/nsm", "nitro_enclaves"),
    ("tdx", "dev/tdx_guest", "tdx_guest"),
    ("snp", "dev/sev-guest", "sev_snp"),
)
"""TEE, its device, the processor's word for being such a guest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Evidence of the processor, and what lies beside it (DER)."""

    exhibit: Exhibit
    certificates: tuple[bytes, ...] = ()
    crl: bytes | None = None


Show = Callable[[Tee, Path, bytes], Shown]
"""TEE, its device or socket, 64 bytes → evidence over them."""


def show_guest(tee: Tee, place: Path, report_data: bytes) -> Shown:
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
    if tee == "dstack":
        from sealtrain.attest.dstack.client import DstackClient
        from sealtrain.attest.tdx.parse import canonical_quote, parse_quote

        answer = DstackClient(str(place)).get_quote(report_data)
        raw = canonical_quote(answer.quote)
        return Shown(
            exhibit=DstackQuote(
                raw=raw, quote=parse_quote(raw), log=answer.event_log, vm_config=answer.vm_config
            )
        )
    if tee == "tdx":
        from sealtrain.attest.tdx.collect import collect_quote
        from sealtrain.attest.tdx.parse import parse_quote

        raw = collect_quote(report_data, base=place)
        return Shown(exhibit=Quote(raw=raw, quote=parse_quote(raw)))
    if tee == "nitro":
        from sealtrain.attest.nitro.collect import attestation, device_nsm
        from sealtrain.attest.nitro.parse import parse_document

        raw = attestation(device_nsm(place), user_data=report_data)
        return Shown(exhibit=Nitro(raw=raw, document=parse_document(raw)))
    from sealtrain.attest.snp.collect import collect
    from sealtrain.attest.snp.parse import parse_report

    found = collect(place, report_data)
    return Shown(
        exhibit=Snp(raw=found.report, report=parse_report(found.report)),
        certificates=found.certificates,
        crl=found.crl,
    )


def find_guest(root: Path) -> tuple[Tee | None, Path | None, list[Finding]]:
    """Which TEE, where it is asked, what there is to say about it; ``None`` where there is none."""
    for name in _SOCKETS:
        if _is_socket(root / name):
            return _found("dstack", root / name, f"--platform dstack --guest /{name}")
    if _is_socket(root / _TAPPD):
        return None, None, [_tappd()]
    flags = _flags(root)
    reports = root / _REPORTS
    for tee, device, flag in _DEVICES:
        here = root / device
        if not here.exists() and (flag not in flags or not reports.is_dir()):
            continue
        if tee == "tdx" and not reports.is_dir():
            return tee, None, [_no_reports(device)]
        place = here if tee == "nitro" or not reports.is_dir() else reports
        shown = f"/{place.relative_to(root)}"
        return _found(tee, place, f"--platform {tee} --guest {tee}:{shown}?compose=FILE")
    return None, None, [_none(flags)]


def _found(tee: Tee, place: Path, words: str) -> tuple[Tee, Path | None, list[Finding]]:
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


def _no_reports(device: str) -> Finding:
    return Finding(
        topic="tee",
        name="guest",
        level="missing",
        found=f"tdx at /{device}, no /{_REPORTS}",
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
    words = {
        "tdx_guest": "the processor says TDX guest, there is no /dev/tdx_guest",
        "sev_snp": "the processor says SEV-SNP guest, there is no /dev/sev-guest",
        "hypervisor": "an ordinary virtual machine",
    }
    known = next((flag for flag in words if flag in flags), None)
    return Finding(
        topic="tee",
        name="guest",
        level="missing",
        found="no TEE" if known is None else words[known],
        refused="every policy for hardware (platform-mismatch, simulated-evidence)",
        fix="mount the device or the guest agent's socket into this container"
        if known in ("tdx_guest", "sev_snp")
        else "run in a dstack, TDX, SEV-SNP or Nitro guest; with the simulator you can rehearse",
    )


def try_to_show(show: Show, tee: Tee, place: Path) -> tuple[Shown | None, Finding]:
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
            fix=error.hint or "look at the guest's kernel log",
        )
    simulated = _is_simulated(shown)
    return shown, Finding(
        topic="tee",
        name="evidence",
        level="refused" if simulated else "ok",
        found=SIMULATED_LABEL if simulated else "made, looked at and thrown away",
        refused="every policy for hardware (simulated-evidence)" if simulated else "",
        fix="use a guest on hardware for real data" if simulated else "",
    )


def _is_simulated(shown: Shown) -> bool:
    match shown.exhibit:
        case Quote(quote=quote) | DstackQuote(quote=quote):
            root = quote.root_der
        case Nitro(document=document):
            root = document.cabundle[0]
        case _:
            root = shown.certificates[-1]
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
