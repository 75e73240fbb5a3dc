"""Verification of a guest's accelerators, together, for one conversation (spec/evidence.md).

1. What the measured guest read from the driver: production, confidential mode on, developer mode
   off. 2. As many devices as the policy names. 3. Each device by itself: chain, signature, firmware
   id, and the nonce of this conversation in all its bytes. 4. The set: no device twice, all alike,
   one mode, wired to the switches that are shown. 5. Each device against the policy: family,
   identity, driver, VBIOS. 6. Reference values, revocation and NVIDIA's own verdict, as the policy
   says.

A result exists only where every step held.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sealtrain.attest.claims import Claim
from sealtrain.attest.nvidia.appraise import claims_of_device
from sealtrain.attest.nvidia.collateral import GpuCollateral
from sealtrain.attest.nvidia.device import VerifiedDevice, verify_device
from sealtrain.attest.nvidia.nras import check_remote_verdict
from sealtrain.attest.nvidia.ocsp import check_revocation
from sealtrain.attest.nvidia.parse import GpuClaims, GpuEvidence
from sealtrain.attest.nvidia.policy import GpuMode, NvidiaPolicy
from sealtrain.attest.nvidia.rim import check_reference_values
from sealtrain.attest.nvidia.spdm import NONCE_BYTES
from sealtrain.attest.nvidia.topology import (
    check_counts,
    check_driver,
    check_mode,
    check_protection,
    check_set,
)
from sealtrain.errors import GpuNonceMismatch, TrustInvalid

__all__ = ["SET", "VerifiedDevice", "VerifiedGpus", "verify_device", "verify_gpus"]

SET = "gpus"
"""Name under which ``VerifiedGpus.claims`` keeps what holds for all devices together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedGpus:
    """Accelerators for which every check held.

    Attributes:
        devices: By name (``gpu0``, ``gpu1``, …, ``switch0``, …) in the order of the evidence.
        mode: How the GPUs protect what they say to each other.
        gpu_claims: What the measured guest read from the driver.
        claims: By device name, and under ``SET`` for the devices together.
        digest: SHA-256 of the evidence, 32 bytes; report data commits to it.
        simulated: Whether a simulator made them.
    """

    devices: Mapping[str, VerifiedDevice]
    mode: GpuMode
    gpu_claims: GpuClaims
    claims: Mapping[str, tuple[Claim, ...]]
    digest: bytes
    simulated: bool


def verify_gpus(
    evidence: GpuEvidence,
    policy: NvidiaPolicy,
    collateral: GpuCollateral | None,
    *,
    nonce: bytes,
    simulator_root: bytes | None,
    now: int,
) -> VerifiedGpus:
    """Verify every accelerator of a guest at a moment.

    Args:
        evidence: Reports, chains and the guest's claims. That the CPU's quote commits to its
            digest is the caller's to check; without that its claims are worth nothing.
        policy: What must hold.
        collateral: Archived reference values, revocation answers and verdicts.
        nonce: The 32 bytes this conversation must be bound to.
        simulator_root: Trusted software root (DER), ``None`` for NVIDIA's; that of ``policy``.
        now: Verification time, seconds since 1970.

    Raises:
        TrustInvalid: ``simulator_root`` is not the policy's.
        GpuModeRefused: Confidential mode is off, or sources disagree about the mode.
        GpuSetRefused: Devices are missing, shown twice, or do not belong together.
        GpuNonceMismatch: A report was made for another conversation.
        GpuReportInvalid: A report does not parse or its signature does not hold.
        EvidenceRefused: Another leaf of that branch: chain, root, firmware, reference values,
            revocation, remote verdict.
    """
    if simulator_root != policy.simulator_root:
        raise TrustInvalid(
            "verifier and policy trust different roots for accelerators", check="GPU root"
        )
    kinds = [device.kind for device in evidence.devices]
    together = [
        *check_protection(evidence.claims),
        *check_counts(kinds.count("gpu"), kinds.count("switch"), evidence.claims, policy),
    ]
    verified: dict[str, VerifiedDevice] = {}
    claims: dict[str, tuple[Claim, ...]] = {}
    for at, device in enumerate(evidence.devices):
        name = f"{device.kind}{kinds[:at].count(device.kind)}"
        verified[name] = verify_device(device, simulator_root=simulator_root, now=now)
        claims[name] = (_check_nonce(verified[name], nonce),)
    devices = tuple(verified.values())
    together += check_set(devices)
    together.append(check_driver([one for one in devices if one.kind == "gpu"], evidence.claims))
    mode, accepted = check_mode(devices, evidence.claims, policy)
    together += accepted
    for name, one in verified.items():
        claims[name] += (
            *claims_of_device(one, policy),
            *check_reference_values(
                one, collateral, policy, simulator_root=policy.simulator_rim_root, now=now
            ),
            *check_revocation(one, collateral, policy, now=now),
        )
    together += check_remote_verdict(collateral, devices, nonce, policy, now)
    return VerifiedGpus(
        devices=MappingProxyType(verified),
        mode=mode,
        gpu_claims=evidence.claims,
        claims=MappingProxyType({SET: tuple(together), **claims}),
        digest=evidence.digest,
        simulated=simulator_root is not None,
    )


def _check_nonce(device: VerifiedDevice, nonce: bytes) -> Claim:
    # Lengths first: a prefix must not pass, and compare_digest is constant in time only then.
    got = device.report.nonce
    if len(nonce) != NONCE_BYTES or not hmac.compare_digest(got, nonce):
        raise GpuNonceMismatch(
            "accelerator's report was made for another conversation",
            check="GPU nonce",
            got=got.hex(),
            expected=nonce.hex() if len(nonce) == NONCE_BYTES else f"{NONCE_BYTES} bytes",
            hint="the report was made for another challenge, key, run or purpose",
        )
    return Claim(
        name="nonce", got=got.hex(), expected=nonce.hex(), source="GPU report", outcome="equal"
    )
