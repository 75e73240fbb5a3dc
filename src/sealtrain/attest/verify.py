"""Verification of evidence: from received bytes to facts that a root of trust signed.

1. The evidence is for the platform and the TEE the policy names; simulated evidence never meets a
   policy that asks for hardware.
2. What the processor signed verifies under the policy's root at ``now`` and names the deployment
   document (``Part.verify``, ``Vouched.bound``).
3. Accelerators are shown where the policy asks for them, and only then; their reports verify and
   were made for this conversation (``nvidia.verify``).

What the facts are worth is decided by ``attest.appraise``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from sealtrain.attest.bundle import Attachments
from sealtrain.attest.claims import Claim, require_groups
from sealtrain.attest.evidence import Collateral, Evidence
from sealtrain.attest.nvidia.policy import NvidiaPolicy
from sealtrain.attest.part import Part, Situation, other_tee
from sealtrain.attest.policy import AppraisalPolicy
from sealtrain.attest.report_data import REPORT_DATA_BYTES
from sealtrain.attest.roots import SIMULATED_LABEL
from sealtrain.attest.tee import VerifiedGuest
from sealtrain.attest.verifier import verifier_of
from sealtrain.base.digests import sha256_hex
from sealtrain.base.tiers import Tier, or_stronger, require_tier, tier_of
from sealtrain.errors import GpuSetRefused, PlatformMismatch, ReportDataMismatch, SimulatedEvidence

if TYPE_CHECKING:
    from sealtrain.attest.nvidia.collateral import GpuCollateral
    from sealtrain.attest.nvidia.verify import VerifiedGpus
    from sealtrain.attest.report_data import Binding

__all__ = [
    "Verified",
    "check_platform",
    "check_shown",
    "check_tier",
    "verify",
    "vouched_guest",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified(VerifiedGuest[Any]):
    """Facts about a guest that hardware signed, or a simulator where ``simulated``.

    Attributes:
        platform: What the evidence was offered as.
        tier: What evidence of this kind proves.
        app_compose: The deployment document that was measured.
        gpus: What accelerators signed; ``None`` where the guest shows none or none is asked for.
        gpu_digest: What report data must commit to besides the conversation.
        verified_at: Seconds since 1970.
    """

    platform: str
    tier: Tier
    app_compose: bytes
    gpus: VerifiedGpus | None
    gpu_digest: bytes
    verified_at: int


def verify(
    evidence: Evidence,
    policy: AppraisalPolicy,
    now: int,
    *,
    binding: Binding,
    collateral: Collateral | None = None,
    gpu_collateral: GpuCollateral | None = None,
    crl: bytes | None = None,
) -> Verified:
    """Verify evidence at a moment.

    Args:
        evidence: What the guest sent.
        policy: Platform, roots, and the rules of signatures and collateral.
        now: Verification time, seconds since 1970, from the verifier's own clock.
        binding: The conversation; accelerators' reports must carry its nonce.
        collateral: The verifier's own DCAP collateral. ``None`` uses what the evidence carries,
            right for archived evidence and wrong for live decisions, where a host could choose it.
        gpu_collateral: The same for accelerators.
        crl: The verifier's own revocation list of AMD (DER); ``None`` uses what the evidence
            carries, which is signed and current but may be the oldest that still is.

    Raises:
        SimulatedEvidence: Simulated evidence under a policy that asks for hardware.
        PlatformMismatch: Evidence of another platform or TEE.
        GpuSetRefused: Accelerators are shown where there must be none, or the reverse.
        EvidenceRefused: Any other leaf of that branch; see each platform's ``verify``.
    """
    check_platform(evidence, policy)
    carried = evidence.collateral if collateral is None else collateral
    cpu = _cpu(evidence, policy, now, carried, crl)
    if gpu_collateral is None and evidence.gpu_collateral is not None:
        gpu_collateral = evidence.gpu_collateral.without_verdict()
    return Verified(
        **{field.name: getattr(cpu, field.name) for field in fields(cpu)},
        platform=evidence.platform,
        tier=tier_of(evidence.cpu.tee),
        app_compose=evidence.cpu.app_compose_bytes,
        gpus=_gpus(evidence, policy, now, binding, gpu_collateral),
        gpu_digest=evidence.gpu_digest,
        verified_at=now,
    )


def check_platform(evidence: Evidence, policy: AppraisalPolicy) -> Claim:
    """(1) What the evidence is offered as, before anything of it is verified.

    Raises:
        SimulatedEvidence: A simulator's, and the policy asks for hardware.
        PlatformMismatch: Another platform's.
    """
    simulated = evidence.platform == "simulator"
    if evidence.platform != policy.platform:
        error = SimulatedEvidence if simulated else PlatformMismatch
        raise error(
            "evidence is of another platform than the policy asks for",
            check="platform",
            got=SIMULATED_LABEL if simulated else evidence.platform,
            expected=policy.platform,
        )
    return Claim(
        name="platform",
        got=evidence.platform,
        expected=policy.platform,
        source="evidence",
        outcome="equal",
    )


def check_tier(proven: Tier, policy: AppraisalPolicy) -> Claim:
    """What evidence of this kind proves, compared with the lowest tier that the policy takes.

    Raises:
        TierRefused: It proves less.
    """
    require_tier(proven, policy.tier, asked_by="the policy")
    return Claim(
        name="tier",
        got=proven,
        expected=or_stronger(policy.tier),
        source="kind of evidence",
        outcome="equal" if proven == policy.tier else "allowed",
    )


def check_shown(evidence: Evidence, policy: AppraisalPolicy) -> None:
    """(3) Accelerators are shown where the policy has rules for them, and none where it wants none.

    Raises:
        GpuSetRefused: The reverse.
    """
    if policy.gpu == "none" and evidence.gpu is not None:
        raise GpuSetRefused(
            "guest shows accelerators that this policy does not provide for",
            check="accelerators",
            got=len(evidence.gpu.devices),
            expected="none",
            hint="write the rules for them into the policy, or gpu: any",
        )
    if isinstance(policy.gpu, NvidiaPolicy) and evidence.gpu is None:
        raise GpuSetRefused(
            "guest shows no accelerator",
            check="accelerators",
            got=0,
            expected=policy.gpu.gpu_count,
            hint="collect evidence where the accelerators are, with their driver running",
        )


def _cpu(
    evidence: Evidence,
    policy: AppraisalPolicy,
    now: int,
    collateral: Collateral | None,
    crl: bytes | None,
) -> VerifiedGuest[Any]:
    shown, rules = evidence.cpu, policy.cpu
    if shown.tee != rules.tee:
        other_tee(shown.tee, rules.tee)()
    at = Situation(
        policy=policy,
        root=policy.simulator_root,
        now=now,
        shown_compose=sha256_hex(shown.app_compose_bytes),
    )
    beside = Attachments(collateral=collateral, crl=crl)
    return vouched_guest(verifier_of(shown.tee).part(shown, beside, at))


def vouched_guest(part: Part) -> VerifiedGuest[Any]:
    """(2) Facts about a guest that shows its deployment document.

    Raises:
        ReportDataMismatch: What was signed has no room for report data.
        EvidenceRefused: Signature or document do not hold.
    """
    vouched = part.verify()
    require_groups(vouched.bound)
    guest = vouched.guest
    if guest is None or len(guest.report_data) != REPORT_DATA_BYTES:
        raise ReportDataMismatch(
            "evidence does not hold report data",
            check="report data",
            got="none" if guest is None else f"{len(guest.report_data)} bytes",
            expected=f"{REPORT_DATA_BYTES} bytes",
        )
    return guest


def _gpus(
    evidence: Evidence,
    policy: AppraisalPolicy,
    now: int,
    binding: Binding,
    collateral: GpuCollateral | None,
) -> VerifiedGpus | None:
    check_shown(evidence, policy)
    if not isinstance(policy.gpu, NvidiaPolicy) or evidence.gpu is None:
        return None
    from sealtrain.attest.nvidia.verify import verify_gpus

    root = policy.gpu.root
    return verify_gpus(
        evidence.gpu,
        policy.gpu,
        collateral,
        nonce=binding.gpu_nonce(),
        simulator_root=None if root == "nvidia" else root.der,
        now=now,
    )
