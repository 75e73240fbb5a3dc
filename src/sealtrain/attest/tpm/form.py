"""What a guest shows of its vTPM, and how that is verified (spec/evidence-tpm.md)."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated

from pydantic import Field, StringConstraints, model_validator

from sealtrain.attest.statement import MAX_LOG_ENTRIES, encoded
from sealtrain.attest.tpm.chain import (
    MAX_AK_CERTIFICATE_BYTES,
    MAX_AK_CERTIFICATES,
    Machine,
    verify_key_chain,
)
from sealtrain.attest.tpm.log import BOOT_LOG, replay_digests
from sealtrain.attest.tpm.quote import (
    MAX_QUOTE_BYTES,
    MAX_SIGNATURE_BYTES,
    QUOTE,
    REGISTERS,
    TpmQuote,
    check_registers,
    check_signature,
    parse_quote,
)
from sealtrain.base.encoding import from_base64
from sealtrain.base.models import ONE_SPELLING, Base64, StrictModel
from sealtrain.errors import EventLogMismatch, EvidenceMalformed, ReportDataMismatch

__all__ = [
    "TpmEvent",
    "TpmRegister",
    "TpmShown",
    "VerifiedTpm",
    "check_qualifying_data",
    "verify_tpm",
]

_Digest = Annotated[str, StringConstraints(pattern=r"^(?:[0-9a-f]{64}|[0-9a-f]{96})$")]
_Index = Annotated[int, Field(ge=0, lt=REGISTERS)]
_Certificate = Annotated[Base64, encoded(MAX_AK_CERTIFICATE_BYTES), ONE_SPELLING]


class TpmRegister(StrictModel):
    """A register and its value, hex."""

    index: _Index
    value: _Digest


class TpmEvent(StrictModel):
    """What extended a register: its digest in the quoted bank, hex."""

    index: _Index
    digest: _Digest


class TpmShown(StrictModel):
    """A quote of a vTPM with all that its verification needs."""

    message: Annotated[Base64, encoded(MAX_QUOTE_BYTES), ONE_SPELLING]
    """``TPMS_ATTEST``."""
    signature: Annotated[Base64, encoded(MAX_SIGNATURE_BYTES), ONE_SPELLING]
    """``TPMT_SIGNATURE``."""
    registers: Annotated[tuple[TpmRegister, ...], Field(min_length=1, max_length=REGISTERS)]
    """The quoted registers, ascending."""
    certificates: Annotated[
        tuple[_Certificate, ...], Field(min_length=1, max_length=MAX_AK_CERTIFICATES)
    ]
    """DER: the attestation key's own first, the root last. One by itself verifies nowhere."""
    events: Annotated[tuple[TpmEvent, ...], Field(max_length=MAX_LOG_ENTRIES)]
    """What extended registers before the system measured itself; empty where it is not shown."""

    @model_validator(mode="after")
    def _ascending(self) -> TpmShown:
        indexes = [register.index for register in self.registers]
        if indexes != sorted(set(indexes)):
            raise ValueError("registers of a TPM quote are not in ascending order")
        return self

    @property
    def values(self) -> dict[int, bytes]:
        """Registers by index."""
        return {shown.index: bytes.fromhex(shown.value) for shown in self.registers}

    @property
    def certificates_der(self) -> tuple[bytes, ...]:
        """Certificates, decoded."""
        return tuple(map(from_base64, self.certificates))


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedTpm:
    """A quote whose signature leads to a trusted root, with the registers it covers."""

    quote: TpmQuote
    registers: Mapping[int, bytes]
    machine: Machine
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
    check_signature(quote, from_base64(shown.signature), chain.key)
    values = shown.values
    check_registers(quote, values)
    _check_events(quote, values, shown.events)
    return VerifiedTpm(
        quote=quote,
        registers=MappingProxyType(values),
        machine=chain.machine,
        simulated=chain.simulated,
        valid_from=chain.valid_from,
        valid_until=chain.valid_until,
    )


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
