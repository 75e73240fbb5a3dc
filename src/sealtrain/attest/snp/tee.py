"""AMD SEV-SNP, for the rest of attest: what a guest shows, and where it asks for that."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sealtrain.attest.snp.policy import RULES
from sealtrain.attest.statement import MAX_CRL_BYTES, GuestEvidence, limit_base64
from sealtrain.attest.tee import Tee, TeeDevice
from sealtrain.base.encoding import from_base64
from sealtrain.base.models import ONE_SPELLING, Base64

_REPORT_BYTES = 1184
_MAX_CERTIFICATE_BYTES = 8 << 10

_Certificate = Annotated[Base64, limit_base64(_MAX_CERTIFICATE_BYTES), ONE_SPELLING]


class ReportEvidence(GuestEvidence):
    """A report, and certificates from the chip's own up to the root."""

    report: Annotated[Base64, limit_base64(_REPORT_BYTES), ONE_SPELLING]
    certificates: Annotated[tuple[_Certificate, ...], Field(min_length=3, max_length=3)]
    crl: Annotated[Base64, limit_base64(MAX_CRL_BYTES), ONE_SPELLING] | None
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


class SnpEvidence(ReportEvidence):
    """A SEV-SNP guest."""

    tee: Literal["snp"]


TEE = Tee(
    name="snp",
    vendor="amd",
    evidence=SnpEvidence,
    rules=RULES,
    kinds=("snp-report",),
    device=TeeDevice(
        path="dev/sev-guest",
        flag="sev_snp",
        reports=True,
        options=("certificates",),
        absent="the processor says SEV-SNP guest, there is no /dev/sev-guest",
    ),
)
