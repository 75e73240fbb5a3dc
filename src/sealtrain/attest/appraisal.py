"""One sequence of checks, two drivers: stop at the first failure, or show all.

A part is what one device signed. Its checks are made in this order by either driver:

1. what is compared before anything is verified (``Part.before``);
2. its signature leads to a trusted root (``Part.verify``);
3. what it signed is bound to the deployment document that the evidence shows (``Vouched.bound``);
4. the comparisons that follow from what it signed (``Vouched.groups``), of a part that comes
   ``last`` after those of all others: report data commit to the accelerators.

``decide`` raises what the first failing check raises. ``show`` goes on; but it compares nothing
below a signature that does not hold, because nothing there can be trusted. The first failure that
``show`` yields is therefore the one that ``decide`` raises.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sealtrain.attest.claims import Claim, Group, require_groups
from sealtrain.attest.part import Part, Vouched
from sealtrain.errors import EvidenceRefused

__all__ = ["CheckOutcome", "decide", "show"]


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


def decide(parts: Iterable[Part]) -> dict[str, tuple[Vouched, tuple[Claim, ...]]]:
    """Make every check of every part in order; what held, by the name of the part.

    Raises:
        EvidenceRefused: What the first failing check raised.
    """
    found: dict[str, tuple[Vouched, tuple[Claim, ...]]] = {}
    postponed: list[tuple[str, Vouched]] = []
    for part in parts:
        claims = require_groups(part.before)
        vouched = part.verify()
        claims += require_groups(vouched.bound)
        if part.last:
            postponed.append((part.name, vouched))
        else:
            claims += require_groups(vouched.groups)
        found[part.name] = (vouched, claims)
    for name, vouched in postponed:
        found[name] = (vouched, found[name][1] + require_groups(vouched.groups))
    return found


def show(parts: Iterable[Part]) -> Iterator[CheckOutcome]:
    """Make every check of every part in order, past failures."""
    postponed: list[tuple[str, Vouched]] = []
    for part in parts:
        yield from _compared(part.name, part.before)
        try:
            vouched = part.verify()
        except EvidenceRefused as error:
            yield CheckOutcome(part=part.name, error=error, signature=True)
            continue
        yield CheckOutcome(part=part.name, vouched=vouched, signature=True)
        yield from _compared(part.name, vouched.bound)
        if part.last:
            postponed.append((part.name, vouched))
        else:
            yield from _compared(part.name, vouched.groups)
    for name, vouched in postponed:
        yield from _compared(name, vouched.groups)


def _compared(part: str, groups: Iterable[Group]) -> Iterator[CheckOutcome]:
    for group in groups:
        try:
            claims = group()
        except EvidenceRefused as error:
            yield CheckOutcome(part=part, error=error)
        else:
            yield from (CheckOutcome(part=part, claim=claim) for claim in claims)
