"""dstack on EC2 instances with a NitroTPM, for the rest of attest."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from sealtrain.attest.nitrotpm.policy import COMMENTS, LINES, PRESETS, SIMULATED, NitroTpmPolicy
from sealtrain.attest.statement import MAX_LOG_ENTRIES, GuestEvidence, LogEntry, encoded
from sealtrain.attest.tee import Tee
from sealtrain.base.encoding import from_base64
from sealtrain.base.models import ONE_SPELLING, Base64

__all__ = ["TEE", "NitroTpmEvidence"]

_MAX_DOCUMENT_BYTES = 16 << 10


class NitroTpmEvidence(GuestEvidence):
    """A dstack guest on EC2: the NitroTPM's document, which brings its certificates along."""

    tee: Literal["dstack-aws-nitro-tpm"]
    document: Annotated[Base64, encoded(_MAX_DOCUMENT_BYTES), ONE_SPELLING]
    event_log: Annotated[tuple[LogEntry, ...], Field(min_length=1, max_length=MAX_LOG_ENTRIES)]
    vm_config: Annotated[str, StringConstraints(max_length=64 << 10)] | None

    @property
    def document_bytes(self) -> bytes:
        """The document, decoded."""
        return from_base64(self.document)


TEE = Tee(
    name="dstack-aws-nitro-tpm",
    of="dstack",
    folder="nitrotpm",
    vendor="aws",
    vendor_root="the root of AWS",
    evidence=NitroTpmEvidence,
    policy=NitroTpmPolicy,
    kinds=("nitro-tpm-document",),
    lines=LINES,
    comments=COMMENTS,
    presets=PRESETS,
    simulated=SIMULATED,
)
