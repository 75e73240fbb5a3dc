"""Check 18: what the parties did together, by the run log and the rules of their kind.

Each kind has pure rules of its own in this package. They read the run log's entries, whose chain
check 7 verified, and may ask for any fact that earlier checks established.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sealtrain.errors import ClaimContradicted
from sealtrain.manifest.checks.case import Case
from sealtrain_collab.cut.check import cut_holds
from sealtrain_collab.federated.check import rounds_hold
from sealtrain_collab.pads.check import pads_hold
from sealtrain_collab.travelling.check import trips_hold

__all__ = ["RULES", "collaboration_holds"]

RULES: Final[dict[str, Callable[[Case], str]]] = {
    "cut": cut_holds,
    "federated": rounds_hold,
    "pads": pads_hold,
    "travelling": trips_hold,
}
"""Kind → examination: returns one sentence of detail, or raises what it refuses."""


def collaboration_holds(case: Case) -> str:
    """(18) What the parties did together follows the rules of their kind."""
    together = case.predicate.collaboration
    asked = case.need_lock().recipe.collaboration
    if together is None and asked is None:
        return "one guest, no other party"
    case.need_datasets()  # kind and parties are the recipe's
    kind = "none" if together is None else together.kind
    if kind not in RULES:
        raise ClaimContradicted(
            "this version has no rules for runs of this kind",
            check="collaboration",
            got=kind,
            expected=" or ".join(RULES) or "one guest",
        )
    return RULES[kind](case)
