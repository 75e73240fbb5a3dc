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

Low-rank merging without the error of averaging factors apart: an adapter adds ``B A`` to a weight.
The weighted mean of parties' products is

    sum_i w_i B_i A_i  =  [w_1 B_1 … w_k B_k] [A_1; …; A_k]  =  L R

of rank k·r at most. Its r largest singular values and vectors, the best approximation of rank r,
follow from the inner products of the columns of L and of the rows of R, (k·r)² numbers each; the
product itself, as large as the weight, is never formed. Inner products square the singular values,
so where a wanted one is small, two QR factorisations and a full SVD do the same at five times the
time. The mean of the ``B_i`` times the mean of the ``A_i`` is another matrix: it misses their
covariance.

The rows of ``A`` keep the length they had before, and singular values go to ``B``. So an unused
direction still learns (with values shared out evenly, both its factors would be zero, and stay so),
and the learning rate means what it meant.

Robust rules bound what a few poisoned updates can move, and a norm bounds a single update.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from sealtrain.errors import UsageError
from sealtrain_together.errors import UpdateRefused
from sealtrain_together.federated.update import State, Update, change_norm

if TYPE_CHECKING:
    from torch import Tensor

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
    states: list[State] = [update.state for update in ordered]
    if max_norm is not None:
        states = [bound(state, previous, max_norm) for state in states]
    total = sum(update.weight for update in ordered)
    shares = [update.weight / total for update in ordered]
    of_all = _of_all(rule, shares, trim)
    merged = {name: of_all([state[name] for state in states]) for name in previous}
    if rule == "exact" and rank is not None:
        merged |= _exact(states, shares, previous, rank)
    return _finite(merged)


def _check(rule: str, updates: Sequence[Update], rank: int | None) -> None:
    if rule not in RULES:
        raise UsageError("no such rule", got=rule, expected=", ".join(RULES))
    if not updates:
        raise UsageError("no update to merge was given")
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
    """Merges the parties' tensors into one."""
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
        merged[name_a], merged[name_b] = merge_factors(
            [(state[name_a], state[name_b]) for state in states],
            shares,
            rank=rank,
            row_length=length if length > 0 else 1.0,
        )
    return merged


