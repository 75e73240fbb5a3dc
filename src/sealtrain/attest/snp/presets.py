"""Policies for SEV-SNP guests to begin from, with a comment for each line."""

from __future__ import annotations

from typing import Any, Final

from sealtrain.attest.tee import FILL

__all__ = ["COMMENTS", "LINES", "PRESETS", "SIMULATED"]

PRESETS: Final[dict[str, dict[str, Any]]] = {
    "snp-genoa": {
        "version": 2,
        "platform": "snp",
        "root": "amd",
        "cpu": {
            "tee": "snp",
            "products": ["Genoa"],
            "signing_keys": ["vcek"],
            "measurements": [],
            "minimum_tcb": {
                # What a patched machine of a large cloud reports. AMD's bulletins say which levels
                # are current: raise it to that of the machines in use.
                "Genoa": {"bootloader": 10, "tee": 0, "snp": 23, "microcode": 84, "fmc": None}
            },
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
        },
        "gpu": "none",
    },
}
SIMULATED: Final[dict[str, Any]] = {**PRESETS["snp-genoa"]["cpu"], "measurements": "any"}
COMMENTS: Final = {
    "products": "Processor generations: Genoa, Turin. Milan's reports can be forged.",
    "signing_keys": "vcek is one chip's key; vlek is lent to a cloud and shared.",
    "minimum_tcb": "Oldest acceptable firmware of each product; raise it with each update.",
    "mitigations": "Bits (16 hex digits) that each product must have set, or any.",
    "extended_tcb": "Accepted extended TCB values (64 hex digits), or any.",
    "platform_flags": "Flags the platform must have, such as alias_check_complete, or any.",
    "chip_ids": "Machines by chip id (128 hex digits), or any.",
    "vmpl": "Privilege level that asks for the report; 0 unless a service module runs below.",
    "debug": "There is no other value: in debug mode the host reads the guest's memory.",
    "migration": "There is no other value: another guest could move this one elsewhere.",
    "smt": "refuse asks for guests that share no core; any does not.",
    "id_keys": "Digests of the keys that may authorise a launch, or any.",
    "revocation": "require asks for AMD's revocation list beside the evidence.",
    "measurements": f"{FILL}MEASUREMENT of each image that may run (96 hex digits). Empty "
    "accepts none.",
}
LINES: Final = {
    "debug": "debug",
    "migration": "migration",
    "product": "products",
    "signing key": "signing_keys",
    "chip": "chip_ids",
    "VMPL": "vmpl",
    "simultaneous threads": "smt",
    "reported TCB": "minimum_tcb",
    "launch TCB": "minimum_tcb",
    "committed TCB": "minimum_tcb",
    "mitigations": "mitigations",
    "extended TCB": "extended_tcb",
    "platform flags": "platform_flags",
    "guest image": "measurements",
    "launch authority": "id_keys",
    "revocation": "revocation",
}
