"""Evidence: what a guest shows about itself, in one canonical, bounded document.

The document carries no verdict and no trust; ``attest.verify`` decides. Everything that nothing
signs is kept out or must be empty, so that one guest state has one evidence (spec/evidence.md §3).

``cpu`` is what the processor signed, in the form of its TEE; ``gpu`` what accelerators signed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Self, Union

from pydantic import Field, model_validator

from sealtrain.attest.errors import EvidenceMalformed
from sealtrain.attest.nvidia.collateral import GpuCollateral
from sealtrain.attest.nvidia.parse import GpuEvidence
from sealtrain.attest.registry import TEES, tee_of
from sealtrain.attest.statement import (
    MAX_COMPOSE_CHARS,
    MAX_EVIDENCE_BYTES,
    MAX_EVIDENCE_VALUES,
    MAX_LOG_ENTRIES,
    MAX_QUOTE_BYTES,
    Collateral,
    GuestEvidence,
    LogEntry,
)
from sealtrain.base.canonical import JsonValue
from sealtrain.base.digests import sha256_hex
from sealtrain.base.models import Document
from sealtrain.base.platforms import Platform

__all__ = [
    "DCAP_TEES",
    "MAX_COMPOSE_CHARS",
    "MAX_EVIDENCE_BYTES",
    "MAX_EVIDENCE_VALUES",
    "MAX_LOG_ENTRIES",
    "MAX_QUOTE_BYTES",
    "Collateral",
    "CpuEvidence",
    "Evidence",
    "LogEntry",
]

DCAP_TEES = tuple(tee.name for tee in TEES if tee.dcap)
"""TEEs whose quotes are verified with collateral that the vendor publishes apart."""

if TYPE_CHECKING:
    CpuEvidence = GuestEvidence
else:
    CpuEvidence = Annotated[
        Union[tuple(tee.evidence for tee in TEES)],  # noqa: UP007  # of a table
        Field(discriminator="tee"),
    ]


class Evidence(Document):
    """Evidence of one guest at one moment, with what a later verifier needs to repeat the check."""

    what = "evidence"
    refusal = EvidenceMalformed
    max_bytes = MAX_EVIDENCE_BYTES
    max_values = MAX_EVIDENCE_VALUES
    form = (
        "evidence form",
        "evidence is canonical JSON (RFC 8785) as spec/evidence.md describes it",
    )

    version: Annotated[int, Field(ge=2, le=2)]  # unlike Literal[2], refuses other types
    platform: Platform
    cpu: CpuEvidence
    gpu: GpuEvidence | None
    collateral: Collateral | None
    gpu_collateral: GpuCollateral | None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.platform not in (tee_of(self.cpu.tee).platform, "simulator"):
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

    def with_collateral(
        self, collateral: Collateral | None, gpu_collateral: GpuCollateral | None = None
    ) -> Self:
        """The same evidence with other collateral, to archive a verification and its inputs."""
        return self.model_copy(update={"collateral": collateral, "gpu_collateral": gpu_collateral})

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
