"""Check 18: what the parties did together, by the run log and the rules of their kind.

Each kind has pure rules of its own (``checks.collaborations``). They read the run log's
entries, whose chain check 7 verified, and may ask for any fact that earlier checks established.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from sealtrain.base.distributions import load
from sealtrain.manifest.checks.case import Case
from sealtrain.manifest.errors import ClaimContradicted
from sealtrain.recipe.kinds import KINDS


def _by_rule_of(kind: str, case: Case) -> str:
    detail: str = load(KINDS[kind].rule)(case)
    return detail


RULES: Final[dict[str, Callable[[Case], str]]] = {
    kind: partial(_by_rule_of, kind) for kind in sorted(KINDS)
}
"""Kind → examination: returns one sentence of detail, or raises what it refuses."""


def collaboration_holds(case: Case) -> str:
    """(18) What the parties did together follows the rules of their kind."""
    collaboration = case.predicate.collaboration
    asked = case.need_lock().recipe.collaboration
    if collaboration is None and asked is None:
        return "one guest, no other party"
    case.need_datasets()  # kind and parties are the recipe's
    kind = "none" if collaboration is None else collaboration.kind
    if kind not in RULES:
        raise ClaimContradicted(
            "this version has no rules for runs of this kind",
            check="collaboration",
            got=kind,
            expected=" or ".join(RULES) or "one guest",
        )
    return RULES[kind](case)
