"""Tensors as bytes to send and to fill, and their reductions in one thread.

NumPy reduces where it knows the type: it works in the calling thread and lets go of the
interpreter's lock. PyTorch reduces the other types, in slices below the size from which it would
start threads of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import torch

from sealtrain.errors import UsageError
from sealtrain_nodes.wire.staging import Staging

Array = Any
"""A flat array of NumPy's, or a flat tensor: both are sliced alike."""

_GRAIN: Final = 32_768
"""Elements up to which PyTorch works in the calling thread alone."""

_NUMPY: Final[dict[torch.dtype, Any]] = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.int8: np.int8,
    torch.int16: np.int16,
    torch.int32: np.int32,
    torch.int64: np.int64,
    torch.uint8: np.uint8,
    torch.bool: np.bool_,
}
_OPERATIONS: Final[dict[str, tuple[Any, Any]]] = {
    "SUM": (np.add, torch.add),
    "AVG": (np.add, torch.add),
    "PRODUCT": (np.multiply, torch.mul),
    "MIN": (np.minimum, torch.minimum),
    "MAX": (np.maximum, torch.maximum),
    "BAND": (np.bitwise_and, torch.bitwise_and),
    "BOR": (np.bitwise_or, torch.bitwise_or),
    "BXOR": (np.bitwise_xor, torch.bitwise_xor),
}


class Flat:
    """A tensor's elements in a row of host memory.

    A tensor of another device, or one that is not contiguous, is copied, and back.

    Args:
        tensor: A dense one.
        staging: How it comes to host memory. ``bytes`` and ``array`` hold the elements once the
            staging's block has ended.
    """

    def __init__(self, tensor: torch.Tensor, staging: Staging) -> None:
        self._tensor = tensor.detach()
        self._staging = staging
        row = staging.in_host(self._tensor)
        self.row = row
        self.dtype = row.dtype
        self.length = row.numel()
        self.item = row.element_size()
        self._copied = row.data_ptr() != tensor.data_ptr()
        self.bytes = row.view(torch.uint8).numpy().data if self.length else memoryview(b"")
        self.array: Array = (
            row.view(torch.uint8).numpy().view(_NUMPY[row.dtype])
            if row.dtype in _NUMPY and self.length
            else row
        )

    def part(self, start: int, stop: int) -> memoryview:
        """Bytes of the elements from ``start`` to ``stop``."""
        return self.bytes[start * self.item : stop * self.item]

    def restore(self) -> None:
        """Write the elements back where they came from, if they were copied."""
        if self._copied and self.length:
            self._staging.back(self.row, self._tensor)


class Reduction:
    """An operation on two arrays of one type, and what is done at the end."""

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        self.name = name
        self._numpy = dtype in _NUMPY
        self._dtype = dtype
        of_numpy, of_torch = _OPERATIONS[name]
        self._apply: Callable[..., Any] = of_numpy if self._numpy else of_torch

    def typed(self, buffer: np.ndarray[Any, np.dtype[np.uint8]], length: int) -> Array:
        """The first ``length`` elements of a buffer."""
        if self._numpy:
            return buffer.view(_NUMPY[self._dtype])[:length]
        return torch.from_numpy(buffer).view(self._dtype)[:length]

    def into(self, target: Array, other: Array) -> None:
        """Reduce two arrays into the first."""
        if self._numpy:
            with np.errstate(all="ignore"):  # an overflow is the training's own affair
                self._apply(target, other, out=target)
            return
        for start in range(0, len(target), _GRAIN):
            part = target[start : start + _GRAIN]
            self._apply(part, other[start : start + _GRAIN], out=part)

    def in_order(self, own: Array, before: Sequence[Array], after: Sequence[Array]) -> None:
        """Reduce in the order of ranks, into ``own``; what comes before it may be overwritten."""
        if before:
            first = before[0]
            for other in before[1:]:
                self.into(first, other)
            self.into(own, first)
        for other in after:
            self.into(own, other)

    def last(self, target: Array, world: int) -> None:
        """What is done to the result."""
        if self.name == "AVG":
            target /= world


def reduction_of(op: Any, dtype: torch.dtype) -> Reduction:
    """The reduction that PyTorch names.

    Args:
        op: ``ReduceOp``, or what options hold.
        dtype: Of the tensors.

    Raises:
        UsageError: No such reduction for this type.
    """
    found = getattr(op, "op", op)
    name = str(getattr(found, "name", found)).rpartition(".")[2]
    fits = name in _OPERATIONS and not (
        (name == "AVG" and not (dtype.is_floating_point or dtype.is_complex))
        or (name.startswith("B") and (dtype.is_floating_point or dtype.is_complex))
        or (name in ("MIN", "MAX") and dtype.is_complex)
    )
    if not fits:
        raise UsageError(
            "the group has no such reduction",
            check="reduction",
            got=f"{name} of {str(dtype).removeprefix('torch.')}",
            expected=", ".join(sorted(_OPERATIONS)),
        )
    return Reduction(name, dtype)


def in_order(rows: Sequence[torch.Tensor], name: str) -> torch.Tensor:
    """Reduce rows of one device into the first, in their order."""
    apply = _OPERATIONS[name][1]
    first, *others = rows
    for other in others:
        apply(first, other, out=first)
    return first


def require_plain(tensors: Sequence[torch.Tensor]) -> None:
    """Refuse tensors that the group cannot send.

    Raises:
        UsageError: One is sparse or quantized.
    """
    for tensor in tensors:
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise UsageError(
                "the group sends dense tensors only",
                check="tensor",
                got=f"{tensor.layout}{', quantized' if tensor.is_quantized else ''}",
                expected="torch.strided",
            )
