"""Appraisal of a dstack guest: its quote, who gave it its keys, and its OS image."""

from __future__ import annotations

from functools import partial

from sealtrain.attest.claims import Check, Claim, among, equal, require_checks
from sealtrain.attest.dstack.policy import DstackPolicy
from sealtrain.attest.dstack.verify import MeasuredGuest, VerifiedDstack
from sealtrain.attest.tdx import appraise as tdx
from sealtrain.errors import KeyProviderMismatch, MeasurementMismatch

__all__ = ["checks_of", "claims_of", "eat"]

_LOG = "event log"


def claims_of(verified: VerifiedDstack, policy: DstackPolicy, now: int) -> tuple[Claim, ...]:
    """Compare a verified dstack guest with reference values.

    Args:
        verified: Output of ``dstack.verify.verify_dstack`` under the same policy.
        policy: Reference values.
        now: Verification time, seconds since 1970.

    Raises:
        EvidenceRefused: A leaf of that branch, for the first claim that does not hold.
    """
    return (
        *tdx.claims_of(verified, policy, now),
        *require_checks(checks_of(verified.measured, policy)),
    )


def checks_of(measured: MeasuredGuest, policy: DstackPolicy) -> tuple[Check, ...]:
    """The comparisons of what the guest measured, not made yet; its quote's are ``tdx``'s."""
    return (
        partial(
            equal,
            "key provider",
            measured.key_provider or measured.key_provider_name,
            None if policy.key_provider == "any" else policy.key_provider,
            source=_LOG,
            error=KeyProviderMismatch,
            message="guest got its keys from another key provider",
        ),
        partial(
            among,
            "OS image",
            measured.os_image_hash or "not measured",
            policy.os_image_hash,
            source=_LOG,
            error=MeasurementMismatch,
            message="guest runs another OS image",
        ),
    )


def eat(verified: VerifiedDstack) -> dict[str, str]:
    """Claims by their RFC 9711 names."""
    image = verified.measured.os_image_hash
    return tdx.eat(verified) | ({} if image is None else {"swversion": image})
