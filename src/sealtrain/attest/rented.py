"""Confidential machines of Azure and Google, for the rest of attest."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import StringConstraints

from sealtrain.attest.cloudtpm import policy
from sealtrain.attest.snp.tee import ReportEvidence
from sealtrain.attest.statement import GuestEvidence, GuestPolicy
from sealtrain.attest.tdx.tee import QuoteEvidence
from sealtrain.attest.tee import Tee
from sealtrain.attest.tpm.form import WholeTpm, WholeTpmShown

__all__ = ["TEES", "AzureEvidence", "AzureSnpEvidence", "AzureTdxEvidence", "GcpSnpEvidence"]

_ReportData = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{128}$")]
_Runtime = Annotated[str, StringConstraints(pattern=r"^[\t\n\r -~]{2,16384}$")]


class AzureEvidence(GuestEvidence):
    """What a guest on Azure shows besides its processor's statement."""

    runtime: _Runtime
    """The paravisor's JSON text, whose hash the processor signed."""
    tpm: WholeTpm
    """A quote by the key that the text names."""
    report_data: _ReportData
    """What the quote's qualifying data are SHA-256 of, hex."""


class AzureSnpEvidence(ReportEvidence, AzureEvidence):
    """A guest on Azure with SEV-SNP."""

    tee: Literal["azure-snp"]


class AzureTdxEvidence(QuoteEvidence, AzureEvidence):
    """A guest on Azure with TDX."""

    tee: Literal["azure-tdx"]


class GcpSnpEvidence(ReportEvidence):
    """A guest on Google Cloud with SEV-SNP, and its vTPM's quote of the report."""

    tee: Literal["gcp-snp"]
    tpm: WholeTpmShown


def _tee(
    name: str,
    form: type[GuestEvidence],
    rules: type[GuestPolicy],
    *,
    of: str,
    exhibit: str,
    kinds: tuple[str, ...] = (),
) -> Tee:
    vendor, root = ("amd", "AMD's root") if of == "snp" else ("intel", "Intel's root")
    return Tee(
        name=name,
        of=of,
        folder="cloudtpm",
        exhibit=exhibit,
        vendor=vendor,
        vendor_root=root,
        evidence=form,
        policy=rules,
        kinds=kinds,
        dcap=of == "tdx",
        lines=policy.LINES[name],
        comments=policy.COMMENTS[name],
        presets={name: policy.PRESETS[name]},
        simulated=policy.SIMULATED[name],
    )


TEES = (
    _tee(
        "azure-snp",
        AzureSnpEvidence,
        policy.AzureSnpPolicy,
        of="snp",
        exhibit="AZURE_SNP",
        kinds=("azure-snp-evidence",),
    ),
    _tee(
        "azure-tdx",
        AzureTdxEvidence,
        policy.AzureTdxPolicy,
        of="tdx",
        exhibit="AZURE_TDX",
        kinds=("azure-tdx-evidence",),
    ),
    _tee("gcp-snp", GcpSnpEvidence, policy.GcpSnpPolicy, of="snp", exhibit="GCP_SNP"),
)
