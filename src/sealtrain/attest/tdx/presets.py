"""Rules for TDX to begin from, with a comment for each line."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["ANY_QUOTE_RULES", "COMMENTS", "LINES", "QUOTE_RULES", "SIMULATED"]

_DAY = 24 * 3600

QUOTE_RULES: Final[dict[str, Any]] = {
    "tcb_status": ["UpToDate"],
    "advisories": "none",
    "debug": "refuse",
    "migration": "refuse",
    "measurements": [],
    "platform_ids": "any",
    "min_tcb_evaluation_data_number": 18,
    "max_collateral_age_s": 30 * _DAY,
}
"""What every quote of hardware must show; no image is accepted yet."""
ANY_QUOTE_RULES: Final[dict[str, Any]] = {
    **QUOTE_RULES,
    "measurements": "any",
    "min_tcb_evaluation_data_number": 1,
    "max_collateral_age_s": "any",
}
"""The same for simulated quotes of any image."""
SIMULATED: Final[dict[str, Any]] = {"tee": "tdx", **ANY_QUOTE_RULES}
COMMENTS: Final = {
    "tcb_status": "Intel's words for the platform's state. SWHardeningNeeded is often met.",
    "advisories": "Open security advisories: none, a list of INTEL-SA-… ids, or any.",
    "debug": "There is no other value: in debug mode the host reads the guest's memory.",
    "migration": "There is no other value: another guest could move this one elsewhere.",
    "platform_ids": "Machines by PPID (32 hex digits); any accepts every machine.",
    "min_tcb_evaluation_data_number": "Oldest of Intel's reviews that counts; raise it yearly.",
    "max_collateral_age_s": "How old Intel's data may be at the time of the decision.",
}
LINES: Final = {
    "TCB status": "tcb_status",
    "advisories": "advisories",
    "collateral floor": "min_tcb_evaluation_data_number",
    "collateral age": "max_collateral_age_s",
    "debug": "debug",
    "migration": "migration",
    "service guest": "migration",
    "machine": "platform_ids",
    "guest image": "measurements",
}
