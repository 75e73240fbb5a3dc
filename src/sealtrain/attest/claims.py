"""Claims: one comparison each, with where the value came from. The first breach raises."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NoReturn

from sealtrain.attest.errors import ReportDataMismatch
from sealtrain.errors import EvidenceRefused

Outcome = Literal["equal", "allowed", "any"]
"""``equal`` to one expected value, among the ``allowed`` ones, or the policy said ``any``."""

_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One comparison that held.

    Attributes:
        name: What was compared, in words.
        got: What the evidence says.
        expected: What it was compared with; ``any`` where the policy does not look.
        source: What vouches for ``got``: ``TDX quote``, ``event log``, ``NSM document``…
        outcome: How it held.
    """

    name: str
    got: str
    expected: str
    source: str
    outcome: Outcome

    def to_dict(self) -> dict[str, str]:
        """JSON form."""
        return {
            "name": self.name,
            "got": self.got,
            "expected": self.expected,
            "source": self.source,
            "outcome": self.outcome,
        }


Check = Callable[[], Claim]
"""One comparison to be made: returns the claim that holds or raises. A decision makes comparisons
in order and stops at the first breach; an explanation makes all of them.
"""

Group = Callable[[], tuple[Claim, ...]]
"""Comparisons made together: the claims that hold, or the first breach."""


def require_groups(groups: Iterable[Group]) -> tuple[Claim, ...]:
    """Make groups of comparisons in order.

    Raises:
        EvidenceRefused: What the first breach raised.
    """
    return tuple(claim for group in groups for claim in group())


def single(check: Check) -> Group:
    """A group of one comparison."""
    return lambda: (check(),)


def equal(
    name: str,
    got: str,
    expected: str | None,
    *,
    source: str,
    error: type[EvidenceRefused],
    message: str,
    hint: str | None = None,
) -> Claim:
    """Compare with one value; ``None`` accepts anything.

    Raises:
        EvidenceRefused: An ``error``, where the values differ.
    """
    if expected is None:
        return claim_unchecked(name, got, source=source)
    if got != expected:
        raise error(message, check=name, got=got, expected=expected, hint=hint)
    return Claim(name=name, got=got, expected=expected, source=source, outcome="equal")


def among(
    name: str,
    got: str,
    allowed: Literal["any"] | tuple[str, ...],
    *,
    source: str,
    error: type[EvidenceRefused],
    message: str,
    hint: str | None = None,
) -> Claim:
    """Look a value up in a list; ``any`` accepts anything.

    Raises:
        EvidenceRefused: An ``error``, where the list does not hold the value.
    """
    if allowed == "any":
        return claim_unchecked(name, got, source=source)
    shown = ", ".join(allowed[:_SHOWN]) + (", …" if len(allowed) > _SHOWN else "")
    if got not in allowed:
        raise error(message, check=name, got=got, expected=shown, hint=hint)
    return Claim(name=name, got=got, expected=shown, source=source, outcome="allowed")


def claim_unchecked(name: str, got: str, *, source: str) -> Claim:
    """A value that the policy does not look at."""
    return Claim(name=name, got=got, expected="any", source=source, outcome="any")


def compare_commitment(
    name: str,
    expected: bytes | None,
    got: bytes | None,
    source: str,
) -> Claim:
    """What a part says it was made for, compared in all its bytes."""
    shown = "none" if got is None else got.hex()
    if expected is None:
        return claim_unchecked(name, shown, source=source)
    # Lengths first: a prefix must not pass, and compare_digest is constant in time only then.
    if got is None or len(got) != len(expected) or not hmac.compare_digest(got, expected):
        raise ReportDataMismatch(
            "evidence was made for another conversation",
            check=name,
            got=shown,
            expected=expected.hex(),
            hint="it was made for another challenge, key, run, purpose or accelerator",
        )
    return Claim(name=name, got=shown, expected=expected.hex(), source=source, outcome="equal")


def raising(error: EvidenceRefused) -> Group:
    """A comparison that is known to fail."""
    return partial(_raise, error)


def _raise(error: EvidenceRefused) -> NoReturn:
    raise error
