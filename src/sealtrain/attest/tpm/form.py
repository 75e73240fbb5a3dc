"""What a guest shows of its vTPM, and how that is verified (spec/evidence-tpm.md)."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from sealtrain.attest.errors import EventLogMismatch, EvidenceMalformed, ReportDataMismatch
from sealtrain.attest.statement import MAX_LOG_ENTRIES, limit_base64
from sealtrain.attest.tpm.chain import (
    MAX_AK_CERTIFICATE_BYTES,
    MAX_AK_CERTIFICATES,
    GoogleMachine,
    verify_key_chain,
)
from sealtrain.attest.tpm.log import BOOT_LOG, replay_digests
from sealtrain.attest.tpm.quote import (
    BANK_BYTES,
    MAX_QUOTE_BYTES,
    MAX_SIGNATURE_BYTES,
    QUOTE,
    REGISTERS,
    AttestationKey,
    TpmQuote,
    check_registers,
    check_signature,
    parse_quote,
)
from sealtrain.base.encoding import from_base64
from sealtrain.base.models import ONE_SPELLING, Base64, StrictModel

_Digest = Annotated[str, StringConstraints(pattern=r"^(?:[0-9a-f]{64}|[0-9a-f]{96})$")]
_Index = Annotated[int, Field(ge=0, lt=REGISTERS)]
_Certificate = Annotated[Base64, limit_base64(MAX_AK_CERTIFICATE_BYTES), ONE_SPELLING]


class TpmRegister(StrictModel):
    """A register and its value, hex."""

    index: _Index
    value: _Digest


class TpmEvent(StrictModel):
    """What extended a register: its digest in the quoted bank, hex."""

    index: _Index
    digest: _Digest


class QuotedTpm(StrictModel):
    """A quote of a vTPM with the registers and events that it covers."""

    message: Annotated[Base64, limit_base64(MAX_QUOTE_BYTES), ONE_SPELLING]
    """``TPMS_ATTEST``."""
    signature: Annotated[Base64, limit_base64(MAX_SIGNATURE_BYTES), ONE_SPELLING]
    """``TPMT_SIGNATURE``."""
    registers: Annotated[tuple[TpmRegister, ...], Field(min_length=1, max_length=REGISTERS)]
    """The quoted registers, ascending."""
    events: Annotated[tuple[TpmEvent, ...], Field(max_length=MAX_LOG_ENTRIES)]
    """What extended registers before the system measured itself; empty where it is not shown."""

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        indexes = [register.index for register in self.registers]
        if indexes != sorted(set(indexes)):
            raise ValueError("registers of a TPM quote are not in ascending order")
        return self

    @property
    def values(self) -> dict[int, bytes]:
        """Registers by index."""
        return {shown.index: bytes.fromhex(shown.value) for shown in self.registers}


class TpmShown(QuotedTpm):
    """A quote of Google's vTPM, with the chain of its key."""

    certificates: Annotated[
        tuple[_Certificate, ...], Field(min_length=1, max_length=MAX_AK_CERTIFICATES)
    ]
    """DER: the attestation key's own first, the root last. One by itself verifies nowhere."""

    @property
    def certificates_der(self) -> tuple[bytes, ...]:
        """Certificates, decoded."""
        return tuple(map(from_base64, self.certificates))


class WholeTpm(QuotedTpm):
    """A quote of every register of the SHA-256 bank."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if len(self.registers) != REGISTERS or any(
            len(register.value) != 2 * BANK_BYTES["sha256"] for register in self.registers
        ):
            raise ValueError(f"not all {REGISTERS} registers of the SHA-256 bank")
        return self


class WholeTpmShown(WholeTpm, TpmShown):
    """The same of Google's vTPM, with the chain of its key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedBoot:
    """A quote whose signature holds under a key, with the registers it covers."""

    quote: TpmQuote
    registers: Mapping[int, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedTpm(VerifiedBoot):
    """A quote of Google's vTPM, whose signature leads to a trusted root."""

    machine: GoogleMachine
    simulated: bool
    valid_from: int
    valid_until: int


def verify_tpm(shown: TpmShown, *, simulator_root: bytes | None, now: int) -> VerifiedTpm:
    """Verify structure, chain, signature, registers and events, in this order.

    Args:
        shown: What the guest shows.
        simulator_root: The one software root to trust, or ``None`` for Google's.
        now: Verification time, seconds since 1970.

    Raises:
        EvidenceMalformed: A structure of another form.
        SimulatedEvidence: A simulator's chain where hardware is asked for.
        QuoteRootUntrusted: The chain ends in another root.
        CertificateChainInvalid: The chain does not hold at ``now``.
        DebugGuest: The attestation key was not made for production.
        QuoteInvalid: The signature does not hold.
        MeasurementMismatch: The registers are not those that were quoted.
        EventLogMismatch: The events do not replay to them.
    """
    quote = parse_quote(from_base64(shown.message))
    chain = verify_key_chain(shown.certificates_der, simulator_root=simulator_root, now=now)
    boot = verify_boot(shown, chain.key, quote=quote)
    return VerifiedTpm(
        quote=boot.quote,
        registers=boot.registers,
        machine=chain.machine,
        simulated=chain.simulated,
        valid_from=chain.valid_from,
        valid_until=chain.valid_until,
    )


def verify_boot(
    shown: QuotedTpm, key: AttestationKey, *, quote: TpmQuote | None = None
) -> VerifiedBoot:
    """Verify structure, signature, registers and events, in this order.

    Args:
        shown: What the guest shows.
        key: The attestation key; another statement vouches for it.
        quote: The parsed quote, where the caller has it already.

    Raises as ``verify_tpm``.
    """
    if quote is None:
        quote = parse_quote(from_base64(shown.message))
    check_signature(quote, from_base64(shown.signature), key)
    values = shown.values
    check_registers(quote, values)
    _check_events(quote, values, shown.events)
    return VerifiedBoot(quote=quote, registers=MappingProxyType(values))


def check_qualifying_data(quote: TpmQuote, expected: bytes) -> None:
    """Compare what a TPM signed besides its registers, in all its bytes.

    Raises:
        ReportDataMismatch: It was asked for by another conversation or statement.
    """
    got = quote.qualifying_data
    if len(got) != len(expected) or not hmac.compare_digest(got, expected):
        raise ReportDataMismatch(
            "TPM quote was made for another statement of the processor",
            check="qualifying data",
            got=got.hex() or "none",
            expected=expected.hex(),
        )


def _check_events(
    quote: TpmQuote, values: Mapping[int, bytes], events: tuple[TpmEvent, ...]
) -> None:
    digests: dict[int, list[bytes]] = {}
    for event in events:
        digests.setdefault(event.index, []).append(bytes.fromhex(event.digest))
    size = len(next(iter(values.values())))
    if any(len(digest) != size for measured in digests.values() for digest in measured):
        raise EvidenceMalformed(
            "an event's digest is of another bank than the quote", check=QUOTE, expected=quote.bank
        )
    for index, measured in sorted(digests.items()):
        found = replay_digests(measured, quote.bank)
        if index not in values or not hmac.compare_digest(found, values[index]):
            raise EventLogMismatch(
                f"events of the vTPM do not replay to PCR {index} of its quote",
                check=BOOT_LOG,
                got=found.hex(),
                expected=values[index].hex() if index in values else "a quoted register",
                hint="an event was changed, dropped, added or moved after it was measured",
            )
