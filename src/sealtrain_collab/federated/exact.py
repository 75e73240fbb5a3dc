"""Low-rank merging without the error of averaging factors apart.

An adapter adds ``B A`` to a weight. The weighted mean of parties' products is

    sum_i w_i B_i A_i  =  [w_1 B_1 … w_k B_k] [A_1; …; A_k]  =  L R

of rank k·r at most. Two QR factorisations leave a core of (k·r)², whose SVD gives the best
approximation of rank r; the product itself, as large as the weight, is never formed. The mean of
the ``B_i`` times the mean of the ``A_i`` is another matrix: it misses their covariance.

The rows of ``A`` keep the length they had before, and singular values go to ``B``. So a direction
that nobody used yet still learns (with values shared out evenly, both its factors would be zero,
and stay so), and the learning rate means what it meant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["factor_pairs", "merged_factors"]

_A, _B = ".lora_A.", ".lora_B."


def factor_pairs(names: Sequence[str]) -> list[tuple[str, str]]:
    """Names of A and B of every low-rank adapter among ``names``, in their order."""
    known = set(names)
    pairs = [(name, name.replace(_A, _B)) for name in names if _A in name]
    return [(left, right) for left, right in pairs if right in known]


def merged_factors(
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

    left = torch.cat([w * b.double() for (_, b), w in zip(factors, weights, strict=True)], dim=1)
    right = torch.cat([a.double() for a, _ in factors])
    basis_out, upper_out = torch.linalg.qr(left)
    basis_in, upper_in = torch.linalg.qr(right.T)
    core, sizes, turned = torch.linalg.svd(upper_out @ upper_in.T, full_matrices=False)
    rows, columns = turned[:rank] @ basis_in.T, (basis_out @ core * sizes)[:, :rank]
    # A layer narrower than the rank has fewer directions.
    rows = torch.nn.functional.pad(rows, (0, 0, 0, rank - len(rows)))
    columns = torch.nn.functional.pad(columns, (0, rank - columns.shape[1]))
    largest = rows.gather(1, rows.abs().argmax(dim=1, keepdim=True))
    signs = torch.where(largest < 0, -1.0, 1.0).to(rows)
    return rows * signs * row_length, columns * signs.T / row_length
