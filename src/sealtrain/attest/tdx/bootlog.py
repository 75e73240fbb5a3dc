"""The firmware's event log of a TDX guest (CCEL), and its replay to RTMR0 to RTMR2.

Linux shows the log as the data of an ACPI table. It is of the crypto-agile form of TPMs, with one
bank, SHA-384, and with register numbers of its own: 0 is MRTD, which no event extends, and 1 to 4
are RTMR0 to RTMR3 (*Intel TDX Virtual Firmware Design Guide*, §8). The host can write what it likes
there; a log counts only where it replays to a quote's registers. Register 3 is not the firmware's:
its events are left out.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from sealtrain.attest.errors import EventLogMismatch, EvidenceMalformed
from sealtrain.attest.tdx.tee import FirmwareEvent
from sealtrain.attest.tpm.log import parse_log, replay_digests
from sealtrain.base.files import read_bounded
from sealtrain.errors import DataInvalid, EvidenceRefused

BOOT_LOG: Final = "boot log"
CCEL: Final = Path("/sys/firmware/acpi/tables/data/CCEL")
MAX_CCEL_BYTES: Final = 1 << 20
"""Firmware reserves 64 KiB; clouds more."""
MAX_EVENTS: Final = 1024
_REGISTERS: Final = (0, 1, 2)


def parse_ccel(raw: bytes) -> tuple[FirmwareEvent, ...]:
    """Events of RTMR0 to RTMR2, in the order they were measured.

    Args:
        raw: The log; filler of 0xFF bytes may follow the last event.

    Raises:
        EvidenceMalformed: Another form, another bank, or over a limit.
    """
    if len(raw) > MAX_CCEL_BYTES:
        raise _refuse_malformed(f"it is longer than {MAX_CCEL_BYTES} bytes")
    log = parse_log(raw, first=1)
    if "sha384" not in log.banks:
        raise _refuse_malformed("it has no digests of SHA-384")
    if any(event.register > 4 for event in log.events):
        raise _refuse_malformed("an event is of no register of a TDX guest")
    found = [event for event in log.events if event.register - 1 in _REGISTERS]
    if len(found) > MAX_EVENTS:
        raise _refuse_malformed(f"it holds more than {MAX_EVENTS} events")
    return tuple(
        FirmwareEvent(index=event.register - 1, digest=event.digests["sha384"].hex())
        for event in found
    )


def replay_events(events: Iterable[FirmwareEvent], register: int) -> bytes:
    """What a register holds after its events of a log."""
    digests = [bytes.fromhex(event.digest) for event in events if event.index == register]
    return replay_digests(digests, "sha384")


def check_events(events: Sequence[FirmwareEvent], registers: Sequence[str]) -> None:
    """Compare a log with a quote's registers, all three that firmware extends.

    Args:
        events: Of the log.
        registers: RTMR0 to RTMR3, hex.

    Raises:
        EventLogMismatch: A register holds something else.
    """
    for index in _REGISTERS:
        found, quoted = replay_events(events, index), bytes.fromhex(registers[index])
        if not hmac.compare_digest(found, quoted):
            raise EventLogMismatch(
                f"boot log does not replay to RTMR{index} of the quote",
                check=BOOT_LOG,
                got=found.hex(),
                expected=quoted.hex(),
                hint="an event was changed, dropped, added or moved after it was measured",
            )


def read_events(registers: Sequence[str], path: Path = CCEL) -> tuple[FirmwareEvent, ...]:
    """This guest's log, where it has one that replays to its quote; else nothing.

    A log that does not replay would have every verifier refuse evidence that is good without it. A
    policy that requires a log refuses a guest that shows none.
    """
    try:
        events = parse_ccel(read_bounded(path, MAX_CCEL_BYTES))
        check_events(events, registers)
    except (DataInvalid, EvidenceRefused):
        return ()
    return events


def _refuse_malformed(problem: str) -> EvidenceMalformed:
    return EvidenceMalformed(f"boot log is malformed: {problem}", check=BOOT_LOG)
