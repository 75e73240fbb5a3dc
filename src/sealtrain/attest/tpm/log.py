"""The boot log of a machine with a TPM: every event, replayed to the registers it extended.

The log is the crypto-agile form of the TCG PC Client Platform Firmware Profile (§10): one event of
the old form that names the banks, then events with a digest for each bank. Events are found by
register and type, never by position: firmware moves them between versions, and a position proves
nothing. A digest is what the register was extended with; the event's data are believed only where
their hash is that digest, which is so for the types in ``COVERED``.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from sealtrain.attest.errors import EventLogMismatch
from sealtrain.attest.tpm.byte_cursor import Octets
from sealtrain.attest.tpm.quote import BANK_BYTES, REGISTERS, Bank

BOOT_LOG: Final = "boot log"
MAX_LOG_BYTES: Final = 16 << 20
_MAX_EVENTS = 1 << 16
_MAX_DATA_BYTES = 1 << 20
_NO_ACTION, _SEPARATOR, _ACTION, _FILLER = 0x3, 0x4, 0x80000007, 0xFFFFFFFF
_VARIABLES, _GPT = 0x80000001, 0x80000006
COVERED: Final = frozenset({_SEPARATOR, _ACTION, _VARIABLES, _GPT})
"""Types whose digest is the hash of the event's data."""
_ALGORITHMS: Final[Mapping[int, tuple[str, int]]] = {
    0x0004: ("sha1", 20),
    0x000B: ("sha256", 32),
    0x000C: ("sha384", 48),
    0x000D: ("sha512", 64),
    0x0012: ("sm3", 32),
}
_SIGNATURE = b"Spec ID Event03\0"
_LOCALITY = b"StartupLocality\0"


@dataclass(frozen=True, slots=True, kw_only=True)
class BootEvent:
    """One event: what extended which register."""

    register: int
    kind: int
    digests: Mapping[str, bytes]
    data: bytes

    def shows_data(self, bank: Bank) -> bool:
        """Whether the digest covers the data."""
        digest = self.digests.get(bank, b"")
        return self.kind in COVERED and hashlib.new(bank, self.data).digest() == digest


@dataclass(frozen=True, slots=True, kw_only=True)
class BootEvents:
    """A parsed log; nothing of it is true until it replays to quoted registers."""

    banks: tuple[str, ...]
    locality: int
    """How the TPM was started; the first value of register 0 ends in it."""
    events: tuple[BootEvent, ...]

    def find(self, register: int, kind: int) -> tuple[BootEvent, ...]:
        """Events of one register and type, in the order they were measured."""
        return tuple(
            event for event in self.events if (event.register, event.kind) == (register, kind)
        )

    def replay(self, register: int, bank: Bank) -> bytes:
        """What the register holds after every event of the log.

        Raises:
            EventLogMismatch: The log has no digests of this bank.
        """
        if bank not in self.banks:
            raise EventLogMismatch(
                "boot log has no digests of the quoted bank", check=BOOT_LOG, expected=bank
            )
        first = self.locality if register == 0 else 0
        digests = (event.digests[bank] for event in self.events if event.register == register)
        return replay_digests(digests, bank, first.to_bytes(BANK_BYTES[bank], "big"))


def replay_digests(digests: Iterable[bytes], bank: Bank, start: bytes | None = None) -> bytes:
    """A register that was extended with each digest in turn, from zeros or ``start``."""
    value = bytes(BANK_BYTES[bank]) if start is None else start
    for digest in digests:
        value = hashlib.new(bank, value + digest).digest()
    return value


