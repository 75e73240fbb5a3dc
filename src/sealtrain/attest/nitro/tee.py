"""AWS Nitro Enclaves, for the rest of attest: an enclave shows its security module's document."""

from __future__ import annotations

from typing import Annotated, Literal

from sealtrain.attest.nitro.policy import COMMENTS, LINES, PRESETS, SIMULATED, NitroPolicy
from sealtrain.attest.statement import GuestEvidence, encoded
from sealtrain.attest.tee import Device, Tee
from sealtrain.base.encoding import from_base64
from sealtrain.base.models import ONE_SPELLING, Base64

__all__ = ["TEE", "NitroEvidence"]

_MAX_DOCUMENT_BYTES = 16 << 10


class NitroEvidence(GuestEvidence):
    """A Nitro enclave: the security module's document, which brings its certificates along."""

    tee: Literal["nitro"]
    document: Annotated[Base64, encoded(_MAX_DOCUMENT_BYTES), ONE_SPELLING]

    @property
    def document_bytes(self) -> bytes:
        """The document, decoded."""
        return from_base64(self.document)


TEE = Tee(
    name="nitro",
    vendor="aws",
    vendor_root="the root of AWS",
    evidence=NitroEvidence,
    policy=NitroPolicy,
    kinds=("nitro-document",),
    device=Device(path="dev/nsm", flag="nitro_enclaves", reports=False),
    lines=LINES,
    comments=COMMENTS,
    presets=PRESETS,
    simulated=SIMULATED,
)
