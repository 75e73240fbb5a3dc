"""The launch configuration of a dstack guest on SEV-SNP, version 3: what HOST_DATA commits to.

The host writes a text when it launches a guest; HOST_DATA is its hash under a domain of its own.
Absent fields pin nothing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from typing import Annotated, Final, Literal, Self

from pydantic import Field, StringConstraints

from sealtrain.attest.claims import Claim, equal
from sealtrain.attest.dstacksnp.policy import DstackSnpPolicy
from sealtrain.attest.errors import ComposeHashMismatch, EvidenceMalformed
from sealtrain.attest.rules import Rule
from sealtrain.attest.snp import appraise as snp
from sealtrain.attest.snp.policy import SnpRules
from sealtrain.attest.snp.verify import REPORT, VerifiedReport
from sealtrain.base.canonical import parse_json
from sealtrain.base.models import Hex64, StrictModel, load_model
from sealtrain.errors import DataInvalid, KeyProviderMismatch

_DOMAIN = b"dstack-mr-config-v3:\0"
_MAX_BYTES = 64 << 10
_CHECK = "launch configuration"

_Hex40 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
_Octets = Annotated[str, StringConstraints(pattern=r"^(?:[0-9a-f]{2})*$", max_length=4096)]


class LaunchConfig(StrictModel):
    """What dstack's host sets at launch; absent fields pin nothing."""

    version: Literal[3] = 3
    app_id: _Hex40 | None = None
    compose_hash: Hex64
    gpu_policy_hash: Hex64 | None = None
    key_provider: Literal["none", "local", "kms", "tpm"]
    key_provider_id: _Octets | None = None
    instance_id: _Hex40 | None = None
    init_script_hashes: Annotated[tuple[Hex64, ...], Field(max_length=256)] | None = None

    @property
    def provider(self) -> str:
        """Id of the key provider, or its kind where it has none."""
        return self.key_provider_id or self.key_provider


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredReport(VerifiedReport):
    """A report, and what it commits to."""

    config: LaunchConfig

    @classmethod
    def of(cls, verified: VerifiedReport, config: LaunchConfig) -> Self:
        """A verified report with its launch configuration."""
        known = {field.name: getattr(verified, field.name) for field in fields(verified)}
        return cls(config=config, **known)


def launch_commitment(mr_config: str) -> bytes:
    """HOST_DATA of a guest that was launched with this text, 32 bytes."""
    return hashlib.sha256(_DOMAIN + mr_config.encode("utf-8")).digest()


def launch_config(host_data: bytes, text: str) -> tuple[Claim, LaunchConfig]:
    """The configuration that HOST_DATA commits to, and the claim that it does.

    Raises:
        ComposeHashMismatch: It commits to another text.
        EvidenceMalformed: The text has another form.
    """
    expected, got = launch_commitment(text).hex(), host_data.hex()
    if got != expected:
        raise ComposeHashMismatch(
            "HOST_DATA commits to another launch configuration than the evidence shows",
            check=_CHECK,
            got=got,
            expected=expected,
            hint="show the text that the host launched the guest with, byte for byte",
        )
    try:
        value = parse_json(text.encode("utf-8"), max_bytes=_MAX_BYTES, max_depth=4)
    except DataInvalid as error:
        raise EvidenceMalformed("launch configuration is not JSON", check=_CHECK) from error
    config = load_model(LaunchConfig, value, EvidenceMalformed, _CHECK)
    return Claim(name=_CHECK, got=got, expected=expected, source=REPORT, outcome="equal"), config


def _provider(signed: ConfiguredReport, policy: SnpRules | None, now: int) -> Claim:
    """The key provider; without a policy of this kind any will do."""
    named = policy.key_provider if isinstance(policy, DstackSnpPolicy) else "any"
    return equal(
        "key provider",
        signed.config.provider,
        None if named == "any" else named,
        source=REPORT,
        error=KeyProviderMismatch,
        message="guest gets its keys from another key provider",
    )


RULES: Final = (
    *snp.RULES,
    Rule(name="key provider", compare=_provider, measured=True, always=True),
)
"""Its report, then who gave it its keys."""
