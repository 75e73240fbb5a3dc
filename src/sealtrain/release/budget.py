"""May a run spend this much of the owners' privacy? Pure, as ``release.decide``.

Every run reserves its whole epsilon of each dataset it protects when it first gets keys, whatever
becomes of it: keys cannot be called back, so neither can what they were good for. Epsilons add up
(basic composition), which bounds what all runs together reveal. A resume reserves nothing: its
noise is the interrupted run's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sealtrain.errors import BudgetSpent
from sealtrain.recipe.privacy import Spending

__all__ = ["within_budget"]

# Sums of decimal fractions miss by less than this.
_ROUNDING = 1e-9


def within_budget(asked: Sequence[Spending], spent: Mapping[tuple[str, str], float]) -> None:
    """See that what is asked for fits beside what was reserved before.

    Args:
        asked: What the run reserves, one for each dataset.
        spent: Epsilon reserved so far, by (owner, dataset name).

    Raises:
        BudgetSpent: An owner's budget has too little left.
    """
    for one in asked:
        before = spent.get((one.owner, one.name), 0.0)
        if one.budget is not None and before + one.epsilon > one.budget + _ROUNDING:
            raise BudgetSpent(
                f"the privacy budget of {one.name} has too little left for this run",
                check="privacy budget",
                owner=one.owner,
                got=f"epsilon {one.epsilon:g} on top of {before:g}",
                expected=f"at most {one.budget:g} together",
                hint="its owner decides: another budget is another recipe, to be approved anew",
            )
