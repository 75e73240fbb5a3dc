"""Errors of evidence: what a guest did not prove, or what verifying it needs."""

from __future__ import annotations

from sealtrain.errors import EvidenceRefused, Unreachable


class EvidenceMalformed(EvidenceRefused):
    """Evidence cannot be parsed."""


class QuoteInvalid(EvidenceRefused):
    """A quote's signature or structure does not verify."""


class QuoteRootUntrusted(EvidenceRefused):
    """A quote chains to a root that the policy does not trust."""


class CollateralExpired(EvidenceRefused):
    """Collateral is not valid at the time of verification."""

    retry = "later"


class CollateralMismatch(EvidenceRefused):
    """Collateral belongs to another platform or is not authentic."""


class TcbStatusRefused(EvidenceRefused):
    """The platform's TCB status or an advisory is not allowed by the policy."""


class DebugGuest(EvidenceRefused):
    """The guest runs in debug mode: its host can read its memory."""


class EventLogMismatch(EvidenceRefused):
    """The event log does not replay to the quoted registers, or breaks its rules."""


class ComposeHashMismatch(EvidenceRefused):
    """The guest measured another deployment document."""


class AppIdMismatch(EvidenceRefused):
    """The guest measured another app id."""


class MeasurementMismatch(EvidenceRefused):
    """A measured register differs from every reference value."""


class ReportDataMismatch(EvidenceRefused):
    """The quote does not commit to this conversation."""


class PlatformMismatch(EvidenceRefused):
    """Evidence comes from another kind of platform than the policy names."""


class SimulatedEvidence(EvidenceRefused):
    """The evidence is simulated, and the policy asks for hardware."""


class CertificateChainInvalid(EvidenceRefused):
    """A certificate chain does not verify: its dates, roles, key types or signatures are wrong."""


class CertificateRevoked(EvidenceRefused):
    """The vendor revoked or suspended a certificate."""


class EvidenceStale(EvidenceRefused):
    """Evidence is stale, or dated in the future."""


class GpuModeRefused(EvidenceRefused):
    """An accelerator is not in the confidential mode that the policy asks for."""


class GpuNonceMismatch(EvidenceRefused):
    """An accelerator's report was made for another conversation."""


class GpuReportInvalid(EvidenceRefused):
    """An accelerator's report does not parse, or its signature does not verify."""


class GpuSetRefused(EvidenceRefused):
    """Accelerators are missing, are shown twice, or do not belong together."""


class MigratableGuest(EvidenceRefused):
    """Another guest may move this one, and its memory, to another machine."""


class ReferenceValueInvalid(EvidenceRefused):
    """A vendor's file of reference values is not authentic."""


class ReferenceValueMismatch(EvidenceRefused):
    """An accelerator runs firmware that differs from the vendor's reference values."""


class RemoteVerdictRefused(EvidenceRefused):
    """A vendor's verdict is not authentic, not about this evidence, or negative."""


class RevocationUnknown(EvidenceRefused):
    """No valid revocation list or OCSP answer covers a certificate."""


class CollateralUnreachable(Unreachable):
    """The vendor's collateral, or a cache of it, cannot be fetched."""


class GuestApiUnreachable(Unreachable):
    """The guest's attestation API did not answer."""
