"""MEASUREMENT of a SEV-SNP guest: firmware, start state of its CPUs, kernel behind the firmware.

The computation is that of ``sev-snp-measure`` (virtee, Apache-2.0), an extra of sealtrain: model of
the CPU, their number, guest features and the virtual machine monitor each change the digest.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sealtrain.base.extras import extra_missing
from sealtrain.base.files import read_bounded
from sealtrain.errors import ImageRefused, UsageError

MONITORS: Final = {"qemu": "QEMU", "gce": "gce", "ec2": "ec2"}
"""Virtual machine monitors by name, and how ``sev-snp-measure`` calls them."""
_MAX_FIRMWARE_BYTES: Final = 64 << 20
_MAX_FILE_BYTES: Final = 2 << 30
_MALFORMED: Final = (ValueError, RuntimeError, KeyError, AssertionError, IndexError, struct.error)
"""What ``sev-snp-measure`` raises of a file that is no such firmware."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How a guest is launched.

    Attributes:
        vcpus: Number of its CPUs.
        vcpu_type: Their model as QEMU calls it, such as ``EPYC-v4``.
        monitor: One of ``MONITORS``.
        guest_features: SEV_FEATURES that the guest is started with.
        kernel: Measured through the firmware's table of hashes; ``None`` where a disk is booted.
        initrd: Beside the kernel.
        command_line: Beside the kernel.
    """

    vcpus: int
    vcpu_type: str
    monitor: str = "qemu"
    guest_features: int = 1
    kernel: Path | None = None
    initrd: Path | None = None
    command_line: str | None = None


def launch_digest(firmware: Path, how: Launch) -> str:
    """The launch digest, 96 hex digits, as a report's MEASUREMENT has it.

    Raises:
        ExtraMissing: ``sev-snp-measure`` is not installed.
        UsageError: No such model of a CPU or monitor.
        DataInvalid: A file cannot be read.
        ImageRefused: Not firmware that starts SEV-SNP guests, or not with a kernel.
    """
    try:
        from sevsnpmeasure.guest import snp_calc_launch_digest
        from sevsnpmeasure.vcpu_types import CPU_SIGS
        from sevsnpmeasure.vmm_types import VMMType
    except ImportError as error:
        raise extra_missing("the launch digest of SEV-SNP", "measure", error) from error
    if how.vcpu_type not in CPU_SIGS:
        raise UsageError(
            "no such model of a CPU",
            check="--vcpu-type",
            got=how.vcpu_type,
            expected=", ".join(CPU_SIGS),
        )
    if how.monitor not in MONITORS:
        raise UsageError(
            "no such virtual machine monitor",
            check="--monitor",
            got=how.monitor,
            expected=", ".join(MONITORS),
        )
    # The library reads whole files by their paths; these are files of a bounded size.
    read_bounded(firmware, _MAX_FIRMWARE_BYTES)
    for path in (how.kernel, how.initrd):
        if path is not None:
            read_bounded(path, _MAX_FILE_BYTES)
    try:
        digest: bytes = snp_calc_launch_digest(
            how.vcpus,
            CPU_SIGS[how.vcpu_type],
            str(firmware),
            None if how.kernel is None else str(how.kernel),
            None if how.initrd is None else str(how.initrd),
            how.command_line,
            how.guest_features,
            "",
            VMMType[MONITORS[how.monitor]],
        )
    except _MALFORMED as error:
        raise ImageRefused(
            "the firmware starts no SEV-SNP guest of this kind",
            check="firmware",
            got=str(error) or type(error).__name__,
            expected="firmware with SEV metadata; with a kernel, one with a table of its hashes",
            hint="name OVMF as built for AMD SEV (OvmfPkg/AmdSev), unchanged",
        ) from error
    return digest.hex()
