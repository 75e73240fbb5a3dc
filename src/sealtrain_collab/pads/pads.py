"""Pads: masks and their products, from whichever supplier makes them (spec/one-time-pads.md §4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from sealtrain.base.secret import Secret
from sealtrain_collab.pads.exact import ExactProduct
from sealtrain_collab.pads.masks import Masks, drawn_secret
from sealtrain_collab.pads.matrix import Direction, PublicMatrix
from sealtrain_collab.pads.tensors import Later

__all__ = ["InGuest", "Pad", "Pads", "Supplier"]


@dataclass(frozen=True, slots=True, eq=False)
class Pad:
    """For one product. Centred int32.

    Attributes:
        mask: R, (t, n).
        product: Gives U = R M, (t, m).
    """

    mask: torch.Tensor
    product: Later


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
            PadsRefused: There is none.
        """
        ...


class InGuest:
    """The guest multiplies its masks itself. Trusts no other machine and saves no work.

    Args:
        exact: How it multiplies.
    """

    def __init__(self, exact: ExactProduct) -> None:
        self._exact = exact

    def begin(self) -> Secret:
        """As ``Supplier.begin``, any number of times: nothing is kept of it."""
        return drawn_secret()

    def admit(self, matrix: PublicMatrix) -> None:
        """Nothing to learn: the matrix is given."""

    def product(
        self, matrix: PublicMatrix, direction: Direction, first: int, mask: torch.Tensor
    ) -> Later:
        """As ``Supplier.product``."""
        return lambda: self._exact.product(mask, matrix.factor(direction))


class Pads:
    """Pads of one beginning. Every row is given out once.

    Args:
        supplier: Makes the secret of the beginning, and the products.
    """

    def __init__(self, supplier: Supplier) -> None:
        self._masks = Masks(supplier.begin())
        self._supplier = supplier

    def admit(self, matrix: PublicMatrix) -> None:
        """Have the supplier know a matrix."""
        self._supplier.admit(matrix)

    def take(self, matrix: PublicMatrix, direction: Direction, rows: int) -> Pad:
        """A pad that was never given out. Its product may still be at work.

        Raises:
            PadsRefused: There is none left, or this process may not have any.
        """
        first, mask = self._masks.rows(matrix, direction, rows)
        return Pad(mask, self._supplier.product(matrix, direction, first, mask))
