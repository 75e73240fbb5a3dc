"""Masks in floating point, which protect nothing: a baseline to measure and to break.

What some descriptions call a one-time pad is noise added to activations: C = X + R, R Gaussian.
A sum of numbers without a modulus keeps what it hides. One mask lets through up to
log2(1 + 1/k**2) / 2 bits of an entry, k = std(R) / std(X); embeddings of a token come again and
again, and the mean of many masked ones is the embedding. A larger k loses the result to rounding
before it hides anything. ``tests/attack/test_insecure_float_mask.py`` does it; never use this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

__all__ = ["InsecureFloatMaskLinear", "Multiply"]

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
    """Stands where a frozen ``nn.Linear`` stood; its inputs and gradients leave under float masks.

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
