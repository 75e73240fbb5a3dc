"""What a Nitro enclave shows: its security module's document."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import field_validator

from sealtrain.attest.statement import GuestEvidence, encoded, spelled_once
from sealtrain.base.encoding import from_base64
from sealtrain.base.models import Base64

__all__ = ["NitroEvidence"]

_MAX_DOCUMENT_BYTES = 16 << 10


class NitroEvidence(GuestEvidence):
    """A Nitro enclave: the security module's document, which brings its certificates along."""

    tee: Literal["nitro"]
    document: Annotated[Base64, encoded(_MAX_DOCUMENT_BYTES)]

    _spelled_once = field_validator("document")(spelled_once)

    @property
    def document_bytes(self) -> bytes:
        """The document, decoded."""
        return from_base64(self.document)
