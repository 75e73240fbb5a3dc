"""Appraisal policies that tests begin from."""

from __future__ import annotations

from typing import Any

from sealtrain.attest.policy import AppraisalPolicy, policy_from_dict

_DSTACK: dict[str, Any] = {
    "tee": "dstack",
    "tcb_status": ["UpToDate"],
    "advisories": "none",
    "debug": "refuse",
    "migration": "refuse",
    "measurements": "any",
    "platform_ids": "any",
    "min_tcb_evaluation_data_number": 0,
    "max_collateral_age_s": "any",
    "key_provider": "any",
    "os_image_hash": "any",
}


def intel(**cpu: Any) -> dict[str, Any]:
    """A policy for dstack guests on hardware, as parsed YAML; ``cpu`` replaces its rules."""
    return {
        "version": 2,
        "platform": "dstack",
        "root": "intel",
        "cpu": {**_DSTACK, **cpu},
        "gpu": "none",
    }


def changed(policy: AppraisalPolicy, **cpu: Any) -> AppraisalPolicy:
    """The policy with other rules for the processor."""
    document = policy.to_dict()
    return policy_from_dict({**document, "cpu": {**document["cpu"], **cpu}})
