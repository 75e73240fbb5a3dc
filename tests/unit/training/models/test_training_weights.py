"""A checkpoint keeps what is trained, under the names the model has for it, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from carrying import carries
from collecting import COLLECTING

from sealtrain.sealing.errors import CheckpointRefused
from sealtrain.training.models.weights import load_weights, of_training, trainable_state

if not COLLECTING:
    import torch

    class Tied(torch.nn.Module):
        """Embedding and head are one frozen weight under two names; a small adapter is trained."""

        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(4, 2)
            self.head = torch.nn.Linear(2, 4, bias=False)
            self.head.weight = self.embed.weight
            self.embed.weight.requires_grad = False
            self.adapter = torch.nn.Linear(2, 2, bias=False)
            self.register_buffer("scale", torch.ones(1))
            self.register_buffer("passing", torch.ones(1), persistent=False)


def test_only_what_is_trained_and_persistent_buffers_are_kept() -> None:
    assert set(trainable_state(Tied())) == {"adapter.weight", "scale"}


def test_another_name_of_a_frozen_weight_is_not_taken_for_a_trained_one() -> None:
    model = Tied()
    gathered: dict[str, Any] = {"head.weight": torch.zeros(4, 2), **trainable_state(model)}
    kept = of_training(model, gathered)
    assert set(kept) == {"adapter.weight", "scale"}
    load_weights(model, kept)
    with pytest.raises(CheckpointRefused, check=carries(check="weights")):
        load_weights(model, gathered)
