"""Appraisal: compare verified facts with reference values, one claim after the other.

1. platform and simulation  2. TCB status  3. advisories  4. age of the collateral  5. machine
6. guest image  7. key provider  8. OS image  9. compose hash  10. app id  11. report data

The first breach raises; a verdict therefore exists only when every claim held.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Any, Literal

from sealtrain.attest.policy import AppraisalPolicy
from sealtrain.attest.report_data import REPORT_DATA_BYTES
from sealtrain.attest.roots import SIMULATED_LABEL
from sealtrain.attest.verify import Verified
from sealtrain.base.clock import to_rfc3339
from sealtrain.errors import (
    AppIdMismatch,
    ComposeHashMismatch,
    EvidenceRefused,
    KeyProviderMismatch,
    MeasurementMismatch,
    PlatformMismatch,
    ReportDataMismatch,
    SimulatedEvidence,
    TcbStatusRefused,
)

__all__ = ["Claim", "Verdict", "appraise"]

Outcome = Literal["equal", "allowed", "any"]
"""``equal`` to one expected value, among the ``allowed`` ones, or the policy said ``any``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One comparison that held."""

    name: str
    got: str
    expected: str
    outcome: Outcome

    def to_dict(self) -> dict[str, str]:
        """JSON form."""
        return {
            "name": self.name,
            "got": self.got,
            "expected": self.expected,
            "outcome": self.outcome,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Evidence that held under a policy. ``simulated`` means: it proves nothing about hardware."""

    claims: tuple[Claim, ...]
    simulated: bool
    platform: str
    quote_identity: str
    verified_at: int

    @property
    def label(self) -> str:
        """One line for people."""
        return SIMULATED_LABEL if self.simulated else f"ATTESTED — {self.platform}"

    def to_dict(self) -> dict[str, Any]:
        """JSON form for receipts and manifests."""
        return {
            "label": self.label,
            "simulated": self.simulated,
            "platform": self.platform,
            "quote_identity": self.quote_identity,
            "verified_at": to_rfc3339(self.verified_at),
            "claims": [claim.to_dict() for claim in self.claims],
        }


def appraise(
    verified: Verified,
    policy: AppraisalPolicy,
    *,
    report_data: bytes,
    compose_hash: str | None,
    app_id: str | None,
) -> Verdict:
    """Compare verified facts with what is expected of this guest in this conversation.

    Args:
        verified: Output of ``attest.verify.verify`` under the same policy.
        policy: Reference values.
        report_data: The 64 bytes this conversation must be bound to.
        compose_hash: Expected deployment document, ``None`` for any.
        app_id: Expected app, ``None`` for any.

    Raises:
        EvidenceRefused: A leaf of that branch, for the first claim that does not hold.
    """
    claims = (
        _platform(verified, policy),
        _among(
            "TCB status",
            verified.tcb_status,
            policy.tcb_status,
            TcbStatusRefused,
            "platform's TCB status is not acceptable",
        ),
        _advisories(verified, policy),
        _collateral_floor(verified, policy),
        _among(
            "machine",
            verified.ppid,
            policy.platform_ids,
            PlatformMismatch,
            "guest runs on a machine that the policy does not list",
        ),
        _measurements(verified, policy),
        _single(
            "key provider",
            verified.key_provider or verified.key_provider_name,
            None if policy.key_provider == "any" else policy.key_provider,
            KeyProviderMismatch,
            "guest got its keys from another key provider",
        ),
        _among(
            "OS image",
            verified.os_image_hash or "not measured",
            policy.os_image_hash,
            MeasurementMismatch,
            "guest runs another OS image",
        ),
        _single(
            "compose hash",
            verified.compose_hash,
            compose_hash,
            ComposeHashMismatch,
            "guest runs another deployment document",
        ),
        _single("app id", verified.app_id, app_id, AppIdMismatch, "guest is another app"),
        _report_data(verified, report_data),
    )
    return Verdict(
        claims=claims,
        simulated=verified.simulated,
        platform=verified.platform,
        quote_identity=verified.quote_identity,
        verified_at=verified.verified_at,
    )


