"""RTMRs of a TDX guest that boots a unified kernel image from a disk.

UEFI 2.10 §38.4.1 maps registers of a TPM to those of TDX: PCR 2 to 6 are RTMR1, PCR 8 to 15 RTMR2.
The order of RTMR1's events is that of a real log of Google's (``ccel_data.dat`` of
google/go-tdx-guest). Linux's stub measures to a TPM where there is one, and to RTMR2 elsewhere;
systemd-stub measures to RTMR2 from its version 256 on. Nobody has compared these values with a
machine's.
"""

from __future__ import annotations

from sealtrain.errors import ImageRefused
from sealtrain.image.machine.disk import PartitionTable
from sealtrain.image.machine.registers import (
    BOOT_OPTION,
    EXIT_EVENTS,
    SEPARATOR,
    digest_of,
    extend,
)
from sealtrain.image.machine.unified import Unified, kernel_events, list_loaded, stub_events

_MEASURES_TO_TDX = 256
"""First version of systemd-stub that does."""


def disk_rtmr1(table: PartitionTable, uki: bytes, how: Unified) -> str:
    """RTMR1, 96 hex digits: the partition table, and the programs that the firmware loads.

    Raises:
        ImageRefused: Not a UKI.
    """
    before = (BOOT_OPTION, SEPARATOR, table.measured)
    digests = [digest_of(event, "sha384") for event in before]
    digests += list_loaded(uki, how)
    return extend([*digests, *(digest_of(text, "sha384") for text in EXIT_EVENTS)], "sha384").hex()


def disk_rtmr2(uki: bytes, how: Unified, stub: int, *, has_tpm: bool) -> str:
    """RTMR2, 96 hex digits: sections of the UKI, then command line and initrd.

    Args:
        uki: The unified kernel image.
        how: How it is booted, of SHA-384; without a command line from outside.
        stub: Version of systemd-stub.
        has_tpm: The guest has a TPM beside TDX, which takes what Linux's stub measures.

    Raises:
        ImageRefused: Not a UKI, or a command line from outside, of which nobody knows the place
            among the events.
    """
    if how.command_line is not None:
        raise ImageRefused(
            "RTMR2 of a command line from outside is not known",
            check="command line",
            hint="measure the UKI with the command line that is in it",
        )
    digests = stub_events(uki, how) if stub >= _MEASURES_TO_TDX else []
    if not has_tpm:
        digests += kernel_events(uki, how)
    return extend(digests, "sha384").hex()
