"""Named policies to begin from (spec/evidence.md §6).

Every preset but the simulator's accepts no image until its owner lists some: only the owners can
say which images are good, and a preset that guessed would be adopted unread.
"""

from __future__ import annotations

from typing import Any, Final

from sealtrain.attest.nvidia.policy import NvidiaPolicy
from sealtrain.attest.policy import AppraisalPolicy, policy_from_dict
from sealtrain.attest.registry import TEES, tee_of
from sealtrain.base.encoding import to_base64
from sealtrain.errors import UsageError

__all__ = ["DEFAULT", "PRESETS", "insecure_simulator_policy", "preset"]

DEFAULT: Final = "deny-all"
PRESETS: Final[dict[str, dict[str, Any]]] = {
    name: policy for tee in TEES for name, policy in tee.presets.items()
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
        tee: What the simulator plays, by name.
        gpu: Rules for simulated accelerators, ``None`` where there are none.

    Raises:
        TrustInvalid: Not a certificate that calls itself SIMULATED.
        UsageError: No such TEE.
    """
    simulated = dict(tee_of(tee).simulated)
    return policy_from_dict(
        {
            "version": 2,
            "platform": "simulator",
            "root": {"insecure_simulator_root": to_base64(root_der)},
            "cpu": simulated,
            "gpu": "none" if gpu is None else gpu.to_dict(),
        }
    )
