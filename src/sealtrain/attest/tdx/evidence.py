"""What a TDX guest shows: a quote."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import field_validator

from sealtrain.attest.statement import MAX_QUOTE_BYTES, GuestEvidence, encoded, spelled_once
from sealtrain.base.encoding import from_base64
from sealtrain.base.models import Base64

__all__ = ["QuoteEvidence", "TdxEvidence"]


class QuoteEvidence(GuestEvidence):
    """Any guest on TDX."""

    quote: Annotated[Base64, encoded(MAX_QUOTE_BYTES)]

    _spelled_once = field_validator("quote")(spelled_once)

    @property
    def quote_bytes(self) -> bytes:
        """The quote, decoded."""
        return from_base64(self.quote)


class TdxEvidence(QuoteEvidence):
    """A TDX guest whose MRCONFIGID names its deployment document."""

    tee: Literal["tdx"]
