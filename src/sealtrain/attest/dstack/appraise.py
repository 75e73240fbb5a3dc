"""Appraisal of a dstack guest: its quote, who gave it its keys, and its OS image."""

from __future__ import annotations

from typing import Final, Protocol

from sealtrain.attest.claims import Claim, among, equal
from sealtrain.attest.dstack.policy import AgentPolicy
from sealtrain.attest.dstack.verify import LOG, MeasuredGuest, MeasuredQuote
from sealtrain.attest.errors import MeasurementMismatch
from sealtrain.attest.rules import Rule, about
from sealtrain.attest.tdx import appraise as tdx
from sealtrain.errors import KeyProviderMismatch


class KeyProviderRules(Protocol):
    """Which key provider a policy accepts."""

    @property
    def key_provider(self) -> str:
        """Its id, or ``any``."""


def key_provider(measured: MeasuredGuest, policy: KeyProviderRules, now: int) -> Claim:
    """Who gave the guest its keys.

    Raises:
        KeyProviderMismatch: Another provider.
    """
    return equal(
        "key provider",
        measured.key_provider or measured.key_provider_name,
        None if policy.key_provider == "any" else policy.key_provider,
        source=LOG,
        error=KeyProviderMismatch,
        message="guest got its keys from another key provider",
    )


def _os_image(measured: MeasuredGuest, policy: AgentPolicy, now: int) -> Claim:
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


MEASURED_RULES: Final = (
    Rule(name="key provider", compare=key_provider, measured=True),
    Rule(name="OS image", compare=_os_image, measured=True),
)
"""What the guest measured."""

RULES: Final = (*tdx.RULES, *about(lambda signed: signed.measured, MEASURED_RULES))
"""Its quote, then its measurements."""
