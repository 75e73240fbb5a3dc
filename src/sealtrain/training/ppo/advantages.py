"""From scores of whole answers to advantages of single tokens. All tensors: (answers, tokens)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["estimate_advantages", "masked_mean", "token_rewards", "whiten"]


def token_rewards(
    scores: torch.Tensor, log_ratio: torch.Tensor, mask: torch.Tensor, coefficient: float
) -> torch.Tensor:
    """Reward of each token: its divergence from the reference, and at the end the answer's score.

    Args:
        scores: Reward of each answer, float32 (answers,).
        log_ratio: Log probability under the policy less that under the reference.
        mask: 1 where an answer has a token; its tokens come first.
        coefficient: Weight of the divergence.
    """
    import torch

    rewards = -coefficient * log_ratio * mask
    last = mask.sum(1).long() - 1
    return rewards.index_put((torch.arange(len(scores), device=last.device), last), scores, True)


def estimate_advantages(
    rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, *, gamma: float, lam: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Generalised advantage estimation (arXiv:1506.02438), backwards through each answer.

    Nothing follows an answer's last token, whether it ended or was cut off.

    Args:
        rewards: Of each token.
        values: Expected before each token.
        mask: 1 where an answer has a token; its tokens come first.
        gamma: Discount, in (0, 1].
        lam: Weight of longer horizons, in [0, 1].

    Returns:
        Advantages, and returns (advantages + values); 0 outside the mask.
    """
    import torch

    values = values * mask
    advantages = torch.zeros_like(values)
    following = torch.zeros_like(values[:, 0])
    next_value = torch.zeros_like(following)
    for at in reversed(range(values.shape[1])):
        error = rewards[:, at] + gamma * next_value - values[:, at]
        following = (error + gamma * lam * following) * mask[:, at]
        advantages[:, at] = following
        next_value = values[:, at]
    return advantages, advantages + values


def whiten(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean 0 and variance 1 over all tokens of all answers; 0 outside the mask."""
    mean = masked_mean(values, mask)
    variance = masked_mean((values - mean) ** 2, mask)
    return (values - mean) * (variance + 1e-8).rsqrt() * mask


def masked_mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean over all tokens of all answers, a scalar."""
    return (values * mask).sum() / mask.sum()
