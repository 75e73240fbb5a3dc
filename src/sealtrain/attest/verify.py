"""Verification of evidence: from bytes somebody sent to facts a root of trust signed.

1. The evidence is for the platform the policy names; simulated evidence never meets a policy that
   asks for hardware.
2. The quote verifies under the policy's root with collateral valid at ``now`` (``tdx.verify``).
3. The event log replays to the quoted registers and keeps its rules (``dstack.verify``).

What the facts are worth is decided by ``attest.appraise``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sealtrain.attest.dstack.verify import verify_log
from sealtrain.attest.evidence import Collateral, Evidence
from sealtrain.attest.policy import AppraisalPolicy
from sealtrain.attest.roots import SIMULATED_LABEL
from sealtrain.attest.tdx.verify import verify_quote
from sealtrain.errors import CollateralMismatch, PlatformMismatch, SimulatedEvidence

__all__ = ["Verified", "verify"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """Facts about a guest that were signed by hardware, or by a simulator where ``simulated``.

    Hex is lower case. ``report_data`` is 64 bytes and still means nothing until it is compared.
    """

    platform: str
    simulated: bool
    quote_identity: str
    """SHA-256 of the signed part of the quote: the only name that cannot be re-encoded."""
    mrtd: str
    rtmr0: str
    rtmr1: str
    rtmr2: str
    rtmr3: str
    report_data: bytes
    tcb_status: str
    advisories: tuple[str, ...]
    tcb_evaluation_data_number: int
    ppid: str
    fmspc: str
    app_id: str
    compose_hash: str
    app_compose: bytes
    instance_id: str
    key_provider_name: str
    key_provider: str
    os_image_hash: str | None
    verified_at: int


def verify(
    evidence: Evidence,
    policy: AppraisalPolicy,
    now: int,
    *,
    collateral: Collateral | Mapping[str, Any] | None = None,
) -> Verified:
    """Verify evidence at a moment.

    Args:
        evidence: What the guest sent.
        policy: Root, platform and TCB rules.
        now: Verification time, seconds since 1970, from the verifier's own clock.
        collateral: The verifier's own collateral. ``None`` uses what the evidence carries, right
            for archived evidence and wrong for live decisions, where a host could choose it.

    Raises:
        SimulatedEvidence: Simulated evidence under a policy that asks for hardware.
        PlatformMismatch: Evidence of another platform.
        EvidenceRefused: Any other leaf of that branch; see ``verify_quote`` and ``verify_log``.
    """
    if evidence.platform != policy.platform:
        error = SimulatedEvidence if evidence.platform == "simulator" else PlatformMismatch
        raise error(
            "evidence is of another platform than the policy asks for",
            check="platform",
            got=SIMULATED_LABEL if evidence.platform == "simulator" else evidence.platform,
            expected=policy.platform,
        )
    if collateral is None:
        collateral = evidence.collateral
    elif not isinstance(collateral, Collateral):
        collateral = Collateral.from_dict(dict(collateral))
    if collateral is None:
        raise CollateralMismatch(
            "no collateral to verify the quote with",
            check="collateral",
            hint="give the verifier collateral of the platform, or collect evidence with it",
        )
    signed = verify_quote(evidence.quote_bytes, collateral, policy, now)
    quote = signed.quote
    measured = verify_log(
        evidence.event_log, quote.rtmr, quote.mr_config_id, evidence.app_compose_bytes
    )
    return Verified(
        platform=evidence.platform,
        simulated=signed.simulated,
        quote_identity=quote.identity,
        mrtd=quote.mrtd,
        rtmr0=quote.rtmr[0],
        rtmr1=quote.rtmr[1],
        rtmr2=quote.rtmr[2],
        rtmr3=quote.rtmr[3],
        report_data=quote.report_data,
        tcb_status=signed.tcb_status,
        advisories=signed.advisories,
        tcb_evaluation_data_number=signed.tcb_evaluation_data_number,
        ppid=signed.ppid,
        fmspc=signed.fmspc,
        app_id=measured.app_id,
        compose_hash=measured.compose_hash,
        app_compose=evidence.app_compose_bytes,
        instance_id=measured.instance_id,
        key_provider_name=measured.key_provider_name,
        key_provider=measured.key_provider,
        os_image_hash=measured.os_image_hash,
        verified_at=now,
    )
