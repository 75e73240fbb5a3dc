"""Appraisal: compare verified facts with reference values, one claim after the other.

1. platform and simulation  2. tier  3. the TEE's own rules  4. compose hash  5. app id
6. report data (3 to 6: ``engine.guest_groups``)  7. each accelerator's claims, which are
``attest.verify``'s

The first breach raises; a verdict therefore exists only when every claim held.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from sealtrain.attest.claims import Claim, require_groups, single
from sealtrain.attest.engine import check_platform, check_tier, guest_groups
from sealtrain.attest.facts import MeasuredDocument, SignedFacts, Situation
from sealtrain.attest.policy import AppraisalPolicy
from sealtrain.attest.report_data import Binding
from sealtrain.attest.roots import SIMULATED_LABEL
from sealtrain.attest.verifier import verifier_of
from sealtrain.attest.verify import Verified
from sealtrain.base.clock import to_rfc3339
from sealtrain.base.tiers import Tier

__all__ = ["Claim", "Submodule", "Verdict", "appraise"]

EAT_PROFILE = "https://sealtrain.dev/attestations/verdict/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Submodule:
    """One part of a guest that signed for itself.

    Attributes:
        eat: Claims under their RFC 9711 names (``ueid``, ``hwmodel``, ``dbgstat``…).
        claims: Comparisons that held.
    """

    eat: dict[str, str]
    claims: tuple[Claim, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {**self.eat, "claims": [claim.to_dict() for claim in self.claims]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Evidence that held under a policy. ``simulated`` means: it proves nothing about hardware.

    Attributes:
        submods: By name: ``cpu0``, then ``gpus`` (what holds for them together), ``gpu0``,
            ``gpu1``…, ``switch0``….
        report_data: What the processor's quote committed to, 64 bytes.
    """

    submods: dict[str, Submodule]
    report_data: bytes
    simulated: bool
    platform: str
    tier: Tier
    quote_identity: str
    verified_at: int

    @property
    def claims(self) -> tuple[Claim, ...]:
        """Of all submodules, in their order."""
        return tuple(claim for submod in self.submods.values() for claim in submod.claims)

    @property
    def label(self) -> str:
        """One line for a reader."""
        return SIMULATED_LABEL if self.simulated else f"ATTESTED — {self.platform}"

    def to_dict(self) -> dict[str, Any]:
        """JSON form for receipts and manifests: an EAT claims set (RFC 9711) and its label."""
        return {
            "eat_profile": EAT_PROFILE,
            "eat_nonce": self.report_data.hex(),
            "label": self.label,
            "simulated": self.simulated,
            "platform": self.platform,
            "tier": self.tier,
            "quote_identity": self.quote_identity,
            "verified_at": to_rfc3339(self.verified_at),
            "submods": {name: appraised.to_dict() for name, appraised in self.submods.items()},
        }


def appraise(
    verified: Verified,
    policy: AppraisalPolicy,
    *,
    binding: Binding,
    compose_hash: str | None,
    app_id: str | None,
) -> Verdict:
    """Compare verified facts with what is expected of this guest in this conversation.

    Args:
        verified: Output of ``attest.verify.verify`` under the same policy.
        policy: Reference values.
        binding: The conversation that the evidence must have been made for.
        compose_hash: Expected deployment document, ``None`` for any.
        app_id: Expected app, ``None`` for any.

    Raises:
        EvidenceRefused: A leaf of that branch, for the first claim that does not hold.
    """
    verifier, source = verifier_of(policy.cpu.tee), f"{policy.cpu.tee} guest"
    facts: SignedFacts[Any] = SignedFacts(
        statement=verified.signed,
        root="",
        report_data=verified.report_data,
        source="quote",
        document=MeasuredDocument(got=verified.compose_hash, source=source),
        app_id=verified.app_id,
    )
    here = Situation(
        policy=policy,
        root=policy.simulator_root,
        now=verified.verified_at,
        nonce=binding.report_data(verified.gpu_digest),
        compose_hashes=() if compose_hash is None else (compose_hash,),
        app_id=app_id,
    )
    claims = require_groups(
        (
            single(partial(check_platform, verified.platform, verified.simulated, policy)),
            single(partial(check_tier, verified.tier, policy)),
            *guest_groups(facts, verifier, here),
        )
    )
    submods = {"cpu0": Submodule(eat=verifier.eat(verified.signed), claims=claims)}
    return Verdict(
        submods=submods | _accelerators(verified),
        report_data=verified.report_data,
        simulated=verified.simulated,
        platform=verified.platform,
        tier=verified.tier,
        quote_identity=verified.quote_identity,
        verified_at=verified.verified_at,
    )


def _accelerators(verified: Verified) -> dict[str, Submodule]:
    if verified.gpus is None:
        return {}
    from sealtrain.attest.nvidia.appraise import eat
    from sealtrain.attest.nvidia.verify import SET

    gpus = verified.gpus
    return {SET: Submodule(eat={}, claims=gpus.claims[SET])} | {
        name: Submodule(eat=eat(device), claims=gpus.claims[name])
        for name, device in gpus.devices.items()
    }
