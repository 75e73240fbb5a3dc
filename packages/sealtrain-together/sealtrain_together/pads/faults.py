"""An accelerator that lies once: to rehearse what a guest does then."""

from __future__ import annotations

from typing import Any

import torch

from sealtrain_together.pads.serving import Multiplier


class LyingMultiplier(Multiplier):
    """Adds one to one number of one product, and is honest before and after.

    Args:
        altered: Which product, 1 for the first.
        settings: As ``Multiplier``.
    """

    def __init__(self, altered: int, *settings: Any) -> None:
        super().__init__(*settings)
        self._until = altered

    def multiply(self, asked: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        """As ``Multiplier.multiply``, but for that one."""
        product = super().multiply(asked, factor)
        self._until -= 1
        if self._until == 0:
            product.view(-1)[0] += 1
        return product
