"""Pads: masks and their products, from whichever supplier makes them (spec/one-time-pads.md §4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from sealtrain.base.secret import Secret
from sealtrain.keys.derive import derive
from sealtrain_together.pads.exact_products import ExactProduct
from sealtrain_together.pads.masks import Masks, OnePlace, draw_secret
from sealtrain_together.pads.matrix import Direction, PublicMatrix
from sealtrain_together.pads.prefetch import Prefetch
from sealtrain_together.pads.supplier import Supplier
from sealtrain_together.pads.tensors import Later

__all__ = ["InGuest", "Pad", "PadSupply", "Supplier"]

_SESSION_BYTES: Final = 16


@dataclass(frozen=True, slots=True, eq=False)
class Pad:
    """For one product. Centred int32.

    Attributes:
        mask: R, (t, n).
        product: Gives U = R M, (t, m).
    """

    mask: torch.Tensor
    product: Later


class InGuest:
    """The guest multiplies its masks itself. Trusts no other machine and saves no work.

    Args:
        exact: How it multiplies.
    """

    def __init__(self, exact: ExactProduct) -> None:
        self._exact = exact

    def begin(self) -> Secret:
        """As ``Supplier.begin``, any number of times: nothing is kept of it."""
        return draw_secret()

    def admit(self, matrix: PublicMatrix) -> None:
        """Nothing to learn: the matrix is given."""

    def product(
        self, matrix: PublicMatrix, direction: Direction, first: int, mask: torch.Tensor
    ) -> Later:
        """As ``Supplier.product``."""
        return lambda: self._exact.product(mask, matrix.factor(direction))


class PadSupply(OnePlace):
    """Pads of one beginning. Every row is given out once.

    Args:
        supplier: Makes the secret of the beginning, and the products.
        prefetch: Bytes of pads that may be made ahead of their use; 0 to make each when it is
            taken.

    Attributes:
        session: Name of the beginning, 32 hex digits: two beginnings of one secret have one name,
            and it says nothing of the secret.
    """

    def __init__(self, supplier: Supplier, *, prefetch: int = 0) -> None:
        secret = supplier.begin()
        self.session = derive(secret, "otp-session").reveal()[:_SESSION_BYTES].hex()
        self._masks = Masks(secret)
        self._supplier = supplier
        self._prefetch = Prefetch(self._masks, supplier, prefetch) if prefetch else None

    def close(self) -> None:
        """Make no pads ahead any more."""
        if self._prefetch is not None:
            self._prefetch.close()

    def admit(self, matrix: PublicMatrix) -> None:
        """Have the supplier know a matrix."""
        (self._prefetch or self._supplier).admit(matrix)

    def take(self, matrix: PublicMatrix, direction: Direction, rows: int) -> Pad:
        """A pad that was never given out. Its product may still be at work.

        Raises:
            PadsRefused: No pad is left, or this process may not have any.
        """
        if self._prefetch is not None:
            made, done = self._prefetch.take(matrix, direction, rows)
            return Pad(made, lambda: done)
        first, mask = self._masks.rows(matrix, direction, rows)
        return Pad(mask, self._supplier.product(matrix, direction, first, mask))
