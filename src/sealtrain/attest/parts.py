"""Parts and the one walk through their checks: up to the first that fails, or past it.

A part is what one device signed. Its checks, in order:

1. what is compared before anything is verified (``Part.before``): platform, TEE;
2. its signature leads to a trusted root (``Part.verify``);
3. what it signed is bound to the deployment document that the evidence shows (``Vouched.bound``);
4. what else follows from what it signed (``Vouched.groups``), of a part that comes ``last`` after
   those of all others, because report data commit to the accelerators.

``show`` goes past failures, but compares nothing below a signature that does not hold, because
nothing there can be trusted. ``decide`` raises the first failure that ``show`` yields, and ``show``
makes no check before the one before it was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sealtrain.attest.claims import Claim, Group
from sealtrain.errors import EvidenceRefused


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
        facts: What was verified, in the form of its maker; true once ``bound`` held.
    """

    root: str
    simulated: bool
    identity: str
    eat: dict[str, str]
    groups: tuple[Group, ...]
    bound: tuple[Group, ...] = ()
    facts: Any = None


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
class CheckOutcome:
    """How one check of a part ended: exactly one of the three is there.

    Attributes:
        part: Whose check it is.
        vouched: The signature that held.
        claim: The comparison that held.
        error: What did not hold.
        signature: Whether it is about the signature: without it nothing below is compared.
    """

    part: str
    vouched: Vouched | None = None
    claim: Claim | None = None
    error: EvidenceRefused | None = None
    signature: bool = False


def show(parts: Iterable[Part]) -> Iterator[CheckOutcome]:
    """Make every check of every part in order, past failures."""
    postponed: list[tuple[str, Vouched]] = []
    for part in parts:
        yield from _compare(part.name, part.before)
        try:
            vouched = part.verify()
        except EvidenceRefused as error:
            yield CheckOutcome(part=part.name, error=error, signature=True)
            continue
        yield CheckOutcome(part=part.name, vouched=vouched, signature=True)
        yield from _compare(part.name, vouched.bound)
        if part.last:
            postponed.append((part.name, vouched))
        else:
            yield from _compare(part.name, vouched.groups)
    for name, vouched in postponed:
        yield from _compare(name, vouched.groups)


def decide(parts: Iterable[Part]) -> dict[str, tuple[Vouched, tuple[Claim, ...]]]:
    """Make the same checks and stop at the first that fails; what held, by the name of the part.

    Raises:
        EvidenceRefused: What the first failing check raised.
    """
    vouched: dict[str, Vouched] = {}
    claims: dict[str, list[Claim]] = {}
    for outcome in show(parts):
        if outcome.error is not None:
            raise outcome.error
        if outcome.vouched is not None:
            vouched[outcome.part] = outcome.vouched
        if outcome.claim is not None:
            claims.setdefault(outcome.part, []).append(outcome.claim)
    return {name: (found, tuple(claims.get(name, ()))) for name, found in vouched.items()}


def _compare(part: str, groups: Iterable[Group]) -> Iterator[CheckOutcome]:
    for group in groups:
        try:
            claims = group()
        except EvidenceRefused as error:
            yield CheckOutcome(part=part, error=error)
        else:
            yield from (CheckOutcome(part=part, claim=claim) for claim in claims)
