"""A machine of Azure or Google: processor and cloud's TPM verified line by line, and explained."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sealtrain.attest.bundle import Attachments
from sealtrain.attest.claims import Claim
from sealtrain.attest.cloudtpm.appraise import (
    AZURE_SNP_RULES,
    AZURE_TDX_RULES,
    DOCUMENT_PCR,
    GCP_SNP_RULES,
    AnyGuest,
    CloudGuest,
    Processor,
    document_register,
)
from sealtrain.attest.cloudtpm.collect import collect_azure, collect_google_snp
from sealtrain.attest.cloudtpm.policy import AzureSnpPolicy, AzureTdxPolicy, GcpSnpPolicy
from sealtrain.attest.errors import EvidenceMalformed
from sealtrain.attest.facts import MeasuredDocument, SignedFacts, Situation
from sealtrain.attest.field import Field, on_off, rows_of
from sealtrain.attest.forms import StatementExhibit
from sealtrain.attest.gcp.appraise import check_quoted
from sealtrain.attest.registry import tee_of
from sealtrain.attest.rented import AzureSnpEvidence, AzureTdxEvidence, GcpSnpEvidence
from sealtrain.attest.roots import GOOGLE_EKAK_ROOT_SHA256
from sealtrain.attest.snp import appraise as snp
from sealtrain.attest.snp.exhibit import (
    AMD_ROOTS,
    report_chain,
    report_fields,
    report_root,
    verify_signed_report,
)
from sealtrain.attest.snp.parse import SnpReport, parse_report
from sealtrain.attest.statement import Collateral
from sealtrain.attest.tdx import appraise as tdx
from sealtrain.attest.tdx.exhibit import PINNED_ROOTS, quote_fields, quote_root, verify_signed_quote
from sealtrain.attest.tdx.parse import TdxQuote, parse_quote
from sealtrain.attest.tee import Shown
from sealtrain.attest.tpm.fields import tpm_fields
from sealtrain.attest.tpm.form import (
    QuotedTpm,
    TpmShown,
    WholeTpm,
    check_qualifying_data,
    verify_boot,
    verify_tpm,
)
from sealtrain.attest.tpm.hcl import HCL, RuntimeData, check_runtime, parse_runtime
from sealtrain.attest.tpm.quote import QUOTE
from sealtrain.attest.verifier import Verifier
from sealtrain.base.canonical import canonical_json
from sealtrain.base.models import load_model
from sealtrain.errors import EvidenceRefused


def _facts(
    guest: AnyGuest, root: str, report_data: bytes, tied: tuple[Claim, ...]
) -> SignedFacts[AnyGuest]:
    """Both statements of one machine, which are of one another.

    Args:
        guest: What they say.
        root: The processor's root, in words.
        report_data: 64 bytes; other bytes where a stranger chose what the TPM signs.
        tied: What ties the two, as it was compared.
    """
    measured = guest.boot.registers[DOCUMENT_PCR].hex()
    return SignedFacts(
        statement=guest,
        root=root,
        report_data=report_data,
        source=QUOTE,
        document=MeasuredDocument(got=measured, source=QUOTE, of=document_register),
        held=tied,
    )


def _azure(
    processor: Processor,
    signed: bytes,
    shown: QuotedTpm,
    runtime: RuntimeData,
    report_data: bytes | None,
) -> tuple[CloudGuest[Processor, RuntimeData], bytes, tuple[Claim, ...]]:
    """Azure's second statement: the processor signed for the key, the key for the quote.

    Args:
        processor: Verified.
        signed: Its report data.
        shown: The TPM's quote.
        runtime: The paravisor's text.
        report_data: What the quote must be for; ``None`` where a stranger asked.

    Returns:
        The guest, its report data, and what was compared.
    """
    check_runtime(runtime, signed)
    boot = verify_boot(shown, runtime.key)
    guest = CloudGuest(processor=processor, boot=boot, place=runtime)
    asked = boot.quote.qualifying_data
    tied: tuple[Claim, ...] = (_equal("runtime data", signed.hex(), HCL),)
    if report_data is None:
        return guest, asked, tied
    check_qualifying_data(boot.quote, hashlib.sha256(report_data).digest())
    return guest, report_data, (*tied, _equal("qualifying data", asked.hex(), QUOTE))


def _azure_snp(
    raw: bytes,
    certificates: tuple[bytes, ...],
    crl: bytes | None,
    tpm: QuotedTpm,
    runtime: Callable[[], RuntimeData],
    report_data: bytes | None,
    at: Situation,
) -> SignedFacts[AnyGuest]:
    report = verify_signed_report(raw, certificates, crl, at)
    guest, asked, tied = _azure(report, report.report.report_data, tpm, runtime(), report_data)
    return _facts(guest, report_root(report), asked, tied)


def _azure_tdx(
    raw: bytes,
    collateral: Collateral | None,
    tpm: QuotedTpm,
    runtime: Callable[[], RuntimeData],
    report_data: bytes | None,
    at: Situation,
) -> SignedFacts[AnyGuest]:
    rules = None if at.policy is None else at.policy.cpu
    own = rules if isinstance(rules, AzureTdxPolicy) else None
    quote = verify_signed_quote(raw, collateral, own, at)
    guest, asked, tied = _azure(quote, quote.report_data, tpm, runtime(), report_data)
    return _facts(guest, quote_root(quote), asked, tied)


def _gcp_snp(
    raw: bytes,
    certificates: tuple[bytes, ...],
    crl: bytes | None,
    shown: TpmShown,
    at: Situation,
) -> SignedFacts[AnyGuest]:
    report = verify_signed_report(raw, certificates, crl, at)
    tpm = verify_tpm(shown, simulator_root=at.root, now=at.now)
    tied = check_quoted(tpm, raw)
    guest = CloudGuest(processor=report, boot=tpm, place=tpm.machine)
    return _facts(guest, report_root(report), report.report.report_data, (tied,))


def _prove_gcp_snp(
    evidence: GcpSnpEvidence, beside: Attachments, at: Situation
) -> SignedFacts[AnyGuest]:
    crl = evidence.crl_der if beside.crl is None else beside.crl
    return _gcp_snp(evidence.report_bytes, evidence.certificates_der, crl, evidence.tpm, at)


def _equal(name: str, value: str, source: str) -> Claim:
    return Claim(name=name, got=value, expected=value, source=source, outcome="equal")


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureSnp(StatementExhibit):
    """What a guest on Azure with SEV-SNP showed others; its quote is of a nonce that they chose."""

    tee = "azure-snp"
    kind = "azure-snp-evidence"
    title = "guest on Azure: SEV-SNP report of the paravisor, quote of its TPM"
    report: SnpReport
    inside: tuple[bytes, ...]
    """Certificates that came along, DER."""
    runtime: RuntimeData
    tpm: WholeTpm

    def prove(self, beside: Attachments, at: Situation) -> SignedFacts[AnyGuest]:
        """Both signatures and what ties them."""
        chain, known = self._chain(beside), partial(_same, self.runtime)
        return _azure_snp(self.report.raw, chain, beside.crl, self.tpm, known, None, at)

    def fields(self, beside: Attachments) -> list[Field]:
        """Of report, paravisor and quote."""
        try:
            chain = self._chain(beside)
        except EvidenceRefused:
            chain = self.inside
        return [*report_fields(self.report, chain), *_paravisor_fields(self.runtime, self.tpm)]

    def root(self, beside: Attachments) -> bytes:
        """The last certificate of its chain."""
        return self._chain(beside)[-1]

    def _chain(self, beside: Attachments) -> tuple[bytes, ...]:
        return report_chain(self.report, {}, self.inside, beside.certificates)


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureTdx(StatementExhibit):
    """The same with TDX."""

    tee = "azure-tdx"
    kind = "azure-tdx-evidence"
    title = "guest on Azure: TDX quote of the paravisor, quote of its TPM"
    quote: TdxQuote
    runtime: RuntimeData
    tpm: WholeTpm

    def prove(self, beside: Attachments, at: Situation) -> SignedFacts[AnyGuest]:
        """Both signatures and what ties them."""
        known = partial(_same, self.runtime)
        return _azure_tdx(self.quote.raw, beside.collateral, self.tpm, known, None, at)

    def fields(self, beside: Attachments) -> list[Field]:
        """Of quote, paravisor and the TPM's quote."""
        return [*quote_fields(self.quote), *_paravisor_fields(self.runtime, self.tpm)]

    def root(self, beside: Attachments) -> bytes:
        """As the quote carries it."""
        return self.quote.root_der


