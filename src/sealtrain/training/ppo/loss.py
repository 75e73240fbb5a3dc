"""The clipped objective and the clipped value loss of PPO (arXiv:1707.06347), token by token."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["moved", "policy_losses", "value_losses"]


def policy_losses(
    new: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, *, clip: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss of each token, and where clipping decided it.

    Args:
        new: Log probabilities under the policy that learns.
        old: Under the policy that sampled.
        advantages: Of the same tokens.
        clip: How far the ratio of the two counts on either side of 1.

    Returns:
        Losses, and 1.0 where the clipped term is the larger one; shaped as ``new``.
    """
    import torch

    ratio = (new - old).exp()
    free = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip, 1 + clip)
    return torch.maximum(free, clipped), (clipped > free).float()


def value_losses(
    new: torch.Tensor, old: torch.Tensor, returns: torch.Tensor, *, clip: float
) -> torch.Tensor:
    """Half the squared error of each value, which must not improve by moving farther than ``clip``.

    Args:
        new: Values of the critic that learns.
        old: Of the critic when the answers were sampled.
        returns: What followed.
        clip: How far a value may move from its old one to count.
    """
    import torch

    bounded = old + (new - old).clamp(-clip, clip)
    return 0.5 * torch.maximum((new - returns) ** 2, (bounded - returns) ** 2)


def moved(new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """Estimate of the divergence of the policy from the one that sampled, never negative."""
    ratio = new - old
    return ratio.exp() - 1 - ratio
