"""Intel TDX without dstack, for the rest of attest: what a guest shows is a quote."""

from __future__ import annotations

from typing import Annotated, Literal

from sealtrain.attest.statement import MAX_QUOTE_BYTES, GuestEvidence, bound_base64
from sealtrain.attest.tdx.policy import RULES
from sealtrain.attest.tee import Device, Tee
from sealtrain.base.encoding import from_base64
from sealtrain.base.models import ONE_SPELLING, Base64


class QuoteEvidence(GuestEvidence):
    """Any guest on TDX."""

    quote: Annotated[Base64, bound_base64(MAX_QUOTE_BYTES), ONE_SPELLING]

    @property
    def quote_bytes(self) -> bytes:
        """The quote, decoded."""
        return from_base64(self.quote)


class TdxEvidence(QuoteEvidence):
    """A TDX guest whose MRCONFIGID names its deployment document."""

    tee: Literal["tdx"]


TEE = Tee(
    name="tdx",
    vendor="intel",
    evidence=TdxEvidence,
    rules=RULES,
    kinds=("tdx-quote",),
    device=Device(
        path="dev/tdx_guest",
        flag="tdx_guest",
        reports=True,
        alone=False,
        absent="the processor says TDX guest, there is no /dev/tdx_guest",
    ),
)
