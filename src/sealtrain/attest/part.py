"""What verification of one part needs and gives, and the comparisons every kind of part shares."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn

from sealtrain.attest.claims import Claim, Group, single, unlooked
from sealtrain.attest.policy import AppraisalPolicy
from sealtrain.attest.roots import SIMULATED_LABEL
from sealtrain.attest.tee import SignedStatement, VerifiedGuest
from sealtrain.errors import (
    ComposeHashMismatch,
    EvidenceRefused,
    PlatformMismatch,
    ReportDataMismatch,
)

__all__ = [
    "Part",
    "Proven",
    "Situation",
    "Vouched",
    "bound_groups",
    "committed",
    "compose_groups",
    "guest_part",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Proven:
    """A guest's statement whose signature leads to a root; nothing of it is compared yet.

    Attributes:
        signed: The statement, or several that are of one another.
        root: The root in words.
        eat: As in ``Vouched``.
        groups: What the statement is compared with before the conversation, in order.
        report_data: What it was made for; ``None`` where it does not say.
        source: The component that says so.
        asked: Comparisons with the conversation, where report data are not what tells it.
        bound: As in ``Vouched``.
        ids: Of the guest, as ``VerifiedGuest`` calls them, in place of those that its document
            gives; ``None`` where what it measured is malformed.
    """

    signed: SignedStatement
    root: str
    eat: dict[str, str]
    groups: Iterable[Group]
    report_data: bytes | None
    source: str
    asked: tuple[Group, ...] | None = None
    bound: Iterable[Group] = ()
    ids: Mapping[str, str] | None = field(default_factory=dict)


def guest_part(prove: Callable[[], Proven], at: Situation) -> Part:
    """A guest's processor: proven, compared, and then asked for which conversation it spoke.

    Args:
        prove: Raises ``EvidenceRefused`` where a signature does not lead to a root.
        at: Policy, time, conversation.
    """

    def verify() -> Vouched:
        found = prove()
        asked = found.asked
        if asked is None:
            asked = (report_data_group(at, found.report_data, found.source),)
        return Vouched(
            root=found.root,
            simulated=found.signed.simulated,
            identity=found.signed.quote_identity,
            eat=found.eat,
            groups=(*found.groups, *asked),
            bound=tuple(found.bound),
            guest=_guest_of(at, found),
        )

    return Part(name="cpu0", verify=verify)


def _guest_of(at: Situation, found: Proven) -> VerifiedGuest[Any] | None:
    """Facts about a guest, of a statement that comes with the deployment document."""
    digest = at.shown_compose
    if digest is None or found.ids is None:
        return None
    ids = {"app_id": digest[:40], **found.ids}
    data = found.report_data or b""
    return VerifiedGuest(signed=found.signed, report_data=data, compose_hash=digest, **ids)


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
