"""Checks of products by secret vectors (spec/one-time-pads.md §5).

For the matrix M and a secret uniform v, w = M v is calculated once. A product y of q then has
y v = q w; a wrong one has it with probability 1/p for each vector.
"""

from __future__ import annotations

from typing import Final

import torch

from sealtrain.base.secret import Secret
from sealtrain.errors import UsageError
from sealtrain.keys.derive import derive
from sealtrain_together.errors import ProductAltered
from sealtrain_together.pads.field import dots, limbs, times_vectors, turn_columns
from sealtrain_together.pads.masks import MaskStream
from sealtrain_together.pads.matrix import Direction, PublicMatrix

CHECKS: Final = 2
"""Vectors by default. The second one takes 1 % of the wall time (``benchmarks/split.py``)."""
MAX_VECTORS: Final = 4


class Freivalds:
    """The secret vectors of every matrix and direction, and the checks with them.

    Args:
        secret: 32 bytes that only this guest has.
        vectors: For each matrix and direction, 1 to 4; a wrong product passes with 2**(-31 n).
    """

    def __init__(self, secret: Secret, vectors: int = CHECKS) -> None:
        if not 1 <= vectors <= MAX_VECTORS:
            raise UsageError(
                "a product is checked with 1 to 4 vectors",
                got=vectors,
                expected=f"1 to {MAX_VECTORS}",
            )
        self._secret = secret
        self._count = vectors
        self._kept: dict[tuple[bytes, Direction], tuple[torch.Tensor, torch.Tensor]] = {}

    def prepare(self, matrix: PublicMatrix) -> None:
        """Calculate v and w of a matrix before they are needed."""
        for direction in ("forward", "backward"):
            self.secret_vectors(matrix, direction)

    def check(
        self,
        matrix: PublicMatrix,
        direction: Direction,
        entries: torch.Tensor,
        result: torch.Tensor,
    ) -> torch.Tensor:
        """``result``, if it is ``entries`` times the matrix.

        Args:
            matrix: Multiplied with.
            direction: Which way.
            entries: int32 (t, n) in [-Q, Q], as they were before masking.
            result: Centred int32 (t, m), as it is used.

        Raises:
            ProductAltered: It is not.
        """
        vectors, images = self.secret_vectors(matrix, direction)
        off = times_vectors(result, vectors) != dots(entries, images)
        if bool(off.any()):
            raise ProductAltered(
                "a product of the accelerator is wrong",
                check=f"freivalds {direction}",
                got=f"{int(off.any(dim=1).sum())} of {off.shape[0]} rows altered",
                expected="exact products",
                hint="its machine or a dealer's is broken or hostile; train on another one",
            )
        return result

    def secret_vectors(
        self, matrix: PublicMatrix, direction: Direction
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Digits of v, and w = matrix times v, made when first used (spec/one-time-pads.md §5)."""
        name = (matrix.digest, direction)
        if name not in self._kept:
            key = derive(self._secret, "otp-check", matrix.digest.hex(), direction)
            stream = MaskStream(key, matrix.widths(direction)[1])
            digits = limbs(stream.rows(self._count).T)
            images = times_vectors(matrix.factor(direction), digits)
            self._kept[name] = digits, turn_columns(images)
        return self._kept[name]
