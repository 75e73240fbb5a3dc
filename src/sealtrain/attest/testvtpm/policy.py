"""Rules for a machine whose TPM's key a test root certified (spec/evidence-tpm.md §9)."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field

from sealtrain.attest.cloudtpm.policy import SIMULATED_BOOT, CloudBoot
from sealtrain.attest.statement import GuestPolicy
from sealtrain.attest.tee import NONE, Rules


class VtpmPolicy(GuestPolicy):
    """What such a TPM must say."""

    tee: Literal["test-vtpm"]
    boots: Annotated[tuple[CloudBoot, ...], Field(max_length=1024)]
    """Accepted boots; an empty list accepts none (``measurement-mismatch``)."""


SIMULATED: Final[dict[str, Any]] = {"tee": "test-vtpm", "boots": [SIMULATED_BOOT]}
RULES: Final = Rules(
    form=VtpmPolicy,
    lines={"boot": "boots"},
    comments={"boots": f"Registers of each image, as image measure --uki prints them. {NONE}"},
    presets={},
    simulated=SIMULATED,
)
"""There is no preset: no policy but one that names a test root accepts such evidence."""