def _finite(merged: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rounded to float32. Raises ``UpdateRefused`` where a number is not finite then."""
    import torch

    rounded = {name: tensor.to(torch.float32).contiguous() for name, tensor in merged.items()}
    if any(not bool(torch.isfinite(tensor).all()) for tensor in rounded.values()):
        raise UpdateRefused("the mean of the updates is not finite", check="numbers")
    return rounded


# Of squared singular values: at 1e-7 of the largest, a direction keeps eight digits of float64,
# more than float32 has.
_COARSE: Final = 1e-7
_A, _B = ".lora_A.", ".lora_B."


def factor_pairs(names: Sequence[str]) -> list[tuple[str, str]]:
    """Names of A and B of every low-rank adapter among ``names``, in their order."""
    known = set(names)
    pairs = [(name, name.replace(_A, _B)) for name in names if _A in name]
    return [(left, right) for left, right in pairs if right in known]


def merge_factors(
    factors: Sequence[tuple[Tensor, Tensor]],
    weights: Sequence[float],
    *,
    rank: int,
    row_length: float,
) -> tuple[Tensor, Tensor]:
    """Factors of the best approximation of rank ``rank`` to the weighted mean of products.

    Args:
        factors: ``(A, B)`` of each party: (r, inputs) and (outputs, r).
        weights: Of each party; they sum to 1.
        rank: Rows of the merged A, at most what the parties' have together.
        row_length: L2 norm of each row of the merged A, > 0.

    Returns:
        A (rank, inputs) and B (outputs, rank), float64. Signs are fixed: the entry of the largest
        size in each row of A is positive.
    """
    import torch

    ranks = torch.tensor([len(a) for a, _ in factors])
    shares = torch.tensor(weights, dtype=torch.float64).repeat_interleave(ranks)
    left = torch.cat([b for _, b in factors], dim=1).double() * shares
    right = torch.cat([a for a, _ in factors]).double()
    rows, columns = _largest_of_few(left, right, rank) or _largest(left, right, rank)
    # A layer narrower than the rank has fewer directions.
    rows = torch.nn.functional.pad(rows, (0, 0, 0, rank - len(rows)))
    columns = torch.nn.functional.pad(columns, (0, rank - columns.shape[1]))
    largest = rows.gather(1, rows.abs().argmax(dim=1, keepdim=True))
    signs = torch.where(largest < 0, -1.0, 1.0).to(rows)
    return rows * signs * row_length, columns * signs.T / row_length


def _largest(left: Tensor, right: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The largest directions of ``left @ right``: unit rows, and columns times their size."""
    import torch

    basis_out, upper_out = torch.linalg.qr(left)
    basis_in, upper_in = torch.linalg.qr(right.T)
    core, sizes, turned = torch.linalg.svd(upper_out @ upper_in.T, full_matrices=False)
    return turned[:rank] @ basis_in.T, (basis_out @ core * sizes)[:, :rank]


def _largest_of_few(left: Tensor, right: Tensor, rank: int) -> tuple[Tensor, Tensor] | None:
    """The same from inner products; ``None`` where these are too coarse for a wanted direction.

    With K Kᵀ = R Rᵀ, the squares of the singular values of L R are the eigenvalues of Kᵀ (LᵀL) K,
    and an eigenvector z of it gives the left singular vector L K z, up to its length.
    """
    import torch
    from scipy.linalg import eigh
    from threadpoolctl import threadpool_limits

    inner = left.shape[1]
    if not rank < inner <= min(len(left), right.shape[1]):
        return None
    among_left = left.T @ left
    triangle, failed = torch.linalg.cholesky_ex(right @ right.T)
    if int(failed) or not bool(torch.isfinite(among_left).all()):
        return None
    wanted = [inner - rank, inner - 1]
    squared = (triangle.T @ among_left @ triangle).numpy()
    # SciPy's threads and torch's would wait for each other's processors.
    with threadpool_limits(1, user_api="blas"):
        squares, vectors = eigh(squared, subset_by_index=wanted)
    if squares[0] <= _COARSE * squares[-1]:
        return None
    # From the largest on; no step is backwards, which a view in torch cannot be.
    largest = torch.from_numpy(squares[::-1].copy())
    turned = triangle @ torch.from_numpy(vectors[:, ::-1].copy())
    return (among_left @ turned / largest).T @ right, left @ turned


def bound(state: State, previous: State, max_norm: float) -> dict[str, Tensor]:
    """The update with its change cut to an L2 norm; float64.

    Args:
        state: The update.
        previous: What it was learned from.
        max_norm: Of the change over all tensors, > 0.
    """
    norm = change_norm(state, previous)
    factor = 1.0 if norm <= max_norm else max_norm / norm
    return {
        name: before.double() + factor * (state[name].double() - before.double())
        for name, before in previous.items()
    }


def median(tensors: Sequence[Tensor]) -> Tensor:
    """Middle of every number over the parties; of an even count the mean of the two; float64."""
    return trimmed_mean(tensors, trim=(len(tensors) - 1) // 2)


def trimmed_mean(tensors: Sequence[Tensor], *, trim: int) -> Tensor:
    """Mean of every number over the parties without its largest and smallest; float64.

    Args:
        tensors: One a party, equal shapes.
        trim: How many are left out at either end.

    Raises:
        UsageError: It leaves nothing.
    """
    import torch

    if not 0 <= 2 * trim < len(tensors):
        raise UsageError(
            "a trimmed mean needs more updates",
            got=f"trim {trim} of {len(tensors)} updates",
            expected=f"at least {2 * trim + 1}",
        )
    ordered = torch.stack([tensor.double() for tensor in tensors]).sort(dim=0).values
    return ordered[trim : len(tensors) - trim].mean(dim=0)
