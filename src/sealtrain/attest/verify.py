"""Verification of evidence: from received bytes to facts that a root of trust signed.

1. The evidence is for the platform and the TEE the policy names; simulated evidence never meets a
   policy that asks for hardware.
2. What the processor signed verifies under the policy's root at ``now`` and names the deployment
   document (``engine.guest_part``).
3. Accelerators are shown where the policy asks for them, and only then; their reports verify and
   were made for this conversation (``nvidia.verify``).

What the facts are worth is decided by ``attest.appraise``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from sealtrain.attest.bundle import Attachments
from sealtrain.attest.claims import Group, single
from sealtrain.attest.engine import check_offered, guest_part, other_tee
from sealtrain.attest.errors import GpuSetRefused, ReportDataMismatch
from sealtrain.attest.evidence import Collateral, Evidence
from sealtrain.attest.facts import Situation
from sealtrain.attest.nvidia.policy import NvidiaPolicy
from sealtrain.attest.parts import Part, Vouched, decide
from sealtrain.attest.policy import AppraisalPolicy
from sealtrain.attest.report_data import REPORT_DATA_BYTES
from sealtrain.attest.tee import VerifiedGuest
from sealtrain.attest.verifier import verifier_of
from sealtrain.base.digests import sha256_hex
from sealtrain.base.tiers import Tier, tier_of

if TYPE_CHECKING:
    from sealtrain.attest.nvidia.collateral import GpuCollateral
    from sealtrain.attest.nvidia.verify import VerifiedGpus
    from sealtrain.attest.report_data import Binding


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
    here = Situation(policy=policy, root=policy.simulator_root, now=now)
    cpu = vouch_for_guest(own_part(evidence, Attachments(collateral=collateral, crl=crl), here))
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


def own_part(evidence: Evidence, beside: Attachments, at: Situation) -> Part:
    """The processor of sealtrain's own document, which is bound to the document that it shows.

    Args:
        evidence: The document.
        beside: What lies beside it; collateral that it carries counts where there is no other.
        at: Policy, time, conversation.
    """
    shown = evidence.cpu
    if beside.collateral is None:
        beside = replace(beside, collateral=evidence.collateral)
    here = at.with_(shown_compose=sha256_hex(shown.app_compose_bytes))
    verifier = verifier_of(shown.tee)
    part = guest_part(partial(verifier.prove, shown, beside, here), verifier, here)
    if at.policy is None:
        return part
    before: tuple[Group, ...] = (single(partial(check_offered, evidence.platform, at.policy)),)
    if shown.tee != at.policy.cpu.tee:
        before += (other_tee(shown.tee, at.policy.cpu.tee),)
    return replace(part, before=before)


def vouch_for_guest(part: Part) -> VerifiedGuest[Any]:
    """(2) Facts about a guest that shows its deployment document; its rules come in an appraisal.

    Raises:
        ReportDataMismatch: What was signed has no room for report data.
        EvidenceRefused: Platform, signature or document do not hold.
    """

    def verify() -> Vouched:
        return replace(part.verify(), groups=())

    guest: VerifiedGuest[Any] | None = decide((replace(part, verify=verify),))[part.name][0].facts
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