@dataclass(frozen=True, slots=True, kw_only=True)
class GoogleSnp(StatementExhibit):
    """What a guest on Google Cloud with SEV-SNP shows this process; no file has this form."""

    tee = "gcp-snp"
    kind = "gcp-snp-evidence"
    title = "guest on Google Cloud: SEV-SNP report, quote of its TPM"
    report: SnpReport
    tpm: TpmShown

    def prove(self, beside: Attachments, at: Situation) -> SignedFacts[AnyGuest]:
        """Both signatures and what ties them."""
        return _gcp_snp(self.report.raw, beside.certificates, beside.crl, self.tpm, at)

    def fields(self, beside: Attachments) -> list[Field]:
        """Of report and quote."""
        shown = tpm_fields(self.tpm, BOOT_PCRS, self.tpm.certificates_der)
        return [*report_fields(self.report, beside.certificates), *shown]

    def root(self, beside: Attachments) -> bytes:
        """The last certificate of the report's chain."""
        return beside.certificates[-1]


def _same(runtime: RuntimeData) -> RuntimeData:
    return runtime


BOOT_PCRS: Mapping[int, str] = {
    0: "Firmware of the machine.",
    4: "Programs that the firmware started.",
    7: "State of Secure Boot.",
    8: "What a boot loader was told to do.",
    9: "What was loaded: command line, initrd.",
    11: "Sections of a unified kernel image.",
    12: "Command lines and files from outside the image.",
    14: "Our images: the deployment document.",
}


