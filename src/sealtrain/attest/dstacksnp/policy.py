"""Rules for dstack on SEV-SNP: those of a report, and the key provider."""

from __future__ import annotations

from typing import Any, Final, Literal

from sealtrain.attest.dstack import policy as dstack
from sealtrain.attest.dstack.policy import KeyProvider
from sealtrain.attest.snp import policy as snp
from sealtrain.attest.snp.policy import SnpRules
from sealtrain.attest.tee import Rules

_NAME: Final = "dstack-amd-sev-snp"


class DstackSnpPolicy(SnpRules):
    """A dstack guest on SEV-SNP, whose HOST_DATA commits to a launch configuration."""

    tee: Literal["dstack-amd-sev-snp"]
    key_provider: Literal["any"] | KeyProvider
    """Id of the guest's key provider (``key-provider-mismatch``)."""


_RULES: Final[dict[str, Any]] = {
    **snp.PRESETS["snp-genoa"]["cpu"],
    "tee": _NAME,
    "key_provider": "00" * 32,
}
PRESETS: Final[dict[str, dict[str, Any]]] = {
    _NAME: {
        "version": 2,
        "platform": "dstack",
        "tier": "processor",
        "root": "amd",
        "cpu": _RULES,
        "gpu": "none",
    },
}
SIMULATED: Final[dict[str, Any]] = {**snp.SIMULATED, "tee": _NAME, "key_provider": "any"}
COMMENTS: Final = {**snp.COMMENTS, "key_provider": dstack.COMMENTS["key_provider"]}
LINES: Final = {**snp.LINES, "key provider": "key_provider"}
RULES: Final = Rules(
    form=DstackSnpPolicy,
    lines=LINES,
    comments=COMMENTS,
    presets=PRESETS,
    simulated=SIMULATED,
)
