"""Verification of evidence: from bytes somebody sent to facts a root of trust signed.

1. The evidence is for the platform and the TEE the policy names; simulated evidence never meets a
   policy that asks for hardware.
2. What the processor signed verifies under the policy's root at ``now`` (``<tee>.verify``).
3. Accelerators are shown where the policy asks for them, and only then; their reports verify and
   were made for this conversation (``nvidia.verify``).

What the facts are worth is decided by ``attest.appraise``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sealtrain.attest.dstack.policy import DstackPolicy
from sealtrain.attest.evidence import (
    Collateral,
    DstackEvidence,
    Evidence,
    NitroEvidence,
    SnpEvidence,
    TdxEvidence,
)
from sealtrain.attest.nitro.policy import NitroPolicy
from sealtrain.attest.nvidia.policy import NvidiaPolicy
from sealtrain.attest.policy import AppraisalPolicy
from sealtrain.attest.roots import SIMULATED_LABEL
from sealtrain.attest.snp.policy import SnpPolicy
from sealtrain.attest.tdx.policy import TdxPolicy
from sealtrain.errors import (
    CollateralMismatch,
    GpuSetRefused,
    PlatformMismatch,
    SimulatedEvidence,
)

if TYPE_CHECKING:
    from sealtrain.attest.dstack.verify import VerifiedDstack
    from sealtrain.attest.nitro.verify import VerifiedNitro
    from sealtrain.attest.nvidia.collateral import GpuCollateral
    from sealtrain.attest.nvidia.verify import VerifiedGpus
    from sealtrain.attest.report_data import Binding
    from sealtrain.attest.snp.verify import VerifiedSnp
    from sealtrain.attest.tdx.verify import VerifiedTdx

    VerifiedCpu = VerifiedDstack | VerifiedTdx | VerifiedNitro | VerifiedSnp

__all__ = ["Verified", "verify"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """Facts about a guest that were signed by hardware, or by a simulator where ``simulated``.

    Attributes:
        platform: What the evidence was offered as.
        cpu: What the processor signed.
        gpus: What accelerators signed; ``None`` where the guest shows none or nobody looks.
        gpu_digest: What report data must commit to besides the conversation.
        verified_at: Seconds since 1970.
    """

    platform: str
    cpu: VerifiedCpu
    gpus: VerifiedGpus | None
    gpu_digest: bytes
    verified_at: int

    @property
    def simulated(self) -> bool:
        """It proves nothing about hardware."""
        return self.cpu.simulated

    @property
    def quote_identity(self) -> str:
        """SHA-256 of what the processor signed: the only name that cannot be re-encoded."""
        return self.cpu.quote_identity

    @property
    def report_data(self) -> bytes:
        """64 bytes that mean nothing until they are compared."""
        return self.cpu.report_data

    @property
    def app_id(self) -> str:
        """40 hex digits."""
        return self.cpu.app_id

    @property
    def compose_hash(self) -> str:
        """64 hex digits: SHA-256 of the measured deployment document."""
        return self.cpu.compose_hash

    @property
    def app_compose(self) -> bytes:
        """The measured deployment document."""
        return self.cpu.app_compose

    @property
    def key_provider(self) -> str:
        """Id of who gave the guest its keys, hex; empty where the platform has no such thing."""
        from sealtrain.attest.dstack.verify import VerifiedDstack

        return self.cpu.measured.key_provider if isinstance(self.cpu, VerifiedDstack) else ""

    @property
    def instance_id(self) -> str:
        """Which guest, hex; may be empty where the platform has no such thing."""
        return self.cpu.instance_id


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
    if evidence.platform != policy.platform:
        error = SimulatedEvidence if evidence.platform == "simulator" else PlatformMismatch
        raise error(
            "evidence is of another platform than the policy asks for",
            check="platform",
            got=SIMULATED_LABEL if evidence.platform == "simulator" else evidence.platform,
            expected=policy.platform,
        )
    carried = evidence.collateral if collateral is None else collateral
    cpu = _cpu(evidence, policy, now, carried, crl)
    if gpu_collateral is None and evidence.gpu_collateral is not None:
        gpu_collateral = evidence.gpu_collateral.without_verdict()
    return Verified(
        platform=evidence.platform,
        cpu=cpu,
        gpus=_gpus(evidence, policy, now, binding, gpu_collateral),
        gpu_digest=evidence.gpu_digest,
        verified_at=now,
    )


def _cpu(
    evidence: Evidence,
    policy: AppraisalPolicy,
    now: int,
    collateral: Collateral | None,
    crl: bytes | None,
) -> VerifiedCpu:
    # Each platform's verifier is loaded where it is needed: none is light.
    root = policy.simulator_root
    match evidence.cpu, policy.cpu:
        case NitroEvidence() as enclave, NitroPolicy() as enclave_rules:
            from sealtrain.attest.nitro.verify import verify_nitro

            return verify_nitro(
                enclave.document_bytes,
                enclave.app_compose_bytes,
                enclave_rules,
                simulator_root=root,
                now=now,
            )
        case SnpEvidence() as snp, SnpPolicy():
            from sealtrain.attest.snp.verify import verify_snp

            return verify_snp(
                snp.report_bytes,
                snp.certificates_der,
                snp.app_compose_bytes,
                simulator_root=root,
                now=now,
                crl=snp.crl_der if crl is None else crl,
            )
        case TdxEvidence() as tdx, TdxPolicy() as tdx_rules:
            from sealtrain.attest.tdx.verify import verify_tdx

            return verify_tdx(
                tdx.quote_bytes,
                tdx.app_compose_bytes,
                _needed(collateral),
                tdx_rules,
                simulator_root=root,
                now=now,
            )
        case DstackEvidence() as dstack, DstackPolicy() as dstack_rules:
            from sealtrain.attest.dstack.verify import verify_dstack

            return verify_dstack(
                dstack.quote_bytes,
                dstack.event_log,
                dstack.app_compose_bytes,
                _needed(collateral),
                dstack_rules,
                simulator_root=root,
                now=now,
            )
    raise PlatformMismatch(
        "evidence is of another TEE than the policy asks for",
        check="platform",
        got=evidence.cpu.tee,
        expected=policy.cpu.tee,
    )


def _needed(collateral: Collateral | None) -> Collateral:
    if collateral is None:
        raise CollateralMismatch(
            "no collateral to verify the quote with",
            check="collateral",
            hint="give the verifier collateral of the platform, or collect evidence with it",
        )
    return collateral


def _gpus(
    evidence: Evidence,
    policy: AppraisalPolicy,
    now: int,
    binding: Binding,
    collateral: GpuCollateral | None,
) -> VerifiedGpus | None:
    if policy.gpu == "none" and evidence.gpu is not None:
        raise GpuSetRefused(
            "guest shows accelerators that this policy does not provide for",
            check="accelerators",
            got=len(evidence.gpu.devices),
            expected="none",
            hint="write the rules for them into the policy, or gpu: any",
        )
    if not isinstance(policy.gpu, NvidiaPolicy):
        return None
    if evidence.gpu is None:
        raise GpuSetRefused(
            "guest shows no accelerator",
            check="accelerators",
            got=0,
            expected=policy.gpu.gpu_count,
            hint="collect evidence where the accelerators are, with their driver running",
        )
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
