"""Intel TDX without dstack, for the rest of attest: what a guest shows is a quote."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from sealtrain.attest.statement import MAX_LOG_ENTRIES, MAX_QUOTE_BYTES, GuestEvidence, limit_base64
from sealtrain.attest.tdx.policy import RULES
from sealtrain.attest.tee import Tee, TeeDevice
from sealtrain.base.encoding import from_base64
from sealtrain.base.models import ONE_SPELLING, Base64, StrictModel


class QuoteEvidence(GuestEvidence):
    """Any guest on TDX."""

    quote: Annotated[Base64, limit_base64(MAX_QUOTE_BYTES), ONE_SPELLING]

    @property
    def quote_bytes(self) -> bytes:
        """The quote, decoded."""
        return from_base64(self.quote)


class FirmwareEvent(StrictModel):
    """What firmware extended a register by: RTMR0 to RTMR2."""

    index: Annotated[int, Field(ge=0, le=2)]
    digest: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{96}$")]


class TdxEvidence(QuoteEvidence):
    """A TDX guest whose MRCONFIGID names its deployment document."""

    tee: Literal["tdx"]
    boot_events: tuple[FirmwareEvent, ...] = Field(
        default=(), min_length=1, max_length=MAX_LOG_ENTRIES, exclude_if=lambda value: not value
    )
    """The firmware's event log, in the order of measurement; left out where it is not shown."""


TEE = Tee(
    name="tdx",
    vendor="intel",
    evidence=TdxEvidence,
    rules=RULES,
    kinds=("tdx-quote",),
    device=TeeDevice(
        path="dev/tdx_guest",
        flag="tdx_guest",
        reports=True,
        alone=False,
        absent="the processor says TDX guest, there is no /dev/tdx_guest",
    ),
)
