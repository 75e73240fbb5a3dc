"""One adapter of many: the rules a recipe's ``aggregation`` can name (spec/federated.md §3).

===============  ==================================================================================
``fedavg``       mean of every tensor, weighted by records; the baseline
``ffa``          the same where A is frozen at its start, equal for all: then the mean is exact
``exact``        weighted mean of the *products* of LoRA's factors, cut to the recipe's rank
                 (``exact``); other tensors as ``fedavg``
``median``       middle of every number; parties count alike, whatever records they claim
``trimmed-mean`` mean of every number without the ``trim`` largest and smallest; likewise
===============  ==================================================================================

Before any rule the change of each update may be cut to ``max_norm``. Sums are made in float64, in
the order of the parties' names, so the result does not depend on who was first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from sealtrain.errors import UpdateRefused, UsageError
from sealtrain_collab.federated.exact import factor_pairs, merged_factors
from sealtrain_collab.federated.robust import bounded, median, trimmed_mean
from sealtrain_collab.federated.update import State, Update

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["RULES", "merge"]

RULES: Final = ("exact", "fedavg", "ffa", "median", "trimmed-mean")


def merge(
    rule: str,
    updates: Sequence[Update],
    previous: State,
    *,
    rank: int | None = None,
    trim: int | None = None,
    max_norm: float | None = None,
) -> dict[str, Tensor]:
    """The adapter after a round.

    Args:
        rule: One of ``RULES``.
        updates: Decoded against ``previous``, one a party, at least one.
        previous: What they were learned from.
        rank: For ``exact``: of the merged adapter.
        trim: For ``trimmed-mean``.
        max_norm: Bound on the L2 norm of each update's change; ``None`` for none.

    Returns:
        float32 tensors with the names and shapes of ``previous``.

    Raises:
        UsageError: Unknown rule, a setting it lacks, or too few updates for it.
        UpdateRefused: Two updates of one party, or numbers whose mean is not finite.
    """
    _check(rule, updates, rank)
    ordered = sorted(updates, key=lambda one: one.party)
    states: list[State] = [one.state for one in ordered]
    if max_norm is not None:
        states = [bounded(state, previous, max_norm) for state in states]
    total = sum(one.weight for one in ordered)
    shares = [one.weight / total for one in ordered]
    of_all = _of_all(rule, shares, trim)
    merged = {name: of_all([state[name] for state in states]) for name in previous}
    if rule == "exact" and rank is not None:
        merged |= _exact(states, shares, previous, rank)
    return _finite(merged)


def _check(rule: str, updates: Sequence[Update], rank: int | None) -> None:
    if rule not in RULES:
        raise UsageError("no such rule", got=rule, expected=", ".join(RULES))
    if not updates:
        raise UsageError("there is no update to merge")
    if (rule == "exact") != (rank is not None):
        raise UsageError("rank and the rule exact go together", got=f"{rule}, rank {rank}")
    parties = [update.party for update in updates]
    twice = sorted({party for party in parties if parties.count(party) > 1})
    if twice:
        raise UpdateRefused(
            "a party gave two updates to one round", owner=twice[0], check="party", got=len(parties)
        )


def _of_all(
    rule: str, shares: Sequence[float], trim: int | None
) -> Callable[[Sequence[Tensor]], Tensor]:
    """What makes one tensor of the parties' tensors."""
    if (rule == "trimmed-mean") != (trim is not None):
        raise UsageError("trim and the rule trimmed-mean go together", got=f"{rule}, trim {trim}")
    if trim is not None:
        return lambda tensors: trimmed_mean(tensors, trim=trim)
    if rule == "median":
        return median
    return lambda tensors: _mean(tensors, shares)


def _mean(tensors: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    total = tensors[0].double() * shares[0]
    for tensor, share in zip(tensors[1:], shares[1:], strict=True):
        total = total + tensor.double() * share
    return total


def _exact(
    states: Sequence[State], shares: Sequence[float], previous: State, rank: int
) -> dict[str, Tensor]:
    pairs = factor_pairs(list(previous))
    if not pairs:
        raise UsageError(
            "the rule exact merges low-rank factors, and the adapter has none",
            hint="with A frozen use ffa; for other adapters fedavg",
        )
    merged = {}
    for name_a, name_b in pairs:
        before = previous[name_a].double()
        if before.shape[0] != rank:
            raise UsageError("the adapter has another rank", got=before.shape[0], expected=rank)
        length = float(before.square().sum(dim=1).mean().sqrt())
        merged[name_a], merged[name_b] = merged_factors(
            [(state[name_a], state[name_b]) for state in states],
            shares,
            rank=rank,
            row_length=length if length > 0 else 1.0,
        )
    return merged


def _finite(merged: dict[str, Tensor]) -> dict[str, Tensor]:
    import torch

    rounded = {name: one.to(torch.float32).contiguous() for name, one in merged.items()}
    if any(not bool(torch.isfinite(one).all()) for one in rounded.values()):
        raise UpdateRefused("the mean of the updates is not finite", check="numbers")
    return rounded
