"""A mask in floating point is read through; a pad in the field is not, by the same reader.

What some descriptions call a one-time pad is noise added to activations: C = X + R, R Gaussian.
A sum of numbers without a modulus keeps what it hides. One mask lets through up to
log2(1 + 1/k**2) / 2 bits of an entry, k = std(R) / std(X); embeddings of a token come again and
again, and the mean of many masked ones is the embedding. A larger k loses the result to rounding
before it hides anything. Never use this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from collecting import COLLECTING

if not COLLECTING:
    import torch
    from pads_world import Watched
    from torch import nn

    from sealtrain_together.pads.engine import UnderPads
    from sealtrain_together.pads.linear import PadsLinear, Stack

    Multiply = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    """The other side: given what is masked and the weights on the right, their product."""

    class _InsecureProduct(torch.autograd.Function):
        """X W^T and dY W, each under a Gaussian mask."""

        @staticmethod
        def forward(ctx: Any, inputs: torch.Tensor, layer: InsecureFloatMaskLinear) -> torch.Tensor:
            ctx.layer = layer
            return layer.masked(inputs, layer.weight.T)

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
            return ctx.layer.masked(gradients[0], ctx.layer.weight), None

    class InsecureFloatMaskLinear(nn.Module):
        """Stands where a frozen ``nn.Linear`` stood; inputs and gradients leave under float masks.

        Args:
            layer: The layer.
            sigma: Standard deviation of masks, as a multiple of that of what they mask.
            multiply: The other side.
        """

        def __init__(self, layer: nn.Linear, sigma: float, multiply: Multiply) -> None:
            super().__init__()
            self.weight = nn.Parameter(layer.weight.detach(), requires_grad=False)
            self.bias = layer.bias
            self._sigma, self._multiply = sigma, multiply

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            """As ``nn.Linear``, but for rounding."""
            outputs: torch.Tensor = _InsecureProduct.apply(inputs, self)  # type: ignore[no-untyped-call]
            return outputs if self.bias is None else outputs + self.bias

        def masked(self, secret: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
            """``secret @ factor``, made by the other side under a mask that is taken off again."""
            mask = torch.randn_like(secret) * (self._sigma * secret.std())
            return self._multiply(secret + mask, factor) - mask @ factor


WORDS, WIDTH = 256, 48
CHANCE = 1 / WORDS


class Listener:
    """Multiplies honestly and keeps what it got."""

    def __init__(self) -> None:
        self.heard: list[torch.Tensor] = []

    def __call__(self, masked: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        self.heard.append(masked)
        return masked @ factor


@pytest.fixture
def words() -> torch.Tensor:
    """Embeddings of a public base model."""
    torch.manual_seed(1)
    return torch.randn(WORDS, WIDTH)


def read(heard: torch.Tensor, words: torch.Tensor) -> float:
    """Share of a text's words that their mean over all calls gives away."""
    found = torch.cdist(heard, words).argmin(dim=1)
    return float((found == torch.arange(WORDS)).double().mean())


def told(words: torch.Tensor, sigma: float, times: int) -> float:
    listener = Listener()
    layer = InsecureFloatMaskLinear(nn.Linear(WIDTH, 8), sigma, listener)
    for _ in range(times):
        layer(words)
    return read(torch.stack(listener.heard).mean(dim=0), words)


@pytest.mark.claim("C60")
def test_text_is_read_through_float_masks_and_not_through_pads(words: torch.Tensor) -> None:
    assert told(words, 1.0, 1) > 0.9  # at once
    assert told(words, 10.0, 1) < 0.1  # seems hidden
    assert told(words, 10.0, 200) > 0.95  # until the same words came again
    accelerator = Watched()
    layer = nn.Linear(WIDTH, 8)
    layer.weight.requires_grad_(False)
    under_pads = PadsLinear(Stack([layer.weight], UnderPads(accelerator)), 0, layer)
    for _ in range(200):
        under_pads(words)
    heard = torch.stack(accelerator.seen).double().mean(dim=0).float()
    assert read(heard / heard.std(), words) < 10 * CHANCE


def test_a_float_mask_that_would_hide_more_loses_the_result(words: torch.Tensor) -> None:
    layer = nn.Linear(WIDTH, 8, bias=False)
    right = words @ layer.weight.detach().T

    def error(sigma: float) -> float:
        masked = InsecureFloatMaskLinear(layer, sigma, Listener())(words).detach()
        return float((masked - right).norm() / right.norm())

    assert error(1e6) > 1e-2 > 1e-5 > error(1.0)
    assert told(words, 1e3, 1) < 10 * CHANCE


def test_its_gradients_are_those_of_the_layer_but_for_rounding(words: torch.Tensor) -> None:
    layer, inputs = nn.Linear(WIDTH, 8), words[:4].clone().requires_grad_()
    masked = InsecureFloatMaskLinear(layer, 3.0, Listener())
    (mine,) = torch.autograd.grad(masked(inputs).square().sum(), inputs)
    (right,) = torch.autograd.grad(layer(inputs).square().sum(), inputs)
    assert torch.allclose(mine, right, atol=1e-4)
