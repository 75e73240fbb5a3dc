"""Advantages, clipped losses and the weight of the divergence, token by token.

PPO's clipped objective and value loss (arXiv:1707.06347), generalised advantages (arXiv:1506.02438)
and the divergence from the reference (arXiv:1909.08593 §2.2). All tensors: (answers, tokens).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


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
        returns: The observed returns.
        clip: How far a value may move from its old one to count.
    """
    import torch

    bounded = old + (new - old).clamp(-clip, clip)
    return 0.5 * torch.maximum((new - returns) ** 2, (bounded - returns) ** 2)


def estimate_divergence(new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """Estimate of the divergence of the policy from the sampling policy, never negative."""
    ratio = new - old
    return ratio.exp() - 1 - ratio


MAX_ERROR = 0.2
"""Largest relative error that one correction takes into account."""


class DivergenceWeight:
    """Grows while answers diverge more than the target, shrinks while they diverge less.

    Attributes:
        coefficient: The weight now.
    """

    def __init__(self, coefficient: float, *, target: float | None, horizon: int) -> None:
        """Begin.

        Args:
            coefficient: Weight to begin with.
            target: Divergence of an answer in nats; ``None`` keeps the weight.
            horizon: Answers over which the weight follows.
        """
        self.coefficient = coefficient
        self._target = target
        self._horizon = horizon

    def correct(self, divergence: float, answers: int) -> None:
        """Adapt the weight to the divergence of a step's answers.

        Args:
            divergence: Their mean divergence in nats.
            answers: How many there were.
        """
        if self._target is None:
            return
        error = min(max(divergence / self._target - 1, -MAX_ERROR), MAX_ERROR)
        self.coefficient *= 1 + error * answers / self._horizon


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

    An answer's last token has no successor, whether the answer ended or was cut off.

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
    mean = average_masked(values, mask)
    variance = average_masked((values - mean) ** 2, mask)
    return (values - mean) * (variance + 1e-8).rsqrt() * mask


def average_masked(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean over all tokens of all answers, a scalar."""
    return (values * mask).sum() / mask.sum()
