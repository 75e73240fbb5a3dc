"""Rules that a few poisoned updates cannot move far, and the bound on a single one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sealtrain.errors import UsageError
from sealtrain_collab.federated.update import State, change_norm

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["bounded", "median", "trimmed_mean"]


def bounded(state: State, previous: State, max_norm: float) -> dict[str, Tensor]:
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
