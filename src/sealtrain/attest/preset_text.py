"""Presets as YAML for people: each line says what it asks for and what is to be filled in."""

from __future__ import annotations

from typing import Any, Final

from sealtrain.attest.presets import PRESETS
from sealtrain.attest.registry import TEES, tee_of
from sealtrain.base.yamltext import yaml_text
from sealtrain.errors import UsageError

__all__ = ["preset_yaml"]

_COMMENTS: Final[dict[str, str]] = {
    "platform": "Evidence of this platform and no other.",
    "root": f"Whose hardware is trusted: {', '.join(dict.fromkeys(tee.vendor for tee in TEES))}.",
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
    "gpu.devices": "Devices by ueid, switches included; any accepts every device.",
    "gpu.driver_versions": "Oldest driver, and drivers that are known to be bad.",
    "gpu.vbios_versions": "A floor for each architecture, or any.",
    "gpu.reference_values": "require NVIDIA's signed files, or pin their SHA-256 by name.",
    "gpu.revocation": "require a fresh answer for each certificate.",
    "gpu.max_ocsp_age_s": "How old such an answer may be, in seconds.",
    "gpu.nras": "require NVIDIA's own verdict as well, or any.",
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
    told = tee_of(policy["cpu"]["tee"]).comments
    comments = _COMMENTS | {f"cpu.{line}": comment for line, comment in told.items()}
    stands = (
        "accepts nobody" if name == "deny-all" else "accepts no guest until its lists are filled"
    )
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
