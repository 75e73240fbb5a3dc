"""Appraisal policy: what evidence must show before anything is released to a guest.

1. Every field is written; nothing is assumed. Where a value does not matter, ``any`` says so.
2. ``root: intel`` trusts the hardware vendor. The other form, ``insecure_simulator_root``, trusts a
   software root whose own name says SIMULATED, and everything accepted under it is so marked.
3. A policy for one platform never accepts another.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, StringConstraints, model_validator

from sealtrain.attest.roots import is_simulated_certificate
from sealtrain.base.canonical import JsonValue
from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.base.files import read_bounded
from sealtrain.base.models import Base64, Hex32, Hex64, StrictModel, load_model
from sealtrain.errors import DataInvalid, EvidenceRefused, TrustInvalid

__all__ = [
    "AppraisalPolicy",
    "Measurement",
    "SimulatorRoot",
    "TcbStatus",
    "insecure_simulator_policy",
    "load_policy",
    "policy_from_dict",
]

MAX_POLICY_BYTES = 256 << 10

TcbStatus = Literal[
    "UpToDate",
    "SWHardeningNeeded",
    "ConfigurationNeeded",
    "ConfigurationAndSWHardeningNeeded",
    "OutOfDate",
    "OutOfDateConfigurationNeeded",
]
"""Intel's words for the state of a platform. ``Revoked`` is never acceptable."""

_Register = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{96}$")]
_KeyProvider = Annotated[str, StringConstraints(pattern=r"^(?:[0-9a-f]{2}){16,1024}$")]
_Advisory = Annotated[str, StringConstraints(pattern=r"^[A-Z0-9-]{3,64}$")]


class SimulatorRoot(StrictModel):
    """Trust in a software root. Never part of a production policy."""

    insecure_simulator_root: Base64
    """DER certificate whose common name begins with SIMULATED."""

    @property
    def der(self) -> bytes:
        """The certificate."""
        return from_base64(self.insecure_simulator_root)


class Measurement(StrictModel):
    """One accepted guest image on one machine shape: firmware, hardware, kernel, command line."""

    mrtd: _Register
    rtmr0: _Register
    rtmr1: _Register
    rtmr2: _Register


class AppraisalPolicy(StrictModel):
    """What a guest must show. See ``spec/evidence.md`` §6 for every field."""

    platform: Literal["dstack", "simulator"]
    root: Literal["intel"] | SimulatorRoot
    tcb_status: Annotated[tuple[TcbStatus, ...], Field(min_length=1, max_length=8)]
    advisories: Literal["any", "none"] | Annotated[tuple[_Advisory, ...], Field(max_length=256)]
    debug: Literal["refuse"]
    measurements: (
        Literal["any"] | Annotated[tuple[Measurement, ...], Field(min_length=1, max_length=1024)]
    )
    key_provider: Literal["any"] | _KeyProvider
    os_image_hash: (
        Literal["any"] | Annotated[tuple[Hex64, ...], Field(min_length=1, max_length=256)]
    )
    platform_ids: (
        Literal["any"] | Annotated[tuple[Hex32, ...], Field(min_length=1, max_length=4096)]
    )
    min_tcb_evaluation_data_number: Annotated[int, Field(ge=0, le=1 << 31)]

    @property
    def simulator_root(self) -> bytes | None:
        """The trusted software root (DER), ``None`` where hardware is asked for."""
        return self.root.der if isinstance(self.root, SimulatorRoot) else None

    @model_validator(mode="after")
    def _consistent(self) -> AppraisalPolicy:
        if (self.platform == "simulator") != isinstance(self.root, SimulatorRoot):
            raise ValueError(
                "platform 'simulator' goes with insecure_simulator_root, every other one with "
                "'intel'"
            )
        if isinstance(self.root, SimulatorRoot):
            try:
                simulated = is_simulated_certificate(self.root.der)
            except (DataInvalid, EvidenceRefused):
                raise ValueError("insecure_simulator_root is not a DER certificate") from None
            if not simulated:
                raise ValueError(
                    "insecure_simulator_root names a root that does not call itself SIMULATED"
                )
        if self.os_image_hash != "any" and self.key_provider == "any":
            raise ValueError(
                "os_image_hash is measured as the key provider told it: pin key_provider too, or "
                "pin measurements and write os_image_hash: any"
            )
        return self


def load_policy(path: Path) -> AppraisalPolicy:
    """Read a policy from a YAML (or JSON) file of at most 256 KiB.

    Raises:
        TrustInvalid: No such file, not YAML, or a field is missing, unknown or malformed.
    """
    try:
        data = read_bounded(Path(path), MAX_POLICY_BYTES)
        value = yaml.load(data.decode("utf-8"), Loader=_StrictLoader)  # noqa: S506  # subclass of SafeLoader
    except DataInvalid as error:
        raise TrustInvalid(error.message, check="appraisal policy", hint=error.hint) from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f" at line {mark.line + 1}"
        raise TrustInvalid(f"{path} is not YAML{where}", check="appraisal policy") from error
    return policy_from_dict(value)


def policy_from_dict(data: JsonValue) -> AppraisalPolicy:
    """Validate a parsed policy.

    Raises:
        TrustInvalid: A field is missing, unknown or malformed.
    """
    return load_model(AppraisalPolicy, data, TrustInvalid, "appraisal policy")


def insecure_simulator_policy(root_der: bytes) -> AppraisalPolicy:
    """Policy that accepts any guest of one simulator, for demonstrations and tests.

    Args:
        root_der: The simulator's root certificate (``root.der`` of its state folder).

    Raises:
        TrustInvalid: Not a certificate that calls itself SIMULATED.
    """
    return policy_from_dict(
        {
            "platform": "simulator",
            "root": {"insecure_simulator_root": to_base64(root_der)},
            "tcb_status": ["UpToDate"],
            "advisories": "none",
            "debug": "refuse",
            "measurements": "any",
            "key_provider": "any",
            "os_image_hash": "any",
            "platform_ids": "any",
            "min_tcb_evaluation_data_number": 1,
        }
    )


class _StrictLoader(yaml.SafeLoader):
    """YAML without aliases (no expansion bombs) and without repeated keys."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "aliases are not accepted", None)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        mapping = super().construct_mapping(node, deep=deep)
        if len(mapping) != len(node.value):
            raise yaml.constructor.ConstructorError(
                None, None, "a key is written twice", node.start_mark
            )
        return mapping
