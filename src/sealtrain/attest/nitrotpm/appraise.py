"""Appraisal of a dstack guest on EC2 with a NitroTPM.

1. PCR 14, SHA-384, replays the run-time events, all of them; it is never left out.
2. PCR 4, 7 and 12 are of a listed boot; a register that the document does not hold is in no list.
3. PCR 8 was extended once, with the configuration id of the measured document, app and key
   provider. Images of dstack that are older leave it zero; the policy says whether that will do.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from functools import partial

from sealtrain.attest.claims import Check, Claim, among, equal, unlooked
from sealtrain.attest.dstack.verify import LOG, MeasuredGuest, config_ids, replay_register
from sealtrain.attest.nitro.parse import PCR_BYTES
from sealtrain.attest.nitro.verify import VerifiedDocument, check_age, extended
from sealtrain.attest.nitrotpm.policy import NitroTpmPolicy
from sealtrain.attest.statement import LogEntry
from sealtrain.errors import (
    EventLogMismatch,
    KeyProviderMismatch,
    MeasurementMismatch,
    PlatformMismatch,
)

__all__ = ["DOCUMENT", "EVENT_PCR", "NitroTpmGuest", "check_events", "checks_of", "eat"]

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


def checks_of(guest: NitroTpmGuest, policy: NitroTpmPolicy, now: int) -> tuple[Check, ...]:
    """What such a guest is compared with, not compared yet.

    Args:
        guest: Verified document, and what the guest measured.
        policy: Reference values.
        now: Verification time, seconds since 1970.

    The comparisons raise:
        EvidenceStale: The document is older than the policy allows, or from the future.
        MeasurementMismatch: The boot is not listed.
        EventLogMismatch: PCR 8 commits to other values than the log.
        KeyProviderMismatch: The guest got its keys from another key provider.
        PlatformMismatch: The instance is not listed.
    """
    verified, measured = guest.document, guest.measured
    return (
        partial(_age, verified, policy, now),
        partial(_boot, verified, policy),
        partial(_config, guest, policy),
        partial(
            equal,
            "key provider",
            measured.key_provider or measured.key_provider_name,
            None if policy.key_provider == "any" else policy.key_provider,
            source=LOG,
            error=KeyProviderMismatch,
            message="guest got its keys from another key provider",
        ),
        partial(
            among,
            "instance",
            verified.parent_id,
            policy.instances,
            source=DOCUMENT,
            error=PlatformMismatch,
            message="guest runs on an instance that the policy does not list",
        ),
    )


def eat(guest: NitroTpmGuest) -> dict[str, str]:
    """Claims by their RFC 9711 names; memory is not said to be encrypted."""
    return {"ueid": guest.document.module_id, "hwmodel": "AWS NitroTPM"}


def _age(verified: VerifiedDocument, policy: NitroTpmPolicy, now: int) -> Claim:
    return Claim(
        name="document age",
        got=f"{check_age(verified.timestamp_ms, policy.max_age_s, now)} s",
        expected=f"at most {policy.max_age_s} s",
        source=DOCUMENT,
        outcome="allowed",
    )


def _config(guest: NitroTpmGuest, policy: NitroTpmPolicy) -> Claim:
    got = guest.document.document.pcrs.get(_CONFIG_PCR, bytes(PCR_BYTES))
    if policy.config_id == "any" and not any(got):
        return unlooked("configuration id", got.hex(), source=DOCUMENT)
    ids = (found.ljust(PCR_BYTES, b"\0") for found in config_ids(guest.measured))
    if not any(got == extended(bytes(PCR_BYTES), found) for found in ids):
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


def _boot(verified: VerifiedDocument, policy: NitroTpmPolicy) -> Claim:
    found = tuple(verified.document.pcr(index) for index in _BOOT_PCRS)
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
