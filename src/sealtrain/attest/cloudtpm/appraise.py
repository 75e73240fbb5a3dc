"""Appraisal of a machine whose processor and whose cloud's TPM signed.

After the processor's lines:

1. every boot register that the policy names, of a listed boot;
2. the machine: by its id on Azure, by project, zone and number on Google Cloud.

The deployment document is in PCR 14, which the image's init extends once with its hash.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar

from sealtrain.attest.claims import Check, Claim, among
from sealtrain.attest.cloudtpm.policy import (
    AzurePolicy,
    AzureSnpPolicy,
    AzureTdxPolicy,
    CloudBoot,
    GcpSnpPolicy,
)
from sealtrain.attest.gcp.appraise import place_checks
from sealtrain.attest.snp import appraise as snp
from sealtrain.attest.snp.verify import VerifiedReport
from sealtrain.attest.tdx import appraise as tdx
from sealtrain.attest.tdx.verify import VerifiedQuote
from sealtrain.attest.tpm.chain import GoogleMachine
from sealtrain.attest.tpm.form import VerifiedBoot
from sealtrain.attest.tpm.hcl import HCL, RuntimeData
from sealtrain.attest.tpm.quote import QUOTE
from sealtrain.errors import MeasurementMismatch, PlatformMismatch

__all__ = [
    "DOCUMENT_PCR",
    "CloudGuest",
    "Processor",
    "azure_snp_checks",
    "azure_tdx_checks",
    "document_register",
    "gcp_snp_checks",
]

DOCUMENT_PCR: Final = 14
_BOOT_PCRS = (0, 4, 7, 8, 9, 11, 12)
Processor = TypeVar("Processor", VerifiedReport, VerifiedQuote)
Place = TypeVar("Place", RuntimeData, GoogleMachine)


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudGuest(Generic[Processor, Place]):
    """A processor's statement, and the quote of a TPM that the cloud runs.

    Attributes:
        processor: What AMD or Intel vouches for.
        boot: What the TPM quoted.
        place: The machine, as the paravisor or Google's certificate names it.
    """

    processor: Processor
    boot: VerifiedBoot
    place: Place

    @property
    def simulated(self) -> bool:
        """A simulator signed it: both statements lead to one root."""
        return self.processor.simulated

    @property
    def quote_identity(self) -> str:
        """SHA-256 of what the TPM signed: on Azure a processor signs once for all conversations."""
        return self.boot.quote.identity


def document_register(compose_hash: str) -> str:
    """PCR 14, hex, of a guest that extended it once with its deployment document's hash."""
    return hashlib.sha256(bytes(32) + bytes.fromhex(compose_hash)).hexdigest()


def azure_snp_checks(
    guest: CloudGuest[VerifiedReport, RuntimeData], policy: AzureSnpPolicy, now: int
) -> tuple[Check, ...]:
    """What a guest on Azure with SEV-SNP is compared with, not compared yet.

    Args:
        guest: Verified statements.
        policy: Reference values.
        now: Verification time, seconds since 1970.

    The comparisons raise as those of the processor, and:
        MeasurementMismatch: The boot is not listed.
        PlatformMismatch: The machine is not.
    """
    return (*snp.checks_of(guest.processor, policy, now), *_azure_checks(guest, policy))


def azure_tdx_checks(
    guest: CloudGuest[VerifiedQuote, RuntimeData], policy: AzureTdxPolicy, now: int
) -> tuple[Check, ...]:
    """The same with TDX."""
    return (*tdx.checks_of(guest.processor, policy, now), *_azure_checks(guest, policy))


def gcp_snp_checks(
    guest: CloudGuest[VerifiedReport, GoogleMachine], policy: GcpSnpPolicy, now: int
) -> tuple[Check, ...]:
    """The same on Google Cloud with SEV-SNP."""
    return (
        *snp.checks_of(guest.processor, policy, now),
        partial(_boot, guest.boot, policy.boots),
        *place_checks(guest.place, policy),
    )


def _azure_checks(guest: CloudGuest[Any, RuntimeData], policy: AzurePolicy) -> tuple[Check, ...]:
    return (
        partial(_boot, guest.boot, policy.boots),
        partial(
            among,
            "virtual machine",
            guest.place.vm_id,
            policy.vm_ids,
            source=HCL,
            error=PlatformMismatch,
            message="guest runs in a virtual machine that the policy does not list",
        ),
    )


def _boot(boot: VerifiedBoot, accepted: tuple[CloudBoot, ...]) -> Claim:
    got = {index: value.hex() for index, value in boot.registers.items()}
    for one in accepted:
        named = one.registers
        if all(got.get(index) == value for index, value in named.items()):
            said = " ".join(f"pcr{index} {value}" for index, value in named.items())
            return Claim(name="boot", got=said, expected=said, source=QUOTE, outcome="equal")
    raise MeasurementMismatch(
        "machine booted another image than any the policy lists",
        check="boot",
        got=" ".join(f"pcr{index} {got.get(index)}" for index in _BOOT_PCRS),
        expected=f"one of {len(accepted)} boots",
    )
