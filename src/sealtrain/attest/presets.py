"""Named policies to begin from (spec/evidence.md §6).

Every preset but the simulator's accepts no image until its owner lists some: only the owners can
say which images are good, and a preset that guessed would be adopted unread.
"""

from __future__ import annotations

from typing import Any, Final

from sealtrain.attest.nvidia.policy import NvidiaPolicy
from sealtrain.attest.policy import AppraisalPolicy, policy_from_dict
from sealtrain.attest.registry import TEES, VENDORS, tee_of
from sealtrain.attest.tee import NONE, SHOWN
from sealtrain.base.encoding import to_base64
from sealtrain.base.platforms import either
from sealtrain.base.tiers import TIERS, tier_of
from sealtrain.base.yamltext import yaml_text
from sealtrain.errors import UsageError

DEFAULT: Final = "deny-all"
PRESETS: Final[dict[str, dict[str, Any]]] = {
    name: policy for tee in TEES for name, policy in tee.rules.presets.items()
}
"""Presets for hardware by name, as parsed YAML. ``simulator`` needs a root: see below."""


def preset(name: str) -> AppraisalPolicy:
    """The policy of that name.

    Raises:
        UsageError: No preset has that name.
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
        tee: What the simulator plays, by name.
        gpu: Rules for simulated accelerators, ``None`` where there are none.

    Raises:
        TrustInvalid: Not a certificate that calls itself SIMULATED.
        UsageError: No such TEE.
    """
    simulated = dict(tee_of(tee).rules.simulated)
    return policy_from_dict(
        {
            "version": 2,
            "platform": "simulator",
            "tier": tier_of(tee),
            "root": {"insecure_simulator_root": to_base64(root_der)},
            "cpu": simulated,
            "gpu": "none" if gpu is None else gpu.to_dict(),
        }
    )


_COMMENTS: Final[dict[str, str]] = {
    "platform": "Evidence of this platform and no other.",
    "tier": f"Lowest that is taken: {either(TIERS)} (spec/evidence.md, 6.1).",
    "root": f"Whose hardware is trusted: {', '.join(VENDORS)}.",
    "cpu": "What the processor's statement must show.",
    "gpu": "What accelerators must show; none refuses guests that show any, any does not look.",
    "gpu.root": "Who certifies devices.",
    "gpu.rim_root": "Who signs reference values.",
    "gpu.gpu_count": "Exactly so many GPUs.",
    "gpu.switch_count": "Exactly so many NVSwitches; 0 for one GPU.",
    "gpu.architectures": "HOPPER is H100, H200 and H20; BLACKWELL is B200 and RTX PRO 6000.",
    "gpu.mode": "single, mpt (GPUs encrypt what they say), protected_pcie (a whole machine).",
    "gpu.cc": "There is no other value: confidential computing is on.",
    "gpu.devtools": "There is no other value: in developer mode the host reads the GPU's memory.",
    "gpu.devices": f"Devices by ueid, switches included, {SHOWN}. {NONE}",
    "gpu.driver_versions": "Oldest driver, and drivers that are known to be bad.",
    "gpu.vbios_versions": f"A floor for each architecture; the version is {SHOWN}. {NONE}",
    "gpu.reference_values": "require NVIDIA's signed files, or pin their SHA-256 by name.",
    "gpu.revocation": "require a fresh answer for each certificate.",
    "gpu.max_ocsp_age_s": "How old such an answer may be, in seconds.",
    "gpu.nras": "local verifies here alone; require asks for NVIDIA's own verdict as well.",
}
_HEAD: Final = """\
# Appraisal policy, from the preset {name}. Every field is written.
# As it stands it {stands}.
# An author who leaves a value open writes any in its place; every page and report will name it.
"""


def preset_yaml(name: str) -> str:
    """A preset as commented YAML.

    Raises:
        UsageError: No preset has that name.
    """
    if name not in PRESETS:
        simulator = name == "simulator"
        raise UsageError(
            "a simulator's policy needs its root" if simulator else "no such policy preset",
            got=name,
            expected=", ".join(PRESETS),
            hint="sealtrain simulator serve --write-policy writes it" if simulator else None,
        )
    policy = PRESETS[name]
    told = tee_of(policy["cpu"]["tee"]).rules.comments
    comments = _COMMENTS | {f"cpu.{line}": comment for line, comment in told.items()}
    stands = "accepts nobody" if name == "deny-all" else "accepts no guest until lists are filled"
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
            text = yaml_text({key: value}, flow=flow)
            found += [indent + line for line in text.rstrip("\n").split("\n")]
    return found
