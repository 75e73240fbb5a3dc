"""What verification of one part needs and gives, and the comparisons every kind of part shares."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

from sealtrain.attest.claims import Claim, Group, single, unlooked
from sealtrain.attest.policy import AppraisalPolicy
from sealtrain.attest.roots import SIMULATED_LABEL
from sealtrain.attest.tee import Signed, VerifiedGuest
from sealtrain.errors import (
    ComposeHashMismatch,
    EvidenceRefused,
    PlatformMismatch,
    ReportDataMismatch,
)

__all__ = [
    "Part",
    "Situation",
    "Vouched",
    "bound_groups",
    "committed",
    "compose_groups",
    "guest_of",
    "other_tee",
    "raising",
    "report_data_group",
    "root_name",
    "same_document",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Under which policy, when, and for which conversation and deployment document.

    Attributes:
        policy: ``None`` where only signatures and roots are asked for.
        root: Trusted software root of processors (DER), ``None`` for the vendors'.
        now: Seconds since 1970.
        nonce: Nonce that the part must carry, ``None`` if unknown.
        shown_compose: SHA-256 of the deployment document that the evidence itself shows, hex; such
            evidence is bound to it before anything else is compared.
        compose_hashes: What the measured deployment document must hash to; empty for any.
        every_line: Leave judgements that a verifier could make at once to comparisons.
    """

    policy: AppraisalPolicy | None
    root: bytes | None
    now: int
    nonce: bytes | None = None
    compose_hashes: tuple[str, ...] = ()
    every_line: bool = False
    shown_compose: str | None = None

    def with_(self, **changes: Any) -> Situation:
        """The same with other fields."""
        return replace(self, **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vouched:
    """A part whose signature leads to a trusted root.

    Attributes:
        root: The root in words.
        simulated: Whether it is a simulator's.
        identity: SHA-256 of what the signature covers, hex.
        eat: Claims under their RFC 9711 names; true once every comparison held.
        groups: What it is compared with, in order.
        bound: Comparisons with the document that the evidence shows, made before ``groups``.
        guest: Facts about the guest that shows its document; true once ``bound`` held.
    """

    root: str
    simulated: bool
    identity: str
    eat: dict[str, str]
    groups: tuple[Group, ...]
    bound: tuple[Group, ...] = ()
    guest: VerifiedGuest[Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One device's signed statement.

    Attributes:
        name: ``cpu0``, ``gpu0``, ``switch0``…, or ``gpus`` for all accelerators together.
        verify: Leads its signature to a root; raises ``EvidenceRefused`` where it does not.
        before: Comparisons that need no signature.
        last: Its ``groups`` are compared once every other part was.
    """

    name: str
    verify: Callable[[], Vouched]
    before: tuple[Group, ...] = ()
    last: bool = False


def raising(error: EvidenceRefused) -> Group:
    """A comparison that is known to fail."""
    return partial(_raise, error)


def _raise(error: EvidenceRefused) -> NoReturn:
    raise error


def other_tee(got: str, expected: str) -> Group:
    """The policy is for something else than this part."""
    return raising(
        PlatformMismatch(
            "evidence is of another TEE than the policy asks for",
            check="platform",
            got=got,
            expected=expected,
        )
    )


def root_name(simulated: bool, vendor: str) -> str:
    """A root in words."""
    return SIMULATED_LABEL if simulated else vendor


def committed(
    name: str,
    expected: bytes | None,
    got: bytes | None,
    source: str,
    error: type[EvidenceRefused] = ReportDataMismatch,
) -> Claim:
    """What a part says it was made for, compared in all its bytes."""
    shown = "none" if got is None else got.hex()
    if expected is None:
        return unlooked(name, shown, source=source)
    # Lengths first: a prefix must not pass, and compare_digest is constant in time only then.
    if got is None or len(got) != len(expected) or not hmac.compare_digest(got, expected):
        raise error(
            "evidence was made for another conversation",
            check=name,
            got=shown,
            expected=expected.hex(),
            hint="it was made for another challenge, key, run, purpose or accelerator",
        )
    return Claim(name=name, got=shown, expected=expected.hex(), source=source, outcome="equal")


def report_data_group(situation: Situation, got: bytes | None, source: str) -> Group:
    """Report data of a guest in its conversation."""
    return single(partial(committed, "report data", situation.nonce, got, source))


def compose_groups(
    situation: Situation, got: str, source: str, measured: Callable[[str], str]
) -> Iterable[Group]:
    """The deployment document by what the guest measured of it.

    Args:
        situation: Names the expected hashes.
        got: What was measured, as the platform writes it.
        source: The component that measured it.
        measured: Expected hash → what the platform measures of it.
    """
    if not situation.compose_hashes and situation.shown_compose is None:
        yield single(partial(unlooked, "compose hash", got, source=source))
    for digest in situation.compose_hashes:
        yield single(partial(same_document, got, measured(digest), source))


def bound_groups(
    situation: Situation, got: str, source: str, measured: Callable[[str], str]
) -> tuple[Group, ...]:
    """The same with the document that the evidence itself shows, where it shows one."""
    digest = situation.shown_compose
    if digest is None:
        return ()
    return (single(partial(same_document, got, measured(digest), source)),)


def guest_of(
    situation: Situation, signed: Signed, report_data: bytes, **named: str
) -> VerifiedGuest[Any] | None:
    """Facts about a guest, of a statement that comes with the deployment document.

    Args:
        situation: Names that document.
        signed: The statement.
        report_data: What it holds of the conversation.
        named: Ids that the guest has besides, as ``VerifiedGuest`` calls them.
    """
    digest = situation.shown_compose
    if digest is None:
        return None
    ids = {"app_id": digest[:40], **named}
    return VerifiedGuest(signed=signed, report_data=report_data, compose_hash=digest, **ids)


def same_document(got: str, expected: str, source: str) -> Claim:
    """A deployment document by what the guest measured of it.

    Raises:
        ComposeHashMismatch: The guest measured another document.
    """
    if got != expected:
        raise ComposeHashMismatch(
            "guest measured another deployment document",
            check="compose hash",
            got=got,
            expected=expected,
            hint="show the exact bytes that were deployed; re-serialised JSON has another hash",
        )
    return Claim(name="compose hash", got=got, expected=expected, source=source, outcome="equal")
