"""Tensors of a collective by rank, as PyTorch's callers hand them over: a list, or one to be cut.

Shapes are the caller's own: what does not fit is refused before anything is sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from sealtrain.errors import UsageError
from sealtrain_nodes.wire.tensors import Flat


class TensorParts:
    """One tensor for each rank, or one tensor that is cut into equal parts for the ranks."""

    def __init__(self, tensors: list[torch.Tensor], *, whole: bool = False) -> None:
        self.tensors = tensors
        self._whole = whole

    def require(self, part: torch.Tensor, count: int) -> None:
        """Refuse tensors that are not ``count`` times the part.

        Raises:
            UsageError: They are more, fewer, larger, smaller or of another type.
        """
        if self._whole:
            (tensor,) = self.tensors
            if tensor.numel() != part.numel() * count or tensor.dtype != part.dtype:
                raise _refuse_uneven(tensor.numel(), count)
            return
        require_count(len(self.tensors), count)
        for tensor in self.tensors:
            require_size(tensor, part)

    def views(self, rows: Iterator[Flat], count: int) -> list[memoryview]:
        """Bytes of the parts by rank; takes the rows of these tensors."""
        if not self._whole:
            return [next(rows).bytes for _ in self.tensors]
        row = next(rows)
        step = row.length // count
        return [row.part(rank * step, (rank + 1) * step) for rank in range(count)]


def all_of(parts: Sequence[TensorParts]) -> list[torch.Tensor]:
    """The tensors of all parts, in the order in which ``TensorParts.views`` takes their rows."""
    return [tensor for each in parts for tensor in each.tensors]


def split(tensor: torch.Tensor, sizes: Sequence[int], count: int) -> list[torch.Tensor]:
    """Parts of a tensor along its first dimension, equal ones where no sizes are named."""
    rows = len(tensor)
    if not sizes and rows % count:
        raise _refuse_uneven(rows, count)
    wanted = list(sizes) or [rows // count] * count
    if sum(wanted) != rows or len(wanted) != count:
        raise _refuse_uneven(rows, count)
    return list(torch.split(tensor, wanted))


def require_count(got: int, expected: int) -> None:
    """Refuse another number of tensors than there are ranks. Raises ``UsageError``."""
    if got != expected:
        raise UsageError(
            "a collective needs one tensor for each rank",
            check="shape",
            got=got,
            expected=expected,
        )


def require_size(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Refuse a tensor of another size or type. Raises ``UsageError``."""
    if got.numel() != expected.numel() or got.dtype != expected.dtype:
        raise UsageError(
            "tensors of a collective differ in size or type",
            check="shape",
            got=f"{got.numel()} of {got.dtype}",
            expected=f"{expected.numel()} of {expected.dtype}",
        )


def _refuse_uneven(got: int, count: int) -> UsageError:
    return UsageError(
        "a tensor does not divide into the parts of all ranks",
        check="shape",
        got=got,
        expected=f"a multiple of {count}, or the sizes of {count} parts",
    )
