"""Rules for an enclave whose module's root is a test root (spec/evidence-nitro.md)."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from sealtrain.attest.nitro.policy import NitroImage
from sealtrain.attest.statement import GuestPolicy
from sealtrain.attest.tee import NONE, Rules


class EnclaveTestPolicy(GuestPolicy):
    """What such an enclave must show; images are named, without exception."""

    tee: Literal["test-nitro"]
    images: Annotated[tuple[NitroImage, ...], Field(max_length=1024)]
    """Accepted images; an empty list accepts none (``measurement-mismatch``)."""
    max_age_s: Annotated[int, Field(ge=1, le=3 * 3600)]
    """How old a document may be (``evidence-stale``)."""


SIMULATED_IMAGE: Final = {
    f"pcr{index}": hashlib.sha384(f"SIMULATED enclave PCR{index}".encode("ascii")).hexdigest()
    for index in (0, 1, 2)
}
"""Registers of the image that the simulator plays."""
SIMULATED: Final[dict[str, Any]] = {
    "tee": "test-nitro",
    "images": [SIMULATED_IMAGE],
    "max_age_s": 300,
}
RULES: Final = Rules(
    form=EnclaveTestPolicy,
    lines={"debug mode": "images", "document age": "max_age_s", "guest image": "images"},
    comments={
        "images": f"Of each image what sealtrain image measure --eif … prints. {NONE}",
        "max_age_s": "How old a document may be, in seconds.",
    },
    presets={},
    simulated=SIMULATED,
)
"""There is no preset: no policy but one that names a test root accepts such evidence."""
