"""Which line of a policy each comparison is about, for people who look for it."""

from __future__ import annotations

from typing import Final

from sealtrain.attest.registry import tee_of

__all__ = ["line_of"]

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
        name = tee_of(tee).lines.get(comparison)
        return "" if name is None else f"cpu.{name}"
    if comparison.endswith(" measurements") or comparison.endswith(" version"):
        comparison = comparison if comparison in _GPU else "reference values"
    return f"gpu.{_GPU[comparison]}" if comparison in _GPU else ""
