"""Verification of a guest's accelerators, together, for one conversation (spec/evidence-nvidia.md).

1. What the measured guest read from the driver: production, confidential mode on, developer mode
   off. 2. As many devices as the policy names. 3. Each device by itself: chain, signature, firmware
   id. 4. Each device against the conversation and the policy: nonce in all its bytes, family,
   identity, driver, VBIOS, reference values, revocation. 5. The set: no device twice, all alike,
   one mode, wired to each other. 6. NVIDIA's own verdict, as the policy says.

A result exists only where every step held. The comparisons are those of ``device_groups`` and
``set_groups``, walked by ``attest.parts`` as those of NVIDIA's tools' files are.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from types import MappingProxyType

from sealtrain.attest.claims import Claim, Group, claim_unchecked, raising, require_groups, single
from sealtrain.attest.errors import GpuNonceMismatch, GpuSetRefused
from sealtrain.attest.nvidia.appraise import checks_of_device, eat
from sealtrain.attest.nvidia.collateral import GpuCollateral
from sealtrain.attest.nvidia.device import VerifiedDevice, verify_device
from sealtrain.attest.nvidia.nras import check_remote_verdict
from sealtrain.attest.nvidia.ocsp import check_revocation
from sealtrain.attest.nvidia.parse import GpuClaims, GpuDevice, GpuEvidence
from sealtrain.attest.nvidia.policy import GpuMode, NvidiaPolicy
from sealtrain.attest.nvidia.rim import check_reference_values
from sealtrain.attest.nvidia.spdm import NONCE_BYTES
from sealtrain.attest.nvidia.topology import (
    check_distinct,
    count_checks,
    mode_of,
    protection_checks,
    topology_groups,
)
from sealtrain.attest.parts import Part, Vouched, decide
from sealtrain.attest.roots import root_name
from sealtrain.base.digests import sha256_hex
from sealtrain.errors import TrustInvalid

__all__ = [
    "SET",
    "VerifiedDevice",
    "VerifiedGpus",
    "check_nonce",
    "device_groups",
    "device_parts",
    "names_of",
    "no_rules",
    "set_groups",
    "verify_device",
    "verify_gpus",
]

_NVIDIA = "NVIDIA Device Identity CA"
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
    # Before any signature: of too many devices none is verified.
    shown, told = evidence.devices, evidence.claims
    require_groups(_before(shown, told, policy))
    parts = device_parts(shown, told, collateral, policy, nonce=nonce, now=now)
    held = decide(parts)
    devices = {name: held[name][0].facts for name in names_of(shown)}
    return VerifiedGpus(
        devices=MappingProxyType(devices),
        claims=MappingProxyType({SET: held[SET][1]} | {name: held[name][1] for name in devices}),
        mode=mode_of(tuple(devices.values()), told),
        gpu_claims=told,
        digest=evidence.digest,
        simulated=simulator_root is not None,
    )


def device_parts(
    devices: Sequence[GpuDevice],
    claims: GpuClaims | None,
    collateral: GpuCollateral | None,
    policy: NvidiaPolicy | None,
    *,
    nonce: bytes | None,
    now: int,
    asked: bool = True,
) -> tuple[Part, ...]:
    """A part for each device, then one for all of them; each device is verified once.

    Args:
        devices: Reports with their chains.
        claims: Readings of the measured guest from its driver; ``None`` if unknown.
        collateral: Reference values, revocation answers, a verdict.
        policy: What must hold; ``None`` where there are no rules for accelerators.
        nonce: Of every report; ``None`` if unknown.
        now: Verification time, seconds since 1970.
        asked: Whether rules for accelerators are asked for, so that it is refused to have none.
    """
    root = None if policy is None else policy.simulator_root
    verified = [
        cache(partial(verify_device, device, simulator_root=root, now=now)) for device in devices
    ]

    def of_device(verify: Callable[[], VerifiedDevice]) -> Vouched:
        device = verify()
        if policy is not None:
            groups = device_groups(device, collateral, policy, nonce=nonce, now=now)
        else:
            said = single(partial(check_nonce, device, nonce))
            groups = (said, no_rules(1)) if asked else (said,)
        return Vouched(
            root=root_name(device.simulated, _NVIDIA),
            simulated=device.simulated,
            identity=device.report.identity,
            eat=eat(device),
            groups=groups,
            facts=device,
        )

    def of_set() -> Vouched:
        found = [verify() for verify in verified]
        groups: tuple[Group, ...] = (partial(check_distinct, found),)
        if policy is not None:
            groups = set_groups(found, claims, collateral, policy, nonce=nonce, now=now)
        return Vouched(
            root=root_name(root is not None, _NVIDIA),
            simulated=root is not None,
            identity=sha256_hex("".join(device.report.identity for device in found).encode()),
            eat={},
            groups=groups,
        )

    each = zip(names_of(devices), verified, strict=True)
    return (
        *(Part(name=name, verify=partial(of_device, verify)) for name, verify in each),
        Part(name=SET, verify=of_set),
    )


def no_rules(count: int) -> Group:
    """The policy has nothing for these accelerators."""
    return raising(
        GpuSetRefused(
            "policy has no rules for accelerators",
            check="accelerators",
            got=count,
            expected="rules under gpu",
        )
    )


def names_of(devices: Sequence[GpuDevice]) -> tuple[str, ...]:
    """``gpu0``, ``gpu1``, …, ``switch0``, … in the order of the devices."""
    kinds = [device.kind for device in devices]
    return tuple(f"{kind}{kinds[:at].count(kind)}" for at, kind in enumerate(kinds))


def device_groups(
    device: VerifiedDevice,
    collateral: GpuCollateral | None,
    policy: NvidiaPolicy,
    *,
    nonce: bytes | None,
    now: int,
) -> tuple[Group, ...]:
    """Comparison 4 for one device, not made yet.

    Args:
        device: Output of ``verify_device``.
        collateral: Archived reference values and revocation answers.
        policy: What must hold.
        nonce: The 32 bytes that its report must carry; ``None`` only for a file of an unknown
            conversation.
        now: Verification time, seconds since 1970.

    The groups raise leaves of ``EvidenceRefused``.
    """
    root = policy.simulator_rim_root
    return (
        single(partial(check_nonce, device, nonce)),
        *map(single, checks_of_device(device, policy)),
        partial(check_reference_values, device, collateral, policy, simulator_root=root, now=now),
        partial(check_revocation, device, collateral, policy, now=now),
    )


def set_groups(
    devices: Sequence[VerifiedDevice],
    claims: GpuClaims | None,
    collateral: GpuCollateral | None,
    policy: NvidiaPolicy,
    *,
    nonce: bytes | None,
    now: int,
) -> tuple[Group, ...]:
    """Comparisons 1, 2, 5 and 6, not made yet.

    Args:
        devices: Every device that is shown, verified.
        claims: What the measured guest read; ``None`` only for a file that does not hold it.
        collateral: An archived verdict.
        policy: What must hold.
        nonce: As ``device_groups``.
        now: Verification time, seconds since 1970.

    The groups raise leaves of ``EvidenceRefused``.
    """
    asked = b"" if nonce is None else nonce  # no verdict carries none
    return (
        *_before(devices, claims, policy),
        *topology_groups(devices, claims, policy),
        partial(check_remote_verdict, collateral, devices, asked, policy, now),
    )


def _before(
    devices: Sequence[GpuDevice] | Sequence[VerifiedDevice],
    claims: GpuClaims | None,
    policy: NvidiaPolicy,
) -> tuple[Group, ...]:
    kinds = [device.kind for device in devices]
    counts = count_checks(kinds.count("gpu"), kinds.count("switch"), claims, policy)
    return tuple(map(single, (*protection_checks(claims), *counts)))


def check_nonce(device: VerifiedDevice, nonce: bytes | None) -> Claim:
    """The report was made for a conversation; ``None`` if it is not known for which.

    Raises:
        GpuNonceMismatch: It was made for another.
    """
    got = device.report.nonce
    if nonce is None:
        return claim_unchecked("nonce", got.hex(), source="GPU report")
    # Lengths first: a prefix must not pass, and compare_digest is constant in time only then.
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
