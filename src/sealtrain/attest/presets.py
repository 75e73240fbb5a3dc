"""Named policies to begin from (spec/evidence.md §6).

Every preset but the simulator's accepts no image until its owner lists some: which images are good
is for the owners to say, and a policy that guesses would be one that nobody read.
"""

from __future__ import annotations

from typing import Any, Final

from sealtrain.attest.nvidia.policy import NvidiaPolicy
from sealtrain.attest.policy import AppraisalPolicy, policy_from_dict
from sealtrain.base.encoding import to_base64
from sealtrain.errors import UsageError

__all__ = ["DEFAULT", "PRESETS", "insecure_simulator_policy", "preset"]

DEFAULT: Final = "deny-all"
_NO_PROVIDER = "00" * 32
_DAY = 24 * 3600

_TDX: Final[dict[str, Any]] = {
    "tcb_status": ["UpToDate"],
    "advisories": "none",
    "debug": "refuse",
    "migration": "refuse",
    "measurements": [],
    "platform_ids": "any",
    "min_tcb_evaluation_data_number": 18,
    "max_collateral_age_s": 30 * _DAY,
}
_DSTACK: Final[dict[str, Any]] = {
    "tee": "dstack",
    **_TDX,
    "key_provider": _NO_PROVIDER,
    "os_image_hash": "any",
}


def _nvidia(boards: list[str], count: int, switches: int, mode: list[str]) -> dict[str, Any]:
    return {
        "root": "nvidia",
        "rim_root": "nvidia",
        "gpu_count": count,
        "switch_count": switches,
        "architectures": boards,
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


PRESETS: Final[dict[str, dict[str, Any]]] = {
    "deny-all": {
        "version": 2,
        "platform": "dstack",
        "root": "intel",
        "cpu": {**_DSTACK, "platform_ids": []},
        "gpu": "none",
    },
    "dstack-h100": {
        "version": 2,
        "platform": "dstack",
        "root": "intel",
        "cpu": _DSTACK,
        "gpu": _nvidia(["HOPPER"], 1, 0, ["single", "mpt"]),
    },
    "dstack-h200": {
        "version": 2,
        "platform": "dstack",
        "root": "intel",
        "cpu": _DSTACK,
        "gpu": _nvidia(["HOPPER"], 8, 4, ["protected_pcie"]),
    },
    "nitro": {
        "version": 2,
        "platform": "nitro",
        "root": "aws",
        "cpu": {
            "tee": "nitro",
            "images": [],
            "signers": "any",
            "parents": "any",
            "iam_roles": "any",
            "max_age_s": 300,
            "debug": "refuse",
        },
        "gpu": "none",
    },
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
"""Presets for hardware by name, as parsed YAML. ``simulator`` needs a root: see below."""


def preset(name: str) -> AppraisalPolicy:
    """The policy of that name.

    Raises:
        UsageError: There is none.
    """
    if name not in PRESETS:
        raise UsageError(
            "no such policy preset", got=name, expected=", ".join((*PRESETS, "simulator"))
        )
    return policy_from_dict(PRESETS[name])


def insecure_simulator_policy(
    root_der: bytes,
    *,
    tee: str = "dstack",
    gpu: NvidiaPolicy | None = None,
) -> AppraisalPolicy:
    """Policy that accepts any guest of one simulator, for demonstrations and tests.

    Args:
        root_der: The simulator's root certificate for ``tee``.
        tee: What the simulator plays: ``dstack``, ``tdx``, ``nitro`` or ``snp``.
        gpu: Rules for simulated accelerators, ``None`` where there are none.

    Raises:
        TrustInvalid: Not a certificate that calls itself SIMULATED.
        UsageError: No such TEE.
    """
    if tee not in _SIMULATED:
        raise UsageError("no such simulated TEE", got=tee, expected=", ".join(_SIMULATED))
    return policy_from_dict(
        {
            "version": 2,
            "platform": "simulator",
            "root": {"insecure_simulator_root": to_base64(root_der)},
            "cpu": _SIMULATED[tee],
            "gpu": "none" if gpu is None else gpu.to_dict(),
        }
    )


_ANY_TDX: Final = {
    **_TDX,
    "measurements": "any",
    "min_tcb_evaluation_data_number": 1,
    "max_collateral_age_s": "any",
}
_SIMULATED: Final[dict[str, dict[str, Any]]] = {
    "dstack": {"tee": "dstack", **_ANY_TDX, "key_provider": "any", "os_image_hash": "any"},
    "tdx": {"tee": "tdx", **_ANY_TDX},
    "nitro": {**PRESETS["nitro"]["cpu"], "images": "any"},
    "snp": {**PRESETS["snp-genoa"]["cpu"], "measurements": "any"},
}
