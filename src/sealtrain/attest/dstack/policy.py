"""Rules for dstack guests: those of TDX, and who may have given them their keys (§6)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from sealtrain.attest.tdx.policy import QuotePolicy
from sealtrain.base.models import Hex64

__all__ = ["DstackPolicy"]

_KeyProvider = Annotated[str, StringConstraints(pattern=r"^(?:[0-9a-f]{2}){16,1024}$")]


class DstackPolicy(QuotePolicy):
    """A dstack guest on TDX."""

    tee: Literal["dstack"]
    key_provider: Literal["any"] | _KeyProvider
    os_image_hash: (
        Literal["any"] | Annotated[tuple[Hex64, ...], Field(min_length=1, max_length=256)]
    )

    @model_validator(mode="after")
    def _consistent(self) -> DstackPolicy:
        if self.os_image_hash != "any" and self.key_provider == "any":
            raise ValueError(
                "os_image_hash is measured as the key provider told it: pin key_provider too, or "
                "pin measurements and write os_image_hash: any"
            )
        return self
