"""Bundles: one verification with everything it needs, to be repeated years later.

A bundle holds the file that was verified, byte for byte, and what lay beside it: collateral,
certificates, the conversation it was made for, the deployment document, the policy, the time. It
is not a verdict: each reader verifies again, under a policy of their own (spec/evidence.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from sealtrain.attest.errors import EvidenceMalformed
from sealtrain.attest.evidence import (
    MAX_COMPOSE_CHARS,
    MAX_EVIDENCE_BYTES,
    MAX_EVIDENCE_VALUES,
    Collateral,
)
from sealtrain.attest.nvidia.collateral import GpuCollateral
from sealtrain.attest.nvidia.parse import MAX_DEVICES, GpuDevice
from sealtrain.attest.policy import AppraisalPolicy
from sealtrain.attest.registry import TEES
from sealtrain.attest.report_data import Binding
from sealtrain.attest.statement import MAX_CRL_BYTES, limit_base64
from sealtrain.base.canonical import JsonValue
from sealtrain.base.clock import from_rfc3339, to_rfc3339
from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.base.models import ONE_SPELLING, Base64, Document, Hex64, RealTime, StrictModel

MAX_BUNDLE_BYTES = 40 << 20
MAX_CERTIFICATES = 8
_MAX_CERTIFICATE_CHARS = 16 << 10
_MAX_NONCE_HEX = 2048

KINDS: tuple[str, ...] = (
    "evidence",
    *(kind for tee in TEES for kind in tee.kinds),
    "gpu-evidence",
    "gpu-report",
    "gpu-verdict",
    "quote-with-gpus",
)
"""Kinds of files that can be verified."""

if TYPE_CHECKING:
    Kind = str
else:
    Kind = Literal[KINDS]

_File = Annotated[str, limit_base64(MAX_EVIDENCE_BYTES), ONE_SPELLING]
_Certificate = Annotated[
    Base64, StringConstraints(min_length=4, max_length=_MAX_CERTIFICATE_CHARS), ONE_SPELLING
]
_Crl = Annotated[Base64, limit_base64(MAX_CRL_BYTES), ONE_SPELLING]
_Compose = Annotated[str, StringConstraints(min_length=2, max_length=MAX_COMPOSE_CHARS)]
_Nonce = Annotated[str, StringConstraints(pattern=r"^(?:[0-9a-f]{2})+$", max_length=_MAX_NONCE_HEX)]
_Purpose = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachments:
    """What lies beside a file of evidence when it is verified.

    Attributes:
        collateral: DCAP collateral of a TDX quote.
        gpu_collateral: Collateral of accelerators.
        certificates: DER. SEV-SNP: the chip's, its issuer, the root. One GPU's report: its chain.
        crl: AMD's revocation list, DER, of the root of a SEV-SNP report.
        switches: NVSwitches of the machine whose GPUs a file of NVIDIA's tools shows.
        binding: The conversation that sealtrain's own evidence was made for.
        nonce: What third-party evidence must carry: report data, or a nonce.
        app_compose: The deployment document, raw bytes.
        compose_hash: SHA-256 of the deployment document, hex.
    """

    collateral: Collateral | None = None
    gpu_collateral: GpuCollateral | None = None
    certificates: tuple[bytes, ...] = ()
    crl: bytes | None = None
    switches: tuple[GpuDevice, ...] = ()
    binding: Binding | None = None
    nonce: bytes | None = None
    app_compose: bytes | None = None
    compose_hash: str | None = None


class Conversation(StrictModel):
    """What report data and GPU nonces were derived from."""

    purpose: _Purpose
    transcript: dict[str, JsonValue]


class Bundle(Document):
    """One verification, to be repeated at its recorded time. Every field is written."""

    what = "bundle"
    refusal = EvidenceMalformed
    max_bytes = MAX_BUNDLE_BYTES
    max_values = MAX_EVIDENCE_VALUES
    form = ("bundle", "it is canonical JSON (RFC 8785), as sealtrain attest bundle writes it")

    version: Annotated[int, Field(ge=2, le=2)]
    kind: Kind
    evidence: _File
    collateral: Collateral | None
    gpu_collateral: GpuCollateral | None
    certificates: Annotated[tuple[_Certificate, ...], Field(max_length=MAX_CERTIFICATES)]
    crl: _Crl | None
    switches: Annotated[tuple[GpuDevice, ...], Field(max_length=MAX_DEVICES)]
    conversation: Conversation | None
    nonce: _Nonce | None
    app_compose: _Compose | None
    compose_hash: Hex64 | None
    policy: AppraisalPolicy | None
    verified_at: RealTime

    @model_validator(mode="after")
    def _of_its_kind(self) -> Bundle:
        """Refuse values that this kind is not compared with, lest they look compared."""
        own = self.kind == "evidence"
        if (self.nonce if own else self.conversation) is not None:
            raise ValueError("evidence has a conversation, every other kind a nonce")
        return self

    @property
    def evidence_bytes(self) -> bytes:
        """The file that was verified."""
        return from_base64(self.evidence)

    @property
    def time(self) -> int:
        """When it was verified, seconds since 1970."""
        return from_rfc3339(self.verified_at)

    @property
    def beside(self) -> Attachments:
        """What lay beside it."""
        said = self.conversation
        return Attachments(
            collateral=self.collateral,
            gpu_collateral=self.gpu_collateral,
            certificates=tuple(from_base64(text) for text in self.certificates),
            crl=None if self.crl is None else from_base64(self.crl),
            switches=self.switches,
            binding=None if said is None else Binding(said.purpose, said.transcript),
            nonce=None if self.nonce is None else bytes.fromhex(self.nonce),
            app_compose=None if self.app_compose is None else self.app_compose.encode("utf-8"),
            compose_hash=self.compose_hash,
        )

    @classmethod
    def build(
        cls,
        kind: Kind,
        evidence: bytes,
        beside: Attachments,
        *,
        policy: AppraisalPolicy | None,
        verified_at: int,
    ) -> Bundle:
        """A bundle from its parts. The caller ensures that it verifies.

        Raises:
            EvidenceMalformed: A part is over its limit, or the deployment document is not text.
        """
        said = beside.binding
        try:
            compose = None if beside.app_compose is None else beside.app_compose.decode("utf-8")
        except UnicodeDecodeError as error:
            raise EvidenceMalformed("deployment document is not UTF-8 text") from error
        return cls.from_dict(
            {
                "version": 2,
                "kind": kind,
                "evidence": to_base64(evidence),
                "collateral": None if beside.collateral is None else beside.collateral.to_dict(),
                "gpu_collateral": None
                if beside.gpu_collateral is None
                else beside.gpu_collateral.to_dict(),
                "certificates": [to_base64(der) for der in beside.certificates],
                "crl": None if beside.crl is None else to_base64(beside.crl),
                "switches": [device.to_dict() for device in beside.switches],
                "conversation": None
                if said is None
                else {"purpose": said.purpose, "transcript": said.transcript},
                "nonce": None if beside.nonce is None else beside.nonce.hex(),
                "app_compose": compose,
                "compose_hash": beside.compose_hash,
                "policy": None if policy is None else policy.to_dict(),
                "verified_at": to_rfc3339(verified_at),
            }
        )
