"""Rules for boards to begin from."""

from __future__ import annotations

from typing import Any

__all__ = ["board"]

_DAY = 24 * 3600


def board(architectures: list[str], count: int, switches: int, mode: list[str]) -> dict[str, Any]:
    """Hardware's rules for one kind of board, as parsed YAML."""
    return {
        "root": "nvidia",
        "rim_root": "nvidia",
        "gpu_count": count,
        "switch_count": switches,
        "architectures": architectures,
        "mode": mode,
        "cc": "on",
        "devtools": "off",
        "devices": "any",
        "driver_versions": {"minimum": "570.0.0", "denied": []},
        "vbios_versions": "any",
        "reference_values": "require",
        "revocation": "require",
        "max_ocsp_age_s": _DAY,
        "nras": "any",
    }