def _platform(verified: Verified, policy: AppraisalPolicy) -> Claim:
    if verified.simulated and policy.simulator_root is None:
        raise SimulatedEvidence(
            "evidence is simulated; this policy asks for hardware",
            check="platform",
            got=SIMULATED_LABEL,
            expected=policy.platform,
        )
    if verified.simulated != (policy.simulator_root is not None):
        raise PlatformMismatch(
            "evidence was verified under another policy",
            check="platform",
            got="hardware",
            expected="simulator",
        )
    return _single(
        "platform",
        verified.platform,
        policy.platform,
        PlatformMismatch,
        "guest runs on another platform",
    )


def _advisories(verified: Verified, policy: AppraisalPolicy) -> Claim:
    got = ", ".join(verified.advisories) or "none"
    if policy.advisories == "any":
        return Claim(name="advisories", got=got, expected="any", outcome="any")
    allowed = () if policy.advisories == "none" else policy.advisories
    if not set(verified.advisories) <= set(allowed):
        raise TcbStatusRefused(
            "platform has open advisories that the policy does not accept",
            check="advisories",
            got=got,
            expected=", ".join(allowed) or "none",
        )
    return Claim(
        name="advisories", got=got, expected=", ".join(allowed) or "none", outcome="allowed"
    )


def _collateral_floor(verified: Verified, policy: AppraisalPolicy) -> Claim:
    got, floor = verified.tcb_evaluation_data_number, policy.min_tcb_evaluation_data_number
    if got < floor:
        raise TcbStatusRefused(
            "collateral is older than the policy's floor",
            check="collateral floor",
            got=got,
            expected=f"at least {floor}",
        )
    return Claim(
        name="collateral floor", got=str(got), expected=f"at least {floor}", outcome="allowed"
    )


def _measurements(verified: Verified, policy: AppraisalPolicy) -> Claim:
    got = f"mrtd {verified.mrtd} rtmr0 {verified.rtmr0} rtmr1 {verified.rtmr1} " + (
        f"rtmr2 {verified.rtmr2}"
    )
    if policy.measurements == "any":
        return Claim(name="guest image", got=got, expected="any", outcome="any")
    found = (verified.mrtd, verified.rtmr0, verified.rtmr1, verified.rtmr2)
    for one in policy.measurements:
        if found == (one.mrtd, one.rtmr0, one.rtmr1, one.rtmr2):
            return Claim(name="guest image", got=got, expected=got, outcome="equal")
    raise MeasurementMismatch(
        "guest booted another image or machine shape than any the policy lists",
        check="guest image",
        got=got,
        expected=f"one of {len(policy.measurements)} reference values",
        hint="recompute reference values for this image, CPU count, memory and GPU count",
    )


def _report_data(verified: Verified, expected: bytes) -> Claim:
    # Lengths first: a prefix must not pass, and compare_digest is constant in time only then.
    if len(expected) != REPORT_DATA_BYTES or not hmac.compare_digest(
        verified.report_data, expected
    ):
        raise ReportDataMismatch(
            "quote does not commit to this conversation",
            check="report data",
            got=verified.report_data.hex(),
            expected=expected.hex(),
            hint="the quote was made for another challenge, key, run or purpose",
        )
    return Claim(
        name="report data", got=verified.report_data.hex(), expected=expected.hex(), outcome="equal"
    )


def _single(
    name: str, got: str, expected: str | None, error: type[EvidenceRefused], message: str
) -> Claim:
    if expected is None:
        return Claim(name=name, got=got, expected="any", outcome="any")
    if got != expected:
        raise error(message, check=name, got=got, expected=expected)
    return Claim(name=name, got=got, expected=expected, outcome="equal")


def _among(
    name: str,
    got: str,
    allowed: Literal["any"] | tuple[str, ...],
    error: type[EvidenceRefused],
    message: str,
) -> Claim:
    if allowed == "any":
        return Claim(name=name, got=got, expected="any", outcome="any")
    if got not in allowed:
        raise error(message, check=name, got=got, expected=", ".join(allowed[:8]))
    return Claim(name=name, got=got, expected=", ".join(allowed[:8]), outcome="allowed")
