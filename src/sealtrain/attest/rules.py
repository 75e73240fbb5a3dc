"""A TEE's own rules: the comparisons of its signed facts, as data in the order of decisions.

A TEE's table is a tuple of ``Rule``; the number of a rule is its place there. Kinds of evidence
that hold another TEE's statement begin with that TEE's table (``about``). ``attest.engine`` alone
reads the tables: it stops at the first breach, or shows every rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from sealtrain.attest.claims import Claim

Compare = Callable[[Any, Any, int], Claim | None]
"""Signed statement, policy's rules, verification time → the claim that holds.

Raises a leaf of ``EvidenceRefused``; ``None`` where there is nothing to compare.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One comparison of a TEE with its policy.

    Attributes:
        name: What is compared, in words, as its claim names it.
        compare: Makes the comparison.
        measured: It is about what the guest measured, which a malformed log does not tell.
        always: It is shown where no policy of this TEE is given, too, and then accepts anything.
    """

    name: str
    compare: Compare
    measured: bool = False
    always: bool = False


def about(part: Callable[[Any], Any], rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """The rules of one statement, for facts that hold it among others.

    Args:
        part: Facts → the statement.
        rules: Its table.
    """

    def of(compare: Compare) -> Compare:
        return lambda facts, policy, now: compare(part(facts), policy, now)

    return tuple(replace(rule, compare=of(rule.compare)) for rule in rules)
