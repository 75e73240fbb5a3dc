"""What a SEV-SNP guest shows: a report, its certificates, perhaps AMD's revocation list."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from sealtrain.attest.statement import MAX_CRL_BYTES, GuestEvidence, encoded, spelled_once
from sealtrain.base.encoding import from_base64
from sealtrain.base.models import Base64

__all__ = ["SnpEvidence"]

_REPORT_BYTES = 1184
_MAX_CERTIFICATE_BYTES = 8 << 10

_Certificate = Annotated[Base64, encoded(_MAX_CERTIFICATE_BYTES)]


class SnpEvidence(GuestEvidence):
    """A SEV-SNP guest: report, and certificates from the chip's own up to the root."""

    tee: Literal["snp"]
    report: Annotated[Base64, encoded(_REPORT_BYTES)]
    certificates: Annotated[tuple[_Certificate, ...], Field(min_length=3, max_length=3)]
    crl: Annotated[Base64, encoded(MAX_CRL_BYTES)] | None
    """The vendor's revocation list, DER; a policy may require it."""

    _spelled_once = field_validator("report", "certificates", "crl")(spelled_once)

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
