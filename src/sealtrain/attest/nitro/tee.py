"""AWS Nitro Enclaves, for the rest of attest: an enclave shows its security module's document."""

from __future__ import annotations

from typing import Annotated, Literal

from sealtrain.attest.nitro.policy import RULES
from sealtrain.attest.statement import GuestEvidence, limit_base64
from sealtrain.attest.tee import Tee, TeeDevice
from sealtrain.base.encoding import from_base64
from sealtrain.base.models import ONE_SPELLING, Base64

_MAX_DOCUMENT_BYTES = 16 << 10


class DocumentEvidence(GuestEvidence):
    """Any guest on EC2 that shows a document of AWS, which brings its certificates along."""

    document: Annotated[Base64, limit_base64(_MAX_DOCUMENT_BYTES), ONE_SPELLING]

    @property
    def document_bytes(self) -> bytes:
        """The document, decoded."""
        return from_base64(self.document)


class NitroEvidence(DocumentEvidence):
    """A Nitro enclave: the security module's document."""

    tee: Literal["nitro"]


TEE = Tee(
    name="nitro",
    vendor="aws",
    evidence=NitroEvidence,
    rules=RULES,
    kinds=("nitro-document",),
    device=TeeDevice(path="dev/nsm", flag="nitro_enclaves", reports=False),
)
