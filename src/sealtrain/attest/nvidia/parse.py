"""The GPU part of evidence: reports with their certificates, and what the measured guest read.

Its SHA-256 stands in the CPU's report data, so a holder of the quote cannot exchange a device, a
chain or a claim. ``GpuClaims`` is signed by nothing else: a report does not say that confidential
mode is on, the measured guest does (spec/evidence.md).
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from pydantic import Field, StringConstraints, model_validator

from sealtrain.attest.errors import EvidenceMalformed
from sealtrain.attest.nvidia.spdm import MAX_REPORT_BYTES, canonical_report
from sealtrain.attest.roots import X509_ERRORS
from sealtrain.base.canonical import parse_json
from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.base.models import ONE_SPELLING, Base64, Document, StrictModel, load_model
from sealtrain.errors import DataInvalid, LimitExceeded

MAX_DEVICES = 32
MAX_CHAIN_BYTES = 64 << 10
MAX_GPU_EVIDENCE_BYTES = 8 << 20
_MAX_VALUES = 1 << 10

Architecture = Literal["HOPPER", "BLACKWELL", "LS10"]
"""Families by NVIDIA's words; LS10 is the NVSwitch beside Hopper GPUs."""

_Report = Annotated[
    Base64, StringConstraints(min_length=4, max_length=MAX_REPORT_BYTES * 4 // 3 + 4), ONE_SPELLING
]
_Chain = Annotated[
    str, StringConstraints(min_length=1, max_length=MAX_CHAIN_BYTES, pattern=r"^[\x0a\x20-\x7e]+$")
]


class GpuDevice(StrictModel):
    """One accelerator's report. ``kind`` and ``architecture`` must be what its chain says."""

    kind: Literal["gpu", "switch"]
    architecture: Architecture
    report: _Report
    certificate_chain: _Chain

    @model_validator(mode="after")
    def _consistent(self) -> GpuDevice:
        if (self.kind == "switch") != (self.architecture == "LS10"):
            raise ValueError("LS10 is a switch, every other architecture a GPU")
        return self

    @property
    def report_bytes(self) -> bytes:
        """The report, decoded."""
        return from_base64(self.report)

    @classmethod
    def build(cls, architecture: Architecture, report: bytes, chain: bytes) -> GpuDevice:
        """One device from what its driver gave.

        Raises:
            GpuReportInvalid: Not a report.
            EvidenceMalformed: Not PEM certificates, or over a limit.
        """
        return load_model(
            cls,
            {
                "kind": "switch" if architecture == "LS10" else "gpu",
                "architecture": architecture,
                "report": to_base64(canonical_report(report)),
                "certificate_chain": canonical_chain(chain),
            },
            EvidenceMalformed,
            "GPU evidence",
        )


class GpuClaims(StrictModel):
    """What the measured guest read from the driver. NVML's words in lower case."""

    environment: Literal["PROD", "SIM", "UNAVAILABLE"]
    cc_feature: bool
    dev_tools: bool
    multi_gpu_mode: Literal["none", "protected_pcie", "nvle"]
    driver_version: Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z._-]{1,64}$")]
    gpu_count: Annotated[int, Field(ge=0, le=MAX_DEVICES)]


class GpuEvidence(Document):
    """Every accelerator of one guest at one moment."""

    what = "GPU evidence"
    refusal = EvidenceMalformed
    max_bytes = MAX_GPU_EVIDENCE_BYTES
    max_values = _MAX_VALUES
    form = ("evidence form", None)

    devices: Annotated[tuple[GpuDevice, ...], Field(min_length=1, max_length=MAX_DEVICES)]
    claims: GpuClaims

    @property
    def digest(self) -> bytes:
        """SHA-256 of ``to_bytes()``, 32 bytes: what report data commits to."""
        return hashlib.sha256(self.to_bytes()).digest()

    @classmethod
    def build(cls, devices: tuple[GpuDevice, ...], claims: GpuClaims) -> GpuEvidence:
        """Evidence from its parts.

        Raises:
            EvidenceMalformed: No device, or more than ``MAX_DEVICES``.
        """
        return cls.from_dict(
            {"devices": [device.to_dict() for device in devices], "claims": claims.to_dict()}
        )


def canonical_chain(pem: bytes) -> str:
    """Re-encode certificates in the one spelling that is accepted.

    Raises:
        EvidenceMalformed: Too long, or not PEM certificates.
    """
    if len(pem) > MAX_CHAIN_BYTES:
        raise EvidenceMalformed("certificate chain is too long", check="evidence form")
    try:
        found = x509.load_pem_x509_certificates(pem)
    except X509_ERRORS as error:
        raise EvidenceMalformed(
            "certificate chain cannot be parsed", check="evidence form"
        ) from error
    return "".join(certificate.public_bytes(Encoding.PEM).decode("ascii") for certificate in found)


def from_nvat(data: bytes) -> tuple[GpuDevice, ...]:
    """Read the evidence file of NVIDIA's tools: ``[{"arch", "nonce", "evidence", "certificate"}]``.

    Such a file says nothing about confidential mode, so it is no evidence by itself. Its ``nonce``
    is unsigned and ignored; the signed one is in each report.

    Raises:
        EvidenceMalformed: Not such a file.
        GpuReportInvalid: A report in it is truncated.
    """
    try:
        items = parse_json(data, max_bytes=MAX_GPU_EVIDENCE_BYTES, max_values=_MAX_VALUES)
    except (DataInvalid, LimitExceeded) as error:
        raise EvidenceMalformed(
            f"GPU evidence file cannot be parsed: {error.message}", check="evidence form"
        ) from error
    return parse_devices(items)


def of_service_request(value: Any) -> tuple[GpuDevice, ...]:
    """Read what NVIDIA's service is asked: ``{"nonce", "arch", "evidence_list": […]}``, parsed.

    Its items are those of ``from_nvat``, where ``arch`` may stand once for all. Raises as that.
    """
    if not isinstance(value, dict) or not isinstance(value.get("evidence_list"), list):
        raise EvidenceMalformed("GPU evidence has no evidence_list", check="evidence form")
    common = {"arch": value["arch"]} if "arch" in value else {}
    items = value["evidence_list"]
    return parse_devices([{**common, **item} if isinstance(item, dict) else item for item in items])


def parse_devices(items: Any) -> tuple[GpuDevice, ...]:
    """The same of a parsed list. Raises as ``from_nvat``."""
    try:
        found = [
            GpuDevice.build(
                item["arch"], from_base64(item["evidence"]), from_base64(item["certificate"])
            )
            for item in items[: MAX_DEVICES + 1]
        ]
    except (DataInvalid, LimitExceeded) as error:
        raise EvidenceMalformed(
            f"GPU evidence file cannot be parsed: {error.message}", check="evidence form"
        ) from error
    except (TypeError, KeyError, AttributeError) as error:
        raise EvidenceMalformed(
            "GPU evidence file lacks arch, evidence or certificate", check="evidence form"
        ) from error
    if not 1 <= len(found) <= MAX_DEVICES:
        raise EvidenceMalformed(
            "GPU evidence file has too few or too many devices",
            check="evidence form",
            expected=f"1 to {MAX_DEVICES}",
        )
    return tuple(found)
