"""Appraisal policy: what evidence must show before anything is released to a guest.

1. Every field is written; nothing is assumed. Where a value does not matter, ``any`` says so.
2. ``root`` names the vendor whose hardware is trusted. The other form, ``insecure_simulator_root``,
   trusts a software root whose own name says SIMULATED, and everything accepted under it is so
   marked.
3. A policy for one platform never accepts another. ``cpu`` holds the rules of its TEE, ``gpu``
   those of its accelerators.
4. ``tier`` is the lowest that is taken: what the evidence must prove, and by whose word.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Union

from pydantic import Field, model_validator

from sealtrain.attest.nvidia.policy import NvidiaPolicy
from sealtrain.attest.registry import TEES, VENDORS, tee_of
from sealtrain.attest.roots import SimulatorRoot
from sealtrain.attest.statement import GuestPolicy
from sealtrain.base.canonical import JsonValue
from sealtrain.base.files import read_bounded
from sealtrain.base.models import StrictModel, load_model
from sealtrain.base.platforms import Platform
from sealtrain.base.tiers import Tier
from sealtrain.base.yamltext import parse_yaml
from sealtrain.errors import DataInvalid, TrustInvalid

MAX_POLICY_BYTES = 256 << 10

if TYPE_CHECKING:
    CpuPolicy = GuestPolicy
    Vendor = str
else:
    CpuPolicy = Annotated[
        Union[tuple(tee.rules.form for tee in TEES)],  # noqa: UP007  # of a table
        Field(discriminator="tee"),
    ]
    Vendor = Literal[VENDORS]


class AppraisalPolicy(StrictModel):
    """What a guest must show. See ``spec/evidence.md`` §6 for every field."""

    version: Annotated[int, Field(ge=2, le=2)]
    platform: Platform
    tier: Tier
    root: Vendor | SimulatorRoot
    cpu: CpuPolicy
    gpu: Literal["any", "none"] | NvidiaPolicy

    @property
    def simulator_root(self) -> bytes | None:
        """The trusted software root (DER), ``None`` where hardware is asked for."""
        return self.root.der if isinstance(self.root, SimulatorRoot) else None

    @model_validator(mode="after")
    def _consistent(self) -> AppraisalPolicy:
        simulated = isinstance(self.root, SimulatorRoot)
        if isinstance(self.root, SimulatorRoot):
            self.root.require_simulated()
        if (self.platform == "simulator") != simulated:
            raise ValueError(
                "platform 'simulator' goes with insecure_simulator_root, every other one with "
                "its vendor's root"
            )
        if not simulated:
            tee = tee_of(self.cpu.tee)
            if self.platform != tee.platform:
                raise ValueError("cpu holds the rules of another TEE than platform names")
            if self.root != tee.vendor:
                raise ValueError(f"the root of {tee.name} is {tee.vendor}")
        if isinstance(self.gpu, NvidiaPolicy) and simulated != isinstance(
            self.gpu.root, SimulatorRoot
        ):
            raise ValueError("cpu and gpu are either both simulated or both hardware")
        return self


def load_policy(path: Path) -> AppraisalPolicy:
    """Read a policy from a YAML (or JSON) file of at most 256 KiB.

    Raises:
        TrustInvalid: No such file, not the YAML of ``base.yamltext``, or a field is missing,
            unknown or malformed.
    """
    try:
        data = read_bounded(Path(path), MAX_POLICY_BYTES)
    except DataInvalid as error:
        raise TrustInvalid(error.message, check="appraisal policy", hint=error.hint) from error
    value = parse_yaml(
        data, error=TrustInvalid, what="appraisal policy", max_bytes=MAX_POLICY_BYTES
    )
    return policy_from_dict(value)


def policy_from_dict(data: JsonValue) -> AppraisalPolicy:
    """Validate a parsed policy.

    Raises:
        TrustInvalid: A field is missing, unknown or malformed.
    """
    return load_model(AppraisalPolicy, data, TrustInvalid, "appraisal policy")
