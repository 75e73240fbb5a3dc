"""What guests on rented machines show: dstack's kinds there, and those of Azure and Google.

``attest.kinds`` has their table. Each has a folder for its rules and its ``Verifier``.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from sealtrain.attest.dstack.tee import AgentEvidence
from sealtrain.attest.nitro.tee import DocumentEvidence
from sealtrain.attest.snp.tee import ReportEvidence
from sealtrain.attest.statement import MAX_LOG_ENTRIES, GuestEvidence, LogEntry
from sealtrain.attest.tdx.tee import QuoteEvidence
from sealtrain.attest.tpm.form import TpmShown, WholeTpm, WholeTpmShown

_ReportData = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{128}$")]
_Runtime = Annotated[str, StringConstraints(pattern=r"^[\t\n\r -~]{2,16384}$")]


class GcpEvidence(AgentEvidence):
    """A dstack guest on Google's TDX machines, which have a vTPM of Google's besides."""

    tee: Literal["dstack-gcp-tdx"]
    tpm: TpmShown


class NitroTpmEvidence(DocumentEvidence):
    """A dstack guest on EC2: the NitroTPM's document, and the log of what the guest measured."""

    tee: Literal["dstack-aws-nitro-tpm"]
    event_log: Annotated[tuple[LogEntry, ...], Field(min_length=1, max_length=MAX_LOG_ENTRIES)]
    vm_config: Annotated[str, StringConstraints(max_length=64 << 10)] | None


class DstackSnpEvidence(ReportEvidence):
    """A dstack guest on SEV-SNP: the report, and the text that its HOST_DATA commits to."""

    tee: Literal["dstack-amd-sev-snp"]
    mr_config: Annotated[str, StringConstraints(min_length=2, max_length=64 << 10)]


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


class VtpmEvidence(GuestEvidence):
    """A machine whose TPM's key a test root certified; nothing vouches for its hardware."""

    tee: Literal["test-vtpm"]
    tpm: WholeTpmShown
    report_data: _ReportData
    """What the quote's qualifying data are SHA-256 of, hex."""


class EnclaveTestEvidence(DocumentEvidence):
    """An enclave whose module's root is a test root; nothing vouches for its hardware."""

    tee: Literal["test-nitro"]


class GcpSnpEvidence(ReportEvidence):
    """A guest on Google Cloud with SEV-SNP, and its vTPM's quote of the report."""

    tee: Literal["gcp-snp"]
    tpm: WholeTpmShown
