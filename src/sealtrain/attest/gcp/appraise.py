"""Appraisal of a dstack guest on Google's TDX machines: the quote's lines, then the vTPM's.

1. The vTPM's qualifying data are SHA-256 of the TDX quote.
2. PCR 14, SHA-256, replays the same run-time events as RTMR3, all of them.
3. PCR 0 and PCR 2 are of a listed boot; project, zone and machine are listed.

1 and 2 tie the vTPM's quote to this guest and are never left out. They do not tie it to Intel's
processor: a vTPM signs whatever its guest asks for. So it adds to the quote, and replaces nothing.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from sealtrain.attest.claims import Claim, among, claim_unchecked
from sealtrain.attest.dstack import appraise as dstack
from sealtrain.attest.dstack.verify import LOG, MeasuredQuote, replay_register
from sealtrain.attest.errors import EventLogMismatch, MeasurementMismatch, PlatformMismatch
from sealtrain.attest.gcp.policy import GcpPolicy
from sealtrain.attest.rules import Rule, about
from sealtrain.attest.statement import LogEntry
from sealtrain.attest.tpm.chain import GoogleMachine
from sealtrain.attest.tpm.form import VerifiedBoot, VerifiedTpm, check_qualifying_data
from sealtrain.attest.tpm.quote import QUOTE

EVENT_PCR = 14
_FIRMWARE_PCR, _IMAGE_PCR = 0, 2
_MACHINE = "AK certificate"


@dataclass(frozen=True, slots=True, kw_only=True)
class GcpQuote(MeasuredQuote):
    """A dstack guest's quote, and the vTPM's quote of it."""

    tpm: VerifiedTpm


def check_quoted(tpm: VerifiedBoot, raw: bytes) -> Claim:
    """The vTPM signed for this quote or report of the processor.

    Raises:
        ReportDataMismatch: For another.
    """
    expected = hashlib.sha256(raw).digest()
    check_qualifying_data(tpm.quote, expected)
    return Claim(
        name="qualifying data",
        got=expected.hex(),
        expected=expected.hex(),
        source=QUOTE,
        outcome="equal",
    )


def check_events(tpm: VerifiedTpm, log: tuple[LogEntry, ...]) -> Claim:
    """PCR 14 replays the run-time events.

    Raises:
        EventLogMismatch: It holds something else, or was not quoted.
    """
    quoted, found = tpm.registers.get(EVENT_PCR, b""), replay_register(log, tpm.quote.bank)
    if not hmac.compare_digest(quoted, found):
        raise EventLogMismatch(
            f"event log does not replay to PCR {EVENT_PCR} of the vTPM",
            check=LOG,
            got=found.hex(),
            expected=quoted.hex() or "a quoted register",
            hint="an event was changed, dropped, added or moved after it was measured",
        )
    said = f"replays to PCR {EVENT_PCR}"
    return Claim(name="vTPM events", got=said, expected=said, source=QUOTE, outcome="equal")


class PlaceRules(Protocol):
    """Which machines of Google Cloud a policy accepts."""

    @property
    def projects(self) -> Literal["any"] | tuple[str, ...]:
        """Projects by name."""

    @property
    def zones(self) -> Literal["any"] | tuple[str, ...]:
        """Zones by name."""

    @property
    def instances(self) -> Literal["any"] | tuple[str, ...]:
        """Machines by number."""


def _place(name: str, got: Callable[[GoogleMachine], str], listed: str) -> Rule:
    def compare(machine: GoogleMachine, policy: PlaceRules, now: int) -> Claim:
        return among(
            name,
            got(machine),
            getattr(policy, listed),
            source=_MACHINE,
            error=PlatformMismatch,
            message=f"guest runs in a {name} that the policy does not list",
        )

    return Rule(name=name, compare=compare)


def _check_revocation(machine: GoogleMachine, policy: PlaceRules, now: int) -> Claim:
    return claim_unchecked("vTPM revocation", "not looked at", source=_MACHINE)


PLACE_RULES: Final = (
    _place("project", lambda machine: machine.project, "projects"),
    _place("zone", lambda machine: machine.zone, "zones"),
    _place("instance", lambda machine: str(machine.instance_id), "instances"),
    Rule(name="vTPM revocation", compare=_check_revocation),
)
"""Project, zone and machine of a vTPM's key.

Whether Google revoked an issuer of that key is not looked at, and each verdict says so.
"""


def _boot(tpm: VerifiedTpm, policy: GcpPolicy, now: int) -> Claim:
    found = tuple(tpm.registers.get(index, b"").hex() for index in (_FIRMWARE_PCR, _IMAGE_PCR))
    got = f"pcr0 {found[0] or 'not quoted'} pcr2 {found[1] or 'not quoted'}"
    if policy.boots == "any":
        return claim_unchecked("vTPM boot", got, source=QUOTE)
    if tpm.quote.bank == "sha256" and any(found == (boot.pcr0, boot.pcr2) for boot in policy.boots):
        return Claim(name="vTPM boot", got=got, expected=got, source=QUOTE, outcome="equal")
    raise MeasurementMismatch(
        "machine booted another firmware or image than any the policy lists",
        check="vTPM boot",
        got=got,
        expected=f"one of {len(policy.boots)} boots",
    )


RULES: Final = (
    *dstack.RULES,
    *about(
        lambda signed: signed.tpm,
        (
            Rule(name="vTPM boot", compare=_boot),
            *about(lambda tpm: tpm.machine, PLACE_RULES),
        ),
    ),
)
"""The quote, then the vTPM."""
