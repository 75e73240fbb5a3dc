"""The interface of what makes the products of pads (spec/one-time-pads.md §4)."""

from __future__ import annotations

from typing import Protocol

import torch

from sealtrain.base.secret import Secret
from sealtrain_together.pads.matrix import Direction, PublicMatrix
from sealtrain_together.pads.tensors import Later


class Supplier(Protocol):
    """The source of U. Its answer is checked together with the product."""

    def begin(self) -> Secret:
        """The pad secret of a beginning: new, and for this one alone. Called once.

        Raises:
            UsageError: Called before.
        """
        ...

    def admit(self, matrix: PublicMatrix) -> None:
        """Learn a matrix."""
        ...

    def product(
        self, matrix: PublicMatrix, direction: Direction, first: int, mask: torch.Tensor
    ) -> Later:
        """Ask for U of the rows of ``mask``, which are those from ``first`` on in their stream.

        Raises:
            PadsRefused: No product of these rows can be had.
        """
        ...
