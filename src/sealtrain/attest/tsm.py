"""Reports through Linux's configfs-tsm (kernel 6.7): one interface to whichever TEE the guest has.

A report is a folder: write up to 64 bytes to ``inblob``, read ``outblob``. A process that may write
    to the same folder could exchange the input in between, so each report has a folder of its own
    with an
unguessable name, and ``generation`` must have moved by exactly our one write.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sealtrain.attest.errors import EvidenceMalformed, GuestApiUnreachable
from sealtrain.base.secret import Random

REPORTS = Path("/sys/kernel/config/tsm/report")
MAX_BLOB_BYTES = 1 << 20
_INPUT_BYTES = 64
_TRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TsmReport:
    """What the platform answered. Nothing in it is verified."""

    provider: str
    """``tdx_guest`` or ``sev_guest``."""
    outblob: bytes
    auxblob: bytes
    """Certificates where the platform hands some out, otherwise empty."""


class Folders(Protocol):
    """File operations on the reports' folder; an argument so that tests need no kernel."""

    def make(self, path: Path) -> None:
        """Create a report."""

    def read(self, path: Path) -> bytes:
        """Read an attribute whole."""

    def write(self, path: Path, data: bytes) -> None:
        """Write an attribute in one call."""

    def remove(self, path: Path) -> None:
        """Remove a report."""


class KernelFolders:
    """The kernel's own."""

    def make(self, path: Path) -> None:
        """Create a report; the kernel fills the folder."""
        path.mkdir(mode=0o700)

    def read(self, path: Path) -> bytes:
        """Read an attribute of at most a mebibyte."""
        with path.open("rb", buffering=0) as file:
            data = bytearray()
            while part := file.read(MAX_BLOB_BYTES + 1 - len(data)):
                data += part
                if len(data) > MAX_BLOB_BYTES:
                    raise EvidenceMalformed(f"{path.name} of the platform's report is too long")
        return bytes(data)

    def write(self, path: Path, data: bytes) -> None:
        """Write an attribute; none is made."""
        file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(file, data)
        finally:
            os.close(file)  # the kernel takes the whole only now

    def remove(self, path: Path) -> None:
        """Remove a report; its files go with it."""
        path.rmdir()


def tsm_report(
    report_data: bytes,
    *,
    provider: str,
    base: Path = REPORTS,
    folders: Folders | None = None,
    random: Random = os.urandom,
) -> TsmReport:
    """A report over 64 bytes.

    Args:
        report_data: What the report commits to.
        provider: The TEE that is asked for, in the kernel's word.
        base: The reports' folder.
        folders: How to touch it.
        random: Names the report.

    Raises:
        GuestApiUnreachable: No such interface, another TEE, or the platform does not answer.
        EvidenceMalformed: ``report_data`` is not 64 bytes, or the answer is too long.
    """
    if len(report_data) != _INPUT_BYTES:
        raise EvidenceMalformed(
            "report data has the wrong length", got=len(report_data), expected=_INPUT_BYTES
        )
    device = KernelFolders() if folders is None else folders
    for _ in range(_TRIES):
        path = base / f"sealtrain-{random(16).hex()}"
        try:
            device.make(path)
            try:
                report = _report(device, path, report_data, provider)
            finally:
                with suppress(OSError):
                    device.remove(path)
        except OSError as error:
            raise _unreachable(base, error) from error
        if report is not None:
            return report
    raise GuestApiUnreachable(
        "another process writes to this guest's reports",
        check="TEE device",
        got=f"{_TRIES} reports were overwritten",
        hint="only the guest's own agent may write below " + str(base),
    )


def _report(device: Folders, path: Path, report_data: bytes, provider: str) -> TsmReport | None:
    found = device.read(path / "provider").decode("ascii", "replace").strip()
    if found != provider:
        raise GuestApiUnreachable(
            "this guest has another TEE", check="TEE device", got=found[:64], expected=provider
        )
    before = _generation(device, path)
    device.write(path / "inblob", report_data)
    outblob = device.read(path / "outblob")
    auxblob = b""
    try:
        auxblob = device.read(path / "auxblob")
    except OSError as error:
        # Absent on platforms without certificates; the kernel says ENXIO where it is empty.
        if error.errno not in (errno.ENOENT, errno.ENXIO, errno.ENODATA):
            raise
    if _generation(device, path) != before + 1:
        return None
    return TsmReport(provider=found, outblob=outblob, auxblob=auxblob)


def _generation(device: Folders, path: Path) -> int:
    text = device.read(path / "generation").strip()
    if not text.isdigit() or len(text) > 20:
        raise EvidenceMalformed("the platform's report has no generation", got=repr(text[:32]))
    return int(text)


def _unreachable(base: Path, error: OSError) -> GuestApiUnreachable:
    hint = "run this inside a confidential guest with Linux 6.7 or newer and configfs mounted"
    if isinstance(error, PermissionError):
        hint = f"run as root, or give the agent's user the folder {base}"
    return GuestApiUnreachable(
        f"no attestation report from {base}",
        check="TEE device",
        got=error.strerror or type(error).__name__,
        hint=hint,
    )