def _paravisor_fields(runtime: RuntimeData, shown: QuotedTpm) -> list[Field]:
    rows = [
        ("virtual machine", runtime.vm_id or "none", "Azure's id of the machine."),
        ("Secure Boot", on_off(runtime.secure_boot), "What the paravisor says; PCR 7 shows it."),
    ]
    return [*rows_of(rows), *tpm_fields(shown, BOOT_PCRS)]


def _azure_own(
    evidence: AzureSnpEvidence | AzureTdxEvidence,
) -> tuple[Callable[[], RuntimeData], bytes]:
    text = evidence.runtime.encode("ascii")
    return partial(parse_runtime, text), bytes.fromhex(evidence.report_data)


def _prove_azure_snp(
    evidence: AzureSnpEvidence, beside: Attachments, at: Situation
) -> SignedFacts[AnyGuest]:
    crl = evidence.crl_der if beside.crl is None else beside.crl
    runtime, report_data = _azure_own(evidence)
    return _azure_snp(
        evidence.report_bytes,
        evidence.certificates_der,
        crl,
        evidence.tpm,
        runtime,
        report_data,
        at,
    )


def _prove_azure_tdx(
    evidence: AzureTdxEvidence, beside: Attachments, at: Situation
) -> SignedFacts[AnyGuest]:
    runtime, report_data = _azure_own(evidence)
    raw = evidence.quote_bytes
    return _azure_tdx(raw, beside.collateral, evidence.tpm, runtime, report_data, at)


def _azure_snp_fields(evidence: AzureSnpEvidence) -> list[Field]:
    found = report_fields(parse_report(evidence.report_bytes), evidence.certificates_der)
    return [*found, *_paravisor_fields(_azure_own(evidence)[0](), evidence.tpm)]


