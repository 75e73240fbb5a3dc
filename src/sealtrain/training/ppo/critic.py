"""A policy with a value head: a number for each token, from the state before its choice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from sealtrain.training.sampling import likelihood

if TYPE_CHECKING:
    from sealtrain.training.sampling import Batch

__all__ = ["Critic"]


class Critic(torch.nn.Module):
    """Policy and value head, trained together.

    Attributes:
        policy: A causal language model, with or without an adapter.
        value_head: Last hidden state → value. It begins at zero, so nothing has to be unlearned.
    """

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.policy = policy
        width = policy.config.get_text_config().hidden_size
        self.value_head = torch.nn.Linear(width, 1)
        torch.nn.init.zeros_(self.value_head.weight)
        torch.nn.init.zeros_(self.value_head.bias)

    def forward(
        self, batch: Batch, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Log probabilities, entropies and values of each token, float32 (answers, tokens)."""
        chances, entropies, states = likelihood(self.policy, batch, temperature, states=True)
        with torch.autocast(batch.ids.device.type, enabled=False):
            values = self.value_head(states.float()).squeeze(-1)
        return chances, entropies, values
