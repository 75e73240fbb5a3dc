"""Appraisal of a machine whose processor and whose cloud's TPM signed.

After the processor's lines:

1. every boot register that the policy names, of a listed boot;
2. the machine: by its id on Azure, by project, zone and number on Google Cloud.

The deployment document is in PCR 14, which the image's init extends once with its hash.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from sealtrain.attest.claims import Claim, among
from sealtrain.attest.cloudtpm.policy import AzurePolicy, CloudBoot
from sealtrain.attest.errors import MeasurementMismatch, PlatformMismatch
from sealtrain.attest.gcp.appraise import PLACE_RULES
from sealtrain.attest.rules import Rule, about
from sealtrain.attest.snp import appraise as snp
from sealtrain.attest.snp.verify import VerifiedReport
from sealtrain.attest.tdx import appraise as tdx
from sealtrain.attest.tdx.verify import VerifiedQuote
from sealtrain.attest.tpm.chain import GoogleMachine
from sealtrain.attest.tpm.form import VerifiedBoot
from sealtrain.attest.tpm.hcl import HCL, RuntimeData
from sealtrain.attest.tpm.quote import QUOTE

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


AnyGuest = CloudGuest[Any, Any]


class ListedBoots(Protocol):
    """Which boots a policy accepts."""

    @property
    def boots(self) -> tuple[CloudBoot, ...]:
        """Registers of each."""


def document_register(compose_hash: str) -> str:
    """PCR 14, hex, of a guest that extended it once with its deployment document's hash."""
    return hashlib.sha256(bytes(32) + bytes.fromhex(compose_hash)).hexdigest()


def _boot(boot: VerifiedBoot, policy: ListedBoots, now: int) -> Claim:
    accepted = policy.boots
    got = {index: value.hex() for index, value in boot.registers.items()}
    for known in accepted:
        named = known.registers
        if all(got.get(index) == value for index, value in named.items()):
            said = " ".join(f"pcr{index} {value}" for index, value in named.items())
            return Claim(name="boot", got=said, expected=said, source=QUOTE, outcome="equal")
    raise MeasurementMismatch(
        "machine booted another image than any the policy lists",
        check="boot",
        got=" ".join(f"pcr{index} {got.get(index)}" for index in _BOOT_PCRS),
        expected=f"one of {len(accepted)} boots",
    )


def _virtual_machine(place: RuntimeData, policy: AzurePolicy, now: int) -> Claim:
    return among(
        "virtual machine",
        place.vm_id,
        policy.vm_ids,
        source=HCL,
        error=PlatformMismatch,
        message="guest runs in a virtual machine that the policy does not list",
    )


def _processor(guest: AnyGuest) -> Any:
    return guest.processor


def _place(guest: AnyGuest) -> Any:
    return guest.place


BOOT_RULES: Final = (Rule(name="boot", compare=_boot),)
_BOOT: Final = about(lambda guest: guest.boot, BOOT_RULES)
_MACHINE: Final = about(_place, (Rule(name="virtual machine", compare=_virtual_machine),))

AZURE_SNP_RULES: Final = (*about(_processor, snp.RULES), *_BOOT, *_MACHINE)
AZURE_TDX_RULES: Final = (*about(_processor, tdx.RULES), *_BOOT, *_MACHINE)
GCP_SNP_RULES: Final = (*about(_processor, snp.RULES), *_BOOT, *about(_place, PLACE_RULES))
"""The processor's rules, then those of the machine that the cloud's TPM speaks for."""
