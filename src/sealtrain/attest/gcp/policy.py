"""Rules for dstack on Google's TDX machines: dstack's, and what the vTPM must say."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, StringConstraints

from sealtrain.attest.dstack import policy as dstack
from sealtrain.attest.dstack.policy import AgentPolicy
from sealtrain.attest.nvidia.policy import board
from sealtrain.attest.tdx import policy as tdx
from sealtrain.attest.tee import NONE, SHOWN, Rules
from sealtrain.base.models import StrictModel

_NAME: Final = "dstack-gcp-tdx"


def _extend_register(value: str) -> str:
    if not value.strip("0"):
        raise ValueError("a register of zeros was never extended; never accept it")
    return value


_Pcr = Annotated[
    str, StringConstraints(pattern=r"^[0-9a-f]{64}$"), AfterValidator(_extend_register)
]
_Named = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.:-]{0,127}$")]
Names = Annotated[tuple[_Named, ...], Field(max_length=1024)]
"""Projects or zones of Google Cloud."""
_Number = Annotated[str, StringConstraints(pattern=r"^(?:0|[1-9][0-9]{0,19})$")]
Numbers = Annotated[tuple[_Number, ...], Field(max_length=1024)]
"""Machines of Google Cloud."""


class GcpBoot(StrictModel):
    """One accepted start of a machine, in the SHA-256 bank of its vTPM."""

    pcr0: _Pcr
    """Google's firmware, and which processor protects the memory."""
    pcr2: _Pcr
    """What the firmware started: the guest's image."""


class GcpPolicy(AgentPolicy):
    """A dstack guest on Google's TDX machines. Both statements must hold, each under its root."""

    tee: Literal["dstack-gcp-tdx"]
    boots: Literal["any"] | Annotated[tuple[GcpBoot, ...], Field(max_length=1024)]
    """Accepted values of PCR 0 and PCR 2; an empty list accepts none (``measurement-mismatch``)."""
    projects: Literal["any"] | Names
    """Google Cloud projects that the machine may belong to (``platform-mismatch``)."""
    zones: Literal["any"] | Names
    """Zones that it may run in (``platform-mismatch``)."""
    instances: Literal["any"] | Numbers
    """Machines by their number (``platform-mismatch``)."""


_RULES: Final[dict[str, Any]] = {
    "tee": _NAME,
    **tdx.QUOTE_RULES,
    "key_provider": "00" * 32,
    "os_image_hash": "measured",
    "boots": [],
    "projects": [],
    "zones": [],
    "instances": [],
}
PRESETS: Final[dict[str, dict[str, Any]]] = {
    "dstack-gcp-tdx": {
        "version": 2,
        "platform": "dstack",
        "tier": "processor",
        "root": "intel",
        "cpu": _RULES,
        "gpu": "none",
    },
    "dstack-gcp-h100": {
        "version": 2,
        "platform": "dstack",
        "tier": "processor",
        "root": "intel",
        "cpu": _RULES,
        "gpu": board(["HOPPER"], 1, 0, ["single"]),
    },
}
SIMULATED: Final[dict[str, Any]] = {
    **_RULES,
    **tdx.ANY_QUOTE_RULES,
    "key_provider": "any",
    "os_image_hash": "any",
    "boots": "any",
    "projects": "any",
    "zones": "any",
    "instances": "any",
}
COMMENTS: Final = {
    **dstack.COMMENTS,
    "boots": f"pcr0, pcr2 of the vTPM for each image, {SHOWN}. {NONE}",
    "projects": f"Google Cloud projects: without one any customer's vTPM would do. {NONE}",
    "zones": f"Zones such as us-central1-a. {NONE}",
    "instances": f"Machines by number, {SHOWN}. {NONE}",
}
LINES: Final = {
    **dstack.LINES,
    "vTPM boot": "boots",
    "project": "projects",
    "zone": "zones",
    "instance": "instances",
}
RULES: Final = Rules(
    form=GcpPolicy,
    lines=LINES,
    comments=COMMENTS,
    presets=PRESETS,
    simulated=SIMULATED,
)
