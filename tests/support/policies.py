"""Appraisal policies that tests begin from."""

from __future__ import annotations

from typing import Any

from sealtrain.attest.policy import AppraisalPolicy, policy_from_dict
from sealtrain_rehearsal.simulator.snp import SNP_MEASUREMENT

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

_SNP: dict[str, Any] = {
    "tee": "snp",
    "products": ["Genoa"],
    "signing_keys": ["vcek"],
    "measurements": [SNP_MEASUREMENT.hex()],
    "minimum_tcb": {"Genoa": {"bootloader": 10, "tee": 0, "snp": 23, "microcode": 84}},
    "mitigations": "any",
    "extended_tcb": "any",
    "platform_flags": "any",
    "chip_ids": "any",
    "vmpl": 0,
    "debug": "refuse",
    "migration": "refuse",
    "smt": "any",
    "id_keys": "any",
    "revocation": "any",
}


def dstack(**rules: Any) -> dict[str, Any]:
    """Rules for a dstack guest's processor; ``rules`` replaces some."""
    return {**_DSTACK, **rules}


def snp(**rules: Any) -> dict[str, Any]:
    """Rules for the SEV-SNP guest that the simulator shows; ``rules`` replaces some."""
    return {**_SNP, **rules}


def intel(**cpu: Any) -> dict[str, Any]:
    """A policy for dstack guests on hardware, as parsed YAML; ``cpu`` replaces its rules."""
    return {
        "version": 2,
        "platform": "dstack",
        "tier": "processor",
        "root": "intel",
        "cpu": dstack(**cpu),
        "gpu": "none",
    }


def changed(policy: AppraisalPolicy, **cpu: Any) -> AppraisalPolicy:
    """The policy with other rules for the processor."""
    document = policy.to_dict()
    return policy_from_dict({**document, "cpu": {**document["cpu"], **cpu}})
