"""A machine with a TPM under a test root: verified line by line, and explained."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from sealtrain.attest.bundle import Attachments
from sealtrain.attest.claims import Claim
from sealtrain.attest.cloudtpm.appraise import (
    BOOT_RULES,
    DOCUMENT_PCR,
    document_register,
)
from sealtrain.attest.cloudtpm.exhibit import BOOT_PCRS
from sealtrain.attest.errors import GuestApiUnreachable, SimulatedEvidence
from sealtrain.attest.facts import MeasuredDocument, SignedFacts, Situation
from sealtrain.attest.field import Field
from sealtrain.attest.rented import VtpmEvidence
from sealtrain.attest.roots import root_name
from sealtrain.attest.rules import about
from sealtrain.attest.testvtpm.policy import VtpmPolicy
from sealtrain.attest.tpm.fields import tpm_fields
from sealtrain.attest.tpm.form import VerifiedTpm, check_qualifying_data, verify_tpm
from sealtrain.attest.tpm.quote import QUOTE
from sealtrain.attest.verifier import Verifier

_TEST: Final = "a test root"


@dataclass(frozen=True, slots=True, kw_only=True)
class VtpmGuest:
    """What a TPM under a test root quoted."""

    boot: VerifiedTpm

    @property
    def simulated(self) -> bool:
        """Always: no vendor of hardware vouches for it."""
        return True

    @property
    def quote_identity(self) -> str:
        """SHA-256 of what the TPM signed."""
        return self.boot.quote.identity


def _prove(evidence: VtpmEvidence, beside: Attachments, at: Situation) -> SignedFacts[VtpmGuest]:
    if at.root is None:
        raise SimulatedEvidence(
            "evidence under a test root, where hardware is asked for",
            check="trust root",
            got=evidence.tee,
            expected="evidence of hardware",
        )
    boot = verify_tpm(evidence.tpm, simulator_root=at.root, now=at.now)
    report_data = bytes.fromhex(evidence.report_data)
    expected = hashlib.sha256(report_data).digest()
    check_qualifying_data(boot.quote, expected)
    tied = Claim(
        name="qualifying data",
        got=expected.hex(),
        expected=expected.hex(),
        source=QUOTE,
        outcome="equal",
    )
    measured = boot.registers[DOCUMENT_PCR].hex()
    return SignedFacts(
        statement=VtpmGuest(boot=boot),
        root=root_name(True, _TEST),
        report_data=report_data,
        source=QUOTE,
        document=MeasuredDocument(got=measured, source=QUOTE, of=document_register),
        held=(tied,),
    )


def _fields(evidence: VtpmEvidence) -> list[Field]:
    return list(tpm_fields(evidence.tpm, BOOT_PCRS, evidence.tpm.certificates_der))


def _show(place: Path, report_data: bytes) -> NoReturn:
    raise GuestApiUnreachable(
        "a machine under a test root shows its evidence through its own agent", check="guest API"
    )


VERIFIER: Verifier[VtpmEvidence, VtpmPolicy, VtpmGuest] = Verifier(
    prove=_prove,
    form=VtpmPolicy,
    rules=about(lambda guest: guest.boot, BOOT_RULES),
    eat=lambda guest: {
        "ueid": str(guest.boot.machine.instance_id),
        "hwmodel": "TPM under a test root",
    },
    fields=_fields,
    show=_show,
    pinned_roots={},
)
