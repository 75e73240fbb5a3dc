"""Rules and presets for dstack guests: those of TDX, and the key provider (spec/evidence.md §6)."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field, StringConstraints, model_validator

from sealtrain.attest.nvidia.policy import board
from sealtrain.attest.tdx import policy as tdx
from sealtrain.attest.tdx.policy import QuotePolicy
from sealtrain.attest.tee import NONE, SHOWN, Rules
from sealtrain.base.models import Hex64

KeyProvider = Annotated[str, StringConstraints(pattern=r"^(?:[0-9a-f]{2}){16,1024}$")]


class AgentPolicy(QuotePolicy):
    """A guest on TDX with dstack's agent, wherever it runs."""

    key_provider: Literal["any"] | KeyProvider
    os_image_hash: (
        Literal["any", "measured"]
        | Annotated[tuple[Hex64, ...], Field(min_length=1, max_length=256)]
    )
    """``measured``: the registers of ``measurements`` name the image."""

    @model_validator(mode="after")
    def _consistent(self) -> AgentPolicy:
        if self.os_image_hash == "measured":
            if self.measurements == "any":
                raise ValueError("os_image_hash: measured needs measurements that name images")
        elif self.os_image_hash != "any" and self.key_provider == "any":
            raise ValueError(
                "os_image_hash is measured as the key provider told it: pin key_provider too, or "
                "pin measurements and write os_image_hash: measured"
            )
        return self


class DstackPolicy(AgentPolicy):
    """A dstack guest on TDX."""

    tee: Literal["dstack"]


_NO_PROVIDER = "00" * 32
_RULES: Final[dict[str, Any]] = {
    "tee": "dstack",
    **tdx.QUOTE_RULES,
    "key_provider": _NO_PROVIDER,
    "os_image_hash": "measured",
}
PRESETS: Final[dict[str, dict[str, Any]]] = {
    "deny-all": {
        "version": 2,
        "platform": "dstack",
        "tier": "processor",
        "root": "intel",
        "cpu": _RULES,
        "gpu": "none",
    },
    "dstack-h100": {
        "version": 2,
        "platform": "dstack",
        "tier": "processor",
        "root": "intel",
        "cpu": _RULES,
        "gpu": board(["HOPPER"], 1, 0, ["single", "mpt"]),
    },
    "dstack-h200": {
        "version": 2,
        "platform": "dstack",
        "tier": "processor",
        "root": "intel",
        "cpu": _RULES,
        "gpu": board(["HOPPER"], 8, 4, ["protected_pcie"]),
    },
}
SIMULATED: Final[dict[str, Any]] = {
    "tee": "dstack",
    **tdx.ANY_QUOTE_RULES,
    "key_provider": "any",
    "os_image_hash": "any",
}
COMMENTS: Final = {
    **tdx.COMMENTS,
    "key_provider": f"Key service that may have given the guest its keys, {SHOWN}. Zeros are none.",
    "os_image_hash": "measured: measurements name the image; or what the key provider tells of it.",
    "measurements": f"Of each image what sealtrain image measure --firmware … prints. {NONE}",
}
LINES: Final = {**tdx.LINES, "key provider": "key_provider", "OS image": "os_image_hash"}
RULES: Final = Rules(
    form=DstackPolicy,
    lines=LINES,
    comments=COMMENTS,
    presets=PRESETS,
    simulated=SIMULATED,
)
