"""Policies for dstack guests to begin from, with a comment for each line."""

from __future__ import annotations

from typing import Any, Final

from sealtrain.attest.nvidia.presets import board
from sealtrain.attest.tdx import presets as tdx
from sealtrain.attest.tee import FILL

__all__ = ["COMMENTS", "LINES", "PRESETS", "SIMULATED"]

_NO_PROVIDER = "00" * 32
_RULES: Final[dict[str, Any]] = {
    "tee": "dstack",
    **tdx.QUOTE_RULES,
    "key_provider": _NO_PROVIDER,
    "os_image_hash": "any",
}
PRESETS: Final[dict[str, dict[str, Any]]] = {
    "deny-all": {
        "version": 2,
        "platform": "dstack",
        "root": "intel",
        "cpu": {**_RULES, "platform_ids": []},
        "gpu": "none",
    },
    "dstack-h100": {
        "version": 2,
        "platform": "dstack",
        "root": "intel",
        "cpu": _RULES,
        "gpu": board(["HOPPER"], 1, 0, ["single", "mpt"]),
    },
    "dstack-h200": {
        "version": 2,
        "platform": "dstack",
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
    "key_provider": f"{FILL}id of the key service that may have given the guest its keys.",
    "os_image_hash": "OS images as the key provider names them; any where images are measured.",
    "measurements": f"{FILL}mrtd, rtmr0, rtmr1, rtmr2 of each image and machine shape. Empty "
    "accepts none.",
}
LINES: Final = {**tdx.LINES, "key provider": "key_provider", "OS image": "os_image_hash"}
