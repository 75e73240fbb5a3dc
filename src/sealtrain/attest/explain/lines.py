"""Which line of a policy each comparison is about, for people who look for it."""

from __future__ import annotations

from typing import Final

__all__ = ["line_of"]

_TDX: Final = {
    "TCB status": "tcb_status",
    "advisories": "advisories",
    "collateral floor": "min_tcb_evaluation_data_number",
    "collateral age": "max_collateral_age_s",
    "debug": "debug",
    "migration": "migration",
    "service guest": "migration",
    "machine": "platform_ids",
    "guest image": "measurements",
    "key provider": "key_provider",
    "OS image": "os_image_hash",
}
_CPU: Final[dict[str, dict[str, str]]] = {
    "tdx": _TDX,
    "dstack": _TDX,
    "nitro": {
        "debug mode": "debug",
        "document age": "max_age_s",
        "guest image": "images",
        "image signer": "signers",
        "parent instance": "parents",
        "IAM role": "iam_roles",
    },
    "snp": {
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
    },
}
_GPU: Final = {
    "architecture": "architectures",
    "device": "devices",
    "driver version": "driver_versions",
    "VBIOS version": "vbios_versions",
    "reference values": "reference_values",
    "revocation": "revocation",
    "remote verdict": "nras",
    "GPUs": "gpu_count",
    "NVSwitches": "switch_count",
    "GPU topology": "switch_count",
    "GPUs of the driver": "gpu_count",
    "NVSwitch topology": "gpu_count",
    "GPU mode": "mode",
    "GPU confidential computing": "cc",
    "GPU environment": "cc",
    "GPU developer tools": "devtools",
    "GPU root": "root",
}


def line_of(tee: str, part: str, comparison: str) -> str:
    """The policy's field, as a path; empty where the comparison is not the policy's.

    Args:
        tee: What the policy is for.
        part: ``cpu0``, or a part of the accelerators.
        comparison: Name of the claim, or of the check that failed.
    """
    if comparison in ("signature and root", "root"):
        return "root" if part == "cpu0" else "gpu.root"
    if comparison == "platform":
        return "platform"
    if comparison == "accelerators":
        return "gpu"
    if part == "cpu0":
        name = _CPU[tee].get(comparison)
        return "" if name is None else f"cpu.{name}"
    if comparison.endswith(" measurements") or comparison.endswith(" version"):
        comparison = comparison if comparison in _GPU else "reference values"
    return f"gpu.{_GPU[comparison]}" if comparison in _GPU else ""
