"""Forms of exhibits: the kinds of files that people bring, parsed but not trusted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from sealtrain.attest.bundle import Attachments, Bundle
from sealtrain.attest.evidence import Collateral, Evidence, LogEntry
from sealtrain.attest.nvidia.collateral import GpuCollateral
from sealtrain.attest.nvidia.parse import GpuClaims, GpuDevice
from sealtrain.attest.nvidia.spdm import GpuReport

if TYPE_CHECKING:
    from sealtrain.attest.facts import SignedFacts, Situation
    from sealtrain.attest.field import Field
    from sealtrain.attest.nvidia.swid import Rim
    from sealtrain.attest.tee import SignedStatement


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhibit:
    """A file that was recognised."""

    kind: ClassVar[str]
    title: ClassVar[str]
    raw: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementExhibit(Exhibit, ABC):
    """What one processor signed, by itself, in the form of its TEE."""

    tee: ClassVar[str]

    @abstractmethod
    def prove(self, beside: Attachments, at: Situation) -> SignedFacts[SignedStatement]:
        """What was signed, once its signatures lead to a root, as ``Verifier.prove``."""

    @abstractmethod
    def fields(self, beside: Attachments) -> list[Field]:
        """Everything it says."""

    @abstractmethod
    def root(self, beside: Attachments) -> bytes:
        """The certificate (DER) its chain ends in; nothing of it is verified."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnEvidence(Exhibit):
    """sealtrain's own document: processor, accelerators, deployment document."""

    kind = "evidence"
    title = "Evidence of a guest"
    evidence: Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundled(Exhibit):
    """A verification with everything it needs."""

    kind = "bundle"
    title = "Bundle of a verification"
    bundle: Bundle


@dataclass(frozen=True, slots=True, kw_only=True)
class SgxQuote(Exhibit):
    """A quote of an SGX enclave, which is no guest."""

    kind = "sgx-quote"
    title = "Intel SGX quote"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus(Exhibit):
    """Reports of accelerators with their certificates."""

    kind = "gpu-evidence"
    title = "NVIDIA accelerator evidence"
    devices: tuple[GpuDevice, ...]
    claims: GpuClaims | None
    """What the guest read from its driver; files of NVIDIA's own tools do not hold it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotedGpus(Exhibit):
    """A quote with reports of accelerators, whose nonce is the second half of its report data."""

    kind = "quote-with-gpus"
    title = "Intel TDX quote with NVIDIA accelerator evidence"
    quote: StatementExhibit
    report_data: bytes
    """As the quote says it."""
    devices: tuple[GpuDevice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReportFile(Exhibit):
    """One accelerator's report without its certificates."""

    kind = "gpu-report"
    title = "NVIDIA accelerator report"
    report: GpuReport


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteVerdictFile(Exhibit):
    """An answer of NVIDIA's attestation service."""

    kind = "gpu-verdict"
    title = "Verdict of NVIDIA's attestation service (NRAS)"
    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims(Exhibit):
    """Claims of NVIDIA's service, decoded: the signature is lost."""

    kind = "gpu-claims"
    title = "Decoded claims of NVIDIA's attestation service"
    claims: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceValues(Exhibit):
    """A file of reference values (RIM)."""

    kind = "reference-values"
    title = "NVIDIA reference values (RIM)"
    rim: Rim


@dataclass(frozen=True, slots=True, kw_only=True)
class CollateralExhibit(Exhibit):
    """DCAP collateral."""

    kind = "tdx-collateral"
    title = "Intel DCAP collateral"
    collateral: Collateral


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPublished(Exhibit):
    """Accelerators' collateral."""

    kind = "gpu-collateral"
    title = "NVIDIA collateral"
    collateral: GpuCollateral


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates(Exhibit):
    """Certificates, DER."""

    kind = "certificates"
    title = "Certificates"
    certificates: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RevocationList(Exhibit):
    """A list of revoked certificates, DER."""

    kind = "revocation-list"
    title = "Revocation list (CRL)"
    crl: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLog(Exhibit):
    """An event log without the quote it belongs to."""

    kind = "event-log"
    title = "Event log of a dstack guest"
    log: tuple[LogEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BootLog(Exhibit):
    """A firmware's boot log (CCEL, TCG format)."""

    kind = "boot-log"
    title = "Boot log of a firmware (CCEL)"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentExhibit(Exhibit):
    """A dstack deployment document."""

    kind = "deployment"
    title = "Deployment document (app-compose)"
