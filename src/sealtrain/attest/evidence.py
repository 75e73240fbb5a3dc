"""Evidence: what a guest shows about itself, in one canonical, bounded document.

The document carries no verdict and no trust; ``attest.verify`` decides. Everything that nothing
signs is kept out or must be empty, so that one guest state has one evidence (spec/evidence.md §3).

``cpu`` is what the processor signed, in the form of its TEE; ``gpu`` what accelerators signed.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from sealtrain.attest.nvidia.collateral import GpuCollateral
from sealtrain.attest.nvidia.parse import GpuEvidence
from sealtrain.attest.snp.revocation import MAX_CRL_BYTES
from sealtrain.base.canonical import JsonValue, canonical_json
from sealtrain.base.digests import sha256_hex
from sealtrain.base.encoding import from_base64
from sealtrain.base.models import Base64, StrictModel, load_canonical, load_model
from sealtrain.base.platforms import Platform
from sealtrain.errors import DataInvalid, EvidenceMalformed

__all__ = [
    "DCAP_TEES",
    "MAX_COMPOSE_CHARS",
    "MAX_EVIDENCE_BYTES",
    "MAX_EVIDENCE_VALUES",
    "MAX_LOG_ENTRIES",
    "MAX_QUOTE_BYTES",
    "Collateral",
    "CpuEvidence",
    "DstackEvidence",
    "Evidence",
    "LogEntry",
    "NitroEvidence",
    "SnpEvidence",
    "TdxEvidence",
]


DCAP_TEES = ("dstack", "tdx")
"""TEEs whose quotes are verified with collateral that the vendor publishes apart."""

MAX_EVIDENCE_BYTES = 16 << 20
MAX_EVIDENCE_VALUES = 1 << 16
"""The longest log has an eighth of them."""
MAX_QUOTE_BYTES = 32 << 10
_MAX_DOCUMENT_BYTES = 16 << 10
_SNP_REPORT_BYTES = 1184
_MAX_CERTIFICATE_BYTES = 8 << 10
MAX_LOG_ENTRIES = 1024
MAX_COMPOSE_CHARS = 4 << 20
_MAX_PAYLOAD_HEX = 128 << 10

_Hex = Annotated[str, StringConstraints(pattern=r"^(?:[0-9a-f]{2})*$", max_length=_MAX_PAYLOAD_HEX)]
_CrlHex = Annotated[str, StringConstraints(pattern=r"^(?:[0-9a-f]{2})+$", max_length=4 << 20)]
_SignatureHex = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{128}$")]
_Chain = Annotated[str, StringConstraints(min_length=1, max_length=64 << 10)]
_Signed = Annotated[str, StringConstraints(min_length=1, max_length=512 << 10)]


class Collateral(StrictModel):
    """What the vendor publishes about a platform; field names are those of DCAP's collateral.

    ``tcb_info`` and ``qe_identity`` are the exact signed texts and are never re-serialised.
    """

    pck_crl_issuer_chain: _Chain
    root_ca_crl: _CrlHex
    pck_crl: _CrlHex
    tcb_info_issuer_chain: _Chain
    tcb_info: _Signed
    tcb_info_signature: _SignatureHex
    qe_identity_issuer_chain: _Chain
    qe_identity: _Signed
    qe_identity_signature: _SignatureHex

    @classmethod
    def from_dict(cls, data: JsonValue) -> Collateral:
        """Validate parsed JSON.

        Raises:
            EvidenceMalformed: A field is missing, unknown, of another form, or too long.
        """
        return load_model(cls, data, EvidenceMalformed, "collateral")


class LogEntry(StrictModel):
    """One event of a measured boot log.

    ``imr`` 0 to 2: a firmware event is its ``digest``; everything else about it is unsigned and
    has its neutral value (type 0, empty texts, version 1). ``imr`` 3: a run-time event is its type,
    name, payload and digest version; its ``digest`` is recomputed and therefore empty here.
    """

    imr: Annotated[int, Field(ge=0, le=3)]
    event_type: Annotated[int, Field(ge=0, le=0xFFFFFFFF)]
    digest: Annotated[str, StringConstraints(pattern=r"^(?:[0-9a-f]{96})?$")]
    event: Annotated[str, StringConstraints(max_length=256)]
    event_payload: _Hex
    version: Annotated[int, Field(ge=1, le=2)]


def _encoded(most: int) -> StringConstraints:
    return StringConstraints(min_length=4, max_length=(most + 2) // 3 * 4)


_Quote = Annotated[Base64, _encoded(MAX_QUOTE_BYTES)]
_Document = Annotated[Base64, _encoded(_MAX_DOCUMENT_BYTES)]
_Report = Annotated[Base64, _encoded(_SNP_REPORT_BYTES)]
_Certificate = Annotated[Base64, _encoded(_MAX_CERTIFICATE_BYTES)]
_Compose = Annotated[str, StringConstraints(min_length=2, max_length=MAX_COMPOSE_CHARS)]


class _Guest(StrictModel):
    """A guest that measured ``app_compose``: the deployment document's raw text, byte for byte."""

    tee: str
    app_compose: _Compose

    @field_validator("quote", "document", "report", "certificates", "crl", check_fields=False)
    @classmethod
    def _one_spelling(cls, value: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
        try:
            for text in (value,) if isinstance(value, str) else value or ():
                from_base64(text)
        except DataInvalid as error:
            raise ValueError(error.message) from None
        return value

    @property
    def app_compose_bytes(self) -> bytes:
        """The deployment document's raw bytes."""
        return self.app_compose.encode("utf-8")


class DstackEvidence(_Guest):
    """A dstack guest. ``vm_config`` is the host's unsigned statement, kept for the record."""

    tee: Literal["dstack"]
    quote: _Quote
    event_log: Annotated[tuple[LogEntry, ...], Field(min_length=1, max_length=MAX_LOG_ENTRIES)]
    vm_config: Annotated[str, StringConstraints(max_length=64 << 10)] | None

    @property
    def quote_bytes(self) -> bytes:
        """The quote, decoded."""
        return from_base64(self.quote)


class TdxEvidence(_Guest):
    """A TDX guest whose MRCONFIGID names its deployment document."""

    tee: Literal["tdx"]
    quote: _Quote

    @property
    def quote_bytes(self) -> bytes:
        """The quote, decoded."""
        return from_base64(self.quote)


class NitroEvidence(_Guest):
    """A Nitro enclave: the security module's document, which brings its certificates along."""

    tee: Literal["nitro"]
    document: _Document

    @property
    def document_bytes(self) -> bytes:
        """The document, decoded."""
        return from_base64(self.document)


class SnpEvidence(_Guest):
    """A SEV-SNP guest: report, and certificates from the chip's own up to the root."""

    tee: Literal["snp"]
    report: _Report
    certificates: Annotated[tuple[_Certificate, ...], Field(min_length=3, max_length=3)]
    crl: Annotated[Base64, _encoded(MAX_CRL_BYTES)] | None
    """The vendor's revocation list, DER; a policy may require it."""

    @property
    def report_bytes(self) -> bytes:
        """The report, decoded."""
        return from_base64(self.report)

    @property
    def crl_der(self) -> bytes | None:
        """The revocation list, decoded."""
        return None if self.crl is None else from_base64(self.crl)

    @property
    def certificates_der(self) -> tuple[bytes, bytes, bytes]:
        """Leaf, intermediate, root."""
        leaf, intermediate, root = (from_base64(text) for text in self.certificates)
        return leaf, intermediate, root


CpuEvidence = Annotated[
    DstackEvidence | TdxEvidence | NitroEvidence | SnpEvidence, Field(discriminator="tee")
]


class Evidence(StrictModel):
    """Evidence of one guest at one moment, with what a later verifier needs to repeat the check."""

    version: Annotated[int, Field(ge=2, le=2)]  # unlike Literal[2], refuses other types
    platform: Platform
    cpu: CpuEvidence
    gpu: GpuEvidence | None
    collateral: Collateral | None
    gpu_collateral: GpuCollateral | None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.platform not in (self.cpu.tee, "simulator"):
            raise ValueError("platform is neither the TEE of the evidence nor a simulator")
        if self.collateral is not None and self.cpu.tee not in DCAP_TEES:
            raise ValueError("this TEE has no DCAP collateral")
        if self.gpu_collateral is not None and self.gpu is None:
            raise ValueError("collateral of accelerators without accelerators")
        return self

    @property
    def gpu_digest(self) -> bytes:
        """What report data commits to: 32 bytes, none where the guest shows no accelerator."""
        return b"" if self.gpu is None else self.gpu.digest

    @property
    def digest(self) -> str:
        """SHA-256 of ``to_bytes()``, 64 hex digits: names this document, not the quote's state."""
        return sha256_hex(self.to_bytes())

    def to_bytes(self) -> bytes:
        """Canonical JSON (RFC 8785)."""
        return canonical_json(self.to_dict())

    def with_collateral(
        self, collateral: Collateral | None, gpu_collateral: GpuCollateral | None = None
    ) -> Self:
        """The same evidence with other collateral, to archive a verification and its inputs."""
        return self.model_copy(update={"collateral": collateral, "gpu_collateral": gpu_collateral})

    @classmethod
    def from_bytes(cls, data: bytes) -> Evidence:
        """Parse canonical JSON of at most ``MAX_EVIDENCE_BYTES``.

        Raises:
            EvidenceMalformed: Too long, too deep, of too many values, not canonical, or not
                evidence.
        """
        return load_canonical(
            cls,
            data,
            EvidenceMalformed,
            "evidence",
            max_bytes=MAX_EVIDENCE_BYTES,
            max_values=MAX_EVIDENCE_VALUES,
            check="evidence form",
            hint="evidence is canonical JSON (RFC 8785) as spec/evidence.md describes it",
        )

    @classmethod
    def from_dict(cls, data: JsonValue) -> Evidence:
        """Validate parsed JSON.

        Raises:
            EvidenceMalformed: A field is missing, unknown, of another form, or too long.
        """
        return load_model(cls, data, EvidenceMalformed, "evidence")

    @classmethod
    def build(
        cls,
        platform: Platform,
        *,
        app_compose: bytes,
        gpu: GpuEvidence | None = None,
        collateral: Collateral | None = None,
        gpu_collateral: GpuCollateral | None = None,
        **cpu: JsonValue,
    ) -> Evidence:
        """Evidence from its parts.

        Args:
            platform: What it is offered as.
            app_compose: Raw bytes of the deployment document.
            gpu: Accelerators' evidence.
            collateral: DCAP collateral to carry along.
            gpu_collateral: Accelerators' collateral to carry along.
            cpu: Fields of the TEE's own form, ``tee`` among them; bytes in base64.

        Raises:
            EvidenceMalformed: A part is malformed or over its limit, or the deployment document is
                not UTF-8 text.
        """
        try:
            compose_text = app_compose.decode("utf-8")
        except UnicodeDecodeError as error:
            raise EvidenceMalformed("deployment document is not UTF-8 text") from error
        return cls.from_dict(
            {
                "version": 2,
                "platform": platform,
                "cpu": {**cpu, "app_compose": compose_text},
                "gpu": None if gpu is None else gpu.to_dict(),
                "collateral": None if collateral is None else collateral.to_dict(),
                "gpu_collateral": None if gpu_collateral is None else gpu_collateral.to_dict(),
            }
        )
