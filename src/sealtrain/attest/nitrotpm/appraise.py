"""Appraisal of a dstack guest on EC2 with a NitroTPM.

1. PCR 14, SHA-384, replays the run-time events, all of them; it is never left out.
2. PCR 4, 7 and 12 are of a listed boot; a register that the document does not hold is in no list.
3. PCR 8 was extended once, with the configuration id of the measured document, app and key
   provider. Images of dstack that are older leave it zero; the policy says whether that will do.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Final

from sealtrain.attest.claims import Claim, among, claim_unchecked
from sealtrain.attest.dstack.appraise import key_provider
from sealtrain.attest.dstack.verify import LOG, MeasuredGuest, config_ids, replay_register
from sealtrain.attest.errors import EventLogMismatch, MeasurementMismatch, PlatformMismatch
from sealtrain.attest.nitro.parse import PCR_BYTES
from sealtrain.attest.nitro.verify import VerifiedDocument, check_age, extend
from sealtrain.attest.nitrotpm.policy import NitroTpmPolicy
from sealtrain.attest.rules import Rule, about
from sealtrain.attest.statement import LogEntry

DOCUMENT = "NitroTPM document"
EVENT_PCR = 14
_BOOT_PCRS = (4, 7, 12)
_CONFIG_PCR = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class NitroTpmGuest:
    """A verified document, and what the guest measured."""

    document: VerifiedDocument
    measured: MeasuredGuest

    @property
    def simulated(self) -> bool:
        """A simulator signed it."""
        return self.document.simulated

    @property
    def quote_identity(self) -> str:
        """SHA-256 of what the signature covers, hex."""
        return self.document.quote_identity


def check_events(document: VerifiedDocument, log: tuple[LogEntry, ...]) -> Claim:
    """PCR 14 replays the run-time events, and the log holds no others.

    Raises:
        EventLogMismatch: It holds something else, or the document does not hold it.
    """
    quoted, found = document.document.pcr(EVENT_PCR), replay_register(log, "sha384").hex()
    if any(entry.imr != 3 for entry in log) or not hmac.compare_digest(quoted, found):
        raise EventLogMismatch(
            f"event log does not replay to PCR {EVENT_PCR} of the NitroTPM",
            check=LOG,
            got=found,
            expected=quoted or "a register of the document",
            hint="an event was changed, dropped, added or moved after it was measured",
        )
    said = f"replays to PCR {EVENT_PCR}"
    return Claim(name=LOG, got=said, expected=said, source=DOCUMENT, outcome="equal")


def eat(guest: NitroTpmGuest) -> dict[str, str]:
    """Claims by their RFC 9711 names; memory is not said to be encrypted."""
    return {"ueid": guest.document.module_id, "hwmodel": "AWS NitroTPM"}


def _age(guest: NitroTpmGuest, policy: NitroTpmPolicy, now: int) -> Claim:
    verified = guest.document
    return Claim(
        name="document age",
        got=f"{check_age(verified.timestamp_ms, policy.max_age_s, now)} s",
        expected=f"at most {policy.max_age_s} s",
        source=DOCUMENT,
        outcome="allowed",
    )


def _config(guest: NitroTpmGuest, policy: NitroTpmPolicy, now: int) -> Claim:
    got = guest.document.document.pcrs.get(_CONFIG_PCR, bytes(PCR_BYTES))
    if policy.config_id == "any" and not any(got):
        return claim_unchecked("configuration id", got.hex(), source=DOCUMENT)
    ids = (found.ljust(PCR_BYTES, b"\0") for found in config_ids(guest.measured))
    if not any(got == extend(bytes(PCR_BYTES), found) for found in ids):
        raise EventLogMismatch(
            "PCR 8 of the NitroTPM commits to other values than the event log",
            check="configuration id",
            got=got.hex(),
            expected="the measured document, app and key provider",
        )
    return Claim(
        name="configuration id",
        got=got.hex(),
        expected=got.hex(),
        source=DOCUMENT,
        outcome="equal",
    )


def _boot(guest: NitroTpmGuest, policy: NitroTpmPolicy, now: int) -> Claim:
    found = tuple(guest.document.document.pcr(index) for index in _BOOT_PCRS)
    got = " ".join(
        f"pcr{index} {value or 'missing'}" for index, value in zip(_BOOT_PCRS, found, strict=True)
    )
    if any(found == (boot.pcr4, boot.pcr7, boot.pcr12) for boot in policy.boots):
        return Claim(name="boot", got=got, expected=got, source=DOCUMENT, outcome="equal")
    raise MeasurementMismatch(
        "instance booted another image than any the policy lists",
        check="boot",
        got=got,
        expected=f"one of {len(policy.boots)} boots",
    )


def _instance(guest: NitroTpmGuest, policy: NitroTpmPolicy, now: int) -> Claim:
    return among(
        "instance",
        guest.document.parent_id,
        policy.instances,
        source=DOCUMENT,
        error=PlatformMismatch,
        message="guest runs on an instance that the policy does not list",
    )


RULES: Final = (
    Rule(name="document age", compare=_age, measured=True),
    Rule(name="boot", compare=_boot, measured=True),
    Rule(name="configuration id", compare=_config, measured=True),
    *about(
        lambda guest: guest.measured,
        (Rule(name="key provider", compare=key_provider, measured=True),),
    ),
    Rule(name="instance", compare=_instance, measured=True),
)
"""What such a guest is compared with, in the order of decisions; nothing before the log holds."""