def _azure_tdx_fields(evidence: AzureTdxEvidence) -> list[Field]:
    found = quote_fields(parse_quote(evidence.quote_bytes))
    return [*found, *_paravisor_fields(_azure_own(evidence)[0](), evidence.tpm)]


def _gcp_snp_fields(evidence: GcpSnpEvidence) -> list[Field]:
    found = report_fields(parse_report(evidence.report_bytes), evidence.certificates_der)
    shown = tpm_fields(evidence.tpm, BOOT_PCRS, evidence.tpm.certificates_der)
    return [*found, *shown]


def _ask_machine(
    kind: str, place: Path, report_data: bytes
) -> tuple[StatementExhibit, Attachments]:
    """Ask this machine, and read the answer as a verifier would."""
    collect = _COLLECTORS[kind]
    shown = collect(place, report_data, {})
    evidence = load_model(
        tee_of(kind).evidence, {**shown, "app_compose": "{}"}, EvidenceMalformed, "evidence"
    )
    raw = canonical_json(shown)
    if isinstance(evidence, AzureTdxEvidence):
        runtime = parse_runtime(evidence.runtime.encode("ascii"))
        quote = parse_quote(evidence.quote_bytes)
        return AzureTdx(raw=raw, quote=quote, runtime=runtime, tpm=evidence.tpm), Attachments()
    if isinstance(evidence, AzureSnpEvidence):
        exhibit: StatementExhibit = AzureSnp(
            raw=raw,
            report=parse_report(evidence.report_bytes),
            inside=evidence.certificates_der,
            runtime=parse_runtime(evidence.runtime.encode("ascii")),
            tpm=evidence.tpm,
        )
        return exhibit, Attachments(certificates=evidence.certificates_der, crl=evidence.crl_der)
    if not isinstance(evidence, GcpSnpEvidence):
        raise TypeError(kind)
    exhibit = GoogleSnp(raw=raw, report=parse_report(evidence.report_bytes), tpm=evidence.tpm)
    return exhibit, Attachments(certificates=evidence.certificates_der, crl=evidence.crl_der)


_COLLECTORS: Mapping[str, Callable[[Path, bytes, Mapping[str, str]], Shown]] = {
    "azure-snp": partial(collect_azure, "snp"),
    "azure-tdx": partial(collect_azure, "tdx"),
    "gcp-snp": collect_google_snp,
}

AZURE_SNP: Verifier[AzureSnpEvidence, AzureSnpPolicy, AnyGuest] = Verifier(
    prove=_prove_azure_snp,
    form=AzureSnpPolicy,
    rules=AZURE_SNP_RULES,
    eat=lambda guest: snp.eat(guest.processor),
    fields=_azure_snp_fields,
    show=partial(_ask_machine, "azure-snp"),
    collect=_COLLECTORS["azure-snp"],
    pinned_roots=AMD_ROOTS,
)
AZURE_TDX: Verifier[AzureTdxEvidence, AzureTdxPolicy, AnyGuest] = Verifier(
    prove=_prove_azure_tdx,
    form=AzureTdxPolicy,
    rules=AZURE_TDX_RULES,
    eat=lambda guest: tdx.eat(guest.processor),
    fields=_azure_tdx_fields,
    show=partial(_ask_machine, "azure-tdx"),
    collect=_COLLECTORS["azure-tdx"],
    pinned_roots=PINNED_ROOTS,
)
GCP_SNP: Verifier[GcpSnpEvidence, GcpSnpPolicy, AnyGuest] = Verifier(
    prove=_prove_gcp_snp,
    form=GcpSnpPolicy,
    rules=GCP_SNP_RULES,
    eat=lambda guest: snp.eat(guest.processor),
    fields=_gcp_snp_fields,
    show=partial(_ask_machine, "gcp-snp"),
    collect=_COLLECTORS["gcp-snp"],
    pinned_roots={**AMD_ROOTS, GOOGLE_EKAK_ROOT_SHA256: "Google's pinned root of vTPM keys"},
)
