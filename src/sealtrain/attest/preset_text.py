"""Presets as YAML for people: each line says what it asks for and what is to be filled in."""

from __future__ import annotations

from typing import Any, Final

import yaml

from sealtrain.attest.presets import PRESETS
from sealtrain.errors import UsageError

__all__ = ["preset_yaml"]

_FILL: Final = "FILL IN: "
_COMMENTS: Final[dict[str, str]] = {
    "platform": "Evidence of this platform and no other.",
    "root": "Whose hardware is trusted: intel, aws, amd.",
    "cpu": "What the processor's statement must show.",
    "gpu": "What accelerators must show; none refuses guests that show any, any does not look.",
    "cpu.tcb_status": "Intel's words for the platform's state. SWHardeningNeeded is often met.",
    "cpu.advisories": "Open security advisories: none, a list of INTEL-SA-… ids, or any.",
    "cpu.debug": "There is no other value: in debug mode the host reads the guest's memory.",
    "cpu.migration": "There is no other value: another guest could move this one elsewhere.",
    "cpu.platform_ids": "Machines by PPID (32 hex digits); any accepts every machine.",
    "cpu.min_tcb_evaluation_data_number": "Oldest of Intel's reviews that counts; raise it yearly.",
    "cpu.max_collateral_age_s": "How old Intel's data may be at the time of the decision.",
    "cpu.key_provider": f"{_FILL}id of the key service that may have given the guest its keys.",
    "cpu.os_image_hash": "OS images as the key provider names them; any where images are measured.",
    "cpu.images": f"{_FILL}pcr0, pcr1, pcr2 of each image, as nitro-cli build-enclave prints them.",
    "cpu.signers": "PCR8 of who may sign images, or any.",
    "cpu.parents": "EC2 instances, i-…, that may run the enclave, or any.",
    "cpu.iam_roles": "PCR3 of the parent's IAM role, or any.",
    "cpu.max_age_s": "How old a document may be, in seconds.",
    "cpu.products": "Processor generations: Genoa, Turin. Milan's reports can be forged.",
    "cpu.signing_keys": "vcek is one chip's key; vlek is lent to a cloud and shared.",
    "cpu.minimum_tcb": "Oldest acceptable firmware of each product; raise it with each update.",
    "cpu.mitigations": "Bits (16 hex digits) that each product must have set, or any.",
    "cpu.extended_tcb": "Accepted extended TCB values (64 hex digits), or any.",
    "cpu.platform_flags": "Flags the platform must have, such as alias_check_complete, or any.",
    "cpu.chip_ids": "Machines by chip id (128 hex digits), or any.",
    "cpu.vmpl": "Privilege level that asks for the report; 0 unless a service module runs below.",
    "cpu.smt": "refuse asks for guests that share no core; any does not.",
    "cpu.id_keys": "Digests of the keys that may authorise a launch, or any.",
    "cpu.revocation": "require asks for AMD's revocation list beside the evidence.",
    "gpu.root": "Who certifies devices.",
    "gpu.rim_root": "Who signs reference values.",
    "gpu.gpu_count": "Exactly so many GPUs.",
    "gpu.switch_count": "Exactly so many NVSwitches; 0 for one GPU.",
    "gpu.architectures": "HOPPER is H100, H200 and H20; BLACKWELL is B200 and RTX PRO 6000.",
    "gpu.mode": "single, mpt (GPUs encrypt what they say), protected_pcie (a whole machine).",
    "gpu.cc": "There is no other value: confidential computing is on.",
    "gpu.devtools": "There is no other value: in developer mode the host reads the GPU's memory.",
    "gpu.devices": "Devices by ueid, switches included; any accepts every device.",
    "gpu.driver_versions": "Oldest driver, and drivers that are known to be bad.",
    "gpu.vbios_versions": "A floor for each architecture, or any.",
    "gpu.reference_values": "require NVIDIA's signed files, or pin their SHA-256 by name.",
    "gpu.revocation": "require a fresh answer for each certificate.",
    "gpu.max_ocsp_age_s": "How old such an answer may be, in seconds.",
    "gpu.nras": "require NVIDIA's own verdict as well, or any.",
}
_MEASUREMENTS: Final = {
    "snp": f"{_FILL}MEASUREMENT of each image that may run (96 hex digits). Empty accepts none.",
    "dstack": f"{_FILL}mrtd, rtmr0, rtmr1, rtmr2 of each image and machine shape. Empty accepts "
    "none.",
}
_HEAD: Final = """\
# Appraisal policy, from the preset {name}. Every field is written; any says that a value does not
# matter. As it stands it {stands}.
"""


def preset_yaml(name: str) -> str:
    """A preset as commented YAML.

    Raises:
        UsageError: There is none of this name.
    """
    if name not in PRESETS:
        simulator = name == "simulator"
        raise UsageError(
            "a simulator's policy needs its root" if simulator else "no such policy preset",
            got=name,
            expected=", ".join(PRESETS),
            hint="sealtrain simulator policy writes it" if simulator else None,
        )
    policy = PRESETS[name]
    comments = _COMMENTS | {"cpu.measurements": _MEASUREMENTS.get(policy["cpu"]["tee"], "")}
    stands = "accepts nobody" if name == "deny-all" else "accepts nobody until its lists are filled"
    return _HEAD.format(name=name, stands=stands) + "\n".join(_lines(policy, "", comments)) + "\n"


def _lines(fields: dict[str, Any], path: str, comments: dict[str, str]) -> list[str]:
    found: list[str] = []
    indent = "  " * path.count(".")
    for key, value in fields.items():
        comment = comments.get(path + key)
        if comment:
            found.append(f"{indent}# {comment}")
        if isinstance(value, dict) and value and not path:
            found += [f"{indent}{key}:", *_lines(value, f"{path}{key}.", comments)]
        else:
            flow = None if isinstance(value, (list, dict)) else False  # short lists on one line
            text = yaml.safe_dump({key: value}, sort_keys=False, default_flow_style=flow)
            found += [indent + line for line in text.rstrip("\n").split("\n")]
    return found
