"""Appraisal of a dstack guest: its quote, who gave it its keys, and its OS image."""

from __future__ import annotations

from functools import partial

from sealtrain.attest.claims import Check, Claim, among, equal
from sealtrain.attest.dstack.policy import AgentPolicy
from sealtrain.attest.dstack.verify import LOG, MeasuredGuest, MeasuredQuote
from sealtrain.attest.tdx import appraise as tdx
from sealtrain.errors import KeyProviderMismatch, MeasurementMismatch

__all__ = ["checks_of", "eat", "measured_checks"]


def checks_of(signed: MeasuredQuote, policy: AgentPolicy, now: int) -> tuple[Check, ...]:
    """What a dstack guest is compared with, not compared yet: its quote, then its measurements."""
    measured = signed.measured
    quoted = tdx.checks_of(signed, policy, now, logged=measured.firmware_logged)
    return (*quoted, *measured_checks(measured, policy))


def measured_checks(measured: MeasuredGuest, policy: AgentPolicy) -> tuple[Check, ...]:
    """The comparisons of what the guest measured, not made yet."""
    return (
        partial(
            equal,
            "key provider",
            measured.key_provider or measured.key_provider_name,
            None if policy.key_provider == "any" else policy.key_provider,
            source=LOG,
            error=KeyProviderMismatch,
            message="guest got its keys from another key provider",
        ),
        partial(_os_image, measured, policy),
    )


def _os_image(measured: MeasuredGuest, policy: AgentPolicy) -> Claim:
    """The image by the key provider's word, unless the registers name it."""
    got = measured.os_image_hash or "not measured"
    if policy.os_image_hash == "measured":
        named = "named by its registers"
        return Claim(name="OS image", got=got, expected=named, source=LOG, outcome="allowed")
    return among(
        "OS image",
        got,
        policy.os_image_hash,
        source=LOG,
        error=MeasurementMismatch,
        message="guest runs another OS image",
    )


def eat(signed: MeasuredQuote) -> dict[str, str]:
    """Claims by their RFC 9711 names."""
    image = signed.measured.os_image_hash
    return tdx.eat(signed) | ({} if image is None else {"swversion": image})