def check_replay(
    log: BootEvents, bank: Bank, quoted: Mapping[int, bytes], registers: Iterable[int]
) -> None:
    """Compare the whole log with quoted registers.

    Args:
        log: Parsed log.
        bank: Bank of the quote.
        quoted: Quoted registers.
        registers: Which of them the firmware extends; every register that has an event besides.

    Raises:
        EventLogMismatch: A register was not quoted, or the log replays to another value.
    """
    for index in sorted({*registers, *(event.register for event in log.events)}):
        found = log.replay(index, bank)
        if index not in quoted or not hmac.compare_digest(found, quoted[index]):
            raise EventLogMismatch(
                f"boot log does not replay to PCR {index} of the quote",
                check=BOOT_LOG,
                got=found.hex(),
                expected=quoted[index].hex() if index in quoted else "a quoted register",
                hint="an event was changed, dropped, added or moved after it was measured",
            )


def parse_log(raw: bytes, *, first: int = 0) -> BootEvents:
    """Parse a log of at most 16 MiB; a filler of 0xFF bytes may follow the last event.

    Args:
        raw: The log.
        first: Register that the event which names the banks stands under, by its kind of log.

    Raises:
        EvidenceMalformed: Another form, an event without a digest for each bank, or over a limit.
    """
    reader = Octets(raw, BOOT_LOG, "little")
    if len(raw) > MAX_LOG_BYTES:
        raise reader.malformed_error(f"it is longer than {MAX_LOG_BYTES} bytes")
    if reader.number(4) != first or reader.number(4) != _NO_ACTION or any(reader.take(20)):
        raise reader.malformed_error("it does not begin with the event that names its banks")
    banks = _banks(reader.read_sized(4, 1024))
    locality = 0
    events: list[BootEvent] = []
    while reader.left:
        register = reader.number(4)
        if register == _FILLER:
            if reader.take(reader.left).strip(b"\xff"):
                raise reader.malformed_error("something follows the end of its events")
            break
        kind = reader.number(4)
        if register >= REGISTERS:
            raise reader.malformed_error("an event is of no register")
        digests = _digests(reader, banks)
        data = reader.read_sized(4, _MAX_DATA_BYTES)
        if kind == _NO_ACTION:
            if register == 0 and data.startswith(_LOCALITY):
                locality = _locality(reader, data, begun=bool(events))
            continue
        if len(events) == _MAX_EVENTS:
            raise reader.malformed_error(f"it holds more than {_MAX_EVENTS} events")
        events.append(BootEvent(register=register, kind=kind, digests=digests, data=data))
    return BootEvents(banks=tuple(banks.values()), locality=locality, events=tuple(events))


def _banks(spec: bytes) -> dict[int, str]:
    reader = Octets(spec, BOOT_LOG, "little")
    if reader.take(len(_SIGNATURE)) != _SIGNATURE:
        raise reader.malformed_error("it is not of the crypto-agile form")
    reader.take(8)  # platform class, versions, errata, size of a machine word
    banks: dict[int, str] = {}
    for _ in range(count := reader.number(4)):
        algorithm, size = reader.number(2), reader.number(2)
        name, expected = _ALGORITHMS.get(algorithm, ("", -1))
        if size != expected or algorithm in banks:
            raise reader.malformed_error("it names an unknown bank, or a bank twice")
        banks[algorithm] = name
    if not count:
        raise reader.malformed_error("it names no bank")
    reader.read_sized(1, 255)
    reader.finish()
    return banks


def _digests(reader: Octets, banks: Mapping[int, str]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    if reader.number(4) != len(banks):
        raise reader.malformed_error("an event has digests of other banks than the log names")
    for _ in banks:
        algorithm = reader.number(2)
        if algorithm not in banks or banks[algorithm] in found:
            raise reader.malformed_error("an event has a digest of another bank, or one twice")
        found[banks[algorithm]] = reader.take(_ALGORITHMS[algorithm][1])
    return found


def _locality(reader: Octets, data: bytes, *, begun: bool) -> int:
    tail = data.removeprefix(_LOCALITY)
    if begun or len(tail) != 1 or tail[0] not in (0, 3, 4):
        raise reader.malformed_error(
            "it names how the TPM was started too late, or by no known number"
        )
    return tail[0]
