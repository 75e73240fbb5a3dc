"""Products with a guest's matrices, as accelerator and dealer make them.

Matrices belong to the connection that brought them. Another one neither sees them nor has them
multiplied, and they are forgotten when it ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import torch

from sealtrain.base.byte_budget import ByteBudget
from sealtrain.errors import DataInvalid, LimitExceeded
from sealtrain_together.pads.exact_products import backend
from sealtrain_together.pads.matrix import Direction, PublicMatrix

MAX_MATRICES: Final = 1 << 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of an accelerator or a dealer.

    Attributes:
        matrix_bytes: Of the matrices of all connections together.
        connections: At a time; three quarters of them of one address.
        frame_seconds: For one frame to arrive or leave.
        idle_seconds: Between two requests.
    """

    matrix_bytes: int = 16 << 30
    connections: int = 16
    frame_seconds: float = 120.0
    idle_seconds: float = 3600.0


class Device:
    """Where products are made, and how.

    Args:
        name: ``cpu``, ``cuda``, ``cuda:1``.
        exact: Name of the back-end (``exact.backend``).

    Raises:
        UsageError: There is no such back-end, or it is wrong on this device.
    """

    def __init__(self, name: str, exact: str) -> None:
        self.name = name
        self._exact = backend(exact, name)

    @property
    def backend(self) -> str:
        """Name of the back-end that was chosen."""
        return self._exact.name

    def product(self, elements: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        """``elements`` times ``factor`` modulo p, back on the CPU.

        Args:
            elements: Centred int32, (t, n).
            factor: int8, (n, m), on this device.
        """
        return self._exact.product(elements.to(self.name), factor).cpu()


class Matrices:
    """What one connection brought. Use as a context: at its end the room is given back.

    Args:
        room: Of all connections.
        device: Where they are multiplied.
    """

    def __init__(self, room: ByteBudget, device: str) -> None:
        self._room, self._device = room, device
        self._taken = 0
        self._kept: dict[bytes, tuple[PublicMatrix, torch.Tensor]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._kept.clear()
        self._room.give(self._taken)
        self._taken = 0

    def reserve(self, size: int) -> None:
        """Have room for one matrix more.

        Raises:
            LimitExceeded: No room is left, or these are too many matrices.
        """
        if len(self._kept) >= MAX_MATRICES:
            raise LimitExceeded("too many matrices", expected=f"at most {MAX_MATRICES}")
        if not self._room.take(size):
            raise LimitExceeded("no room for another matrix", got=f"{size} bytes")
        self._taken += size

    def keep(self, values: torch.Tensor) -> bytes:
        """Know a matrix that room was reserved for; its digest."""
        matrix = PublicMatrix(values)
        if matrix.digest in self._kept:
            self._room.give(values.numel())
            self._taken -= values.numel()
        else:
            self._kept[matrix.digest] = matrix, values.to(self._device)
        return matrix.digest

    def find(self, digest: bytes) -> PublicMatrix:
        """A matrix of this connection.

        Raises:
            DataInvalid: It was not brought here.
        """
        return self._find(digest)[0]

    def factor(self, digest: bytes, direction: Direction) -> torch.Tensor:
        """M of a matrix of this connection, where it is multiplied. Raises as ``find``."""
        values = self._find(digest)[1]
        return values.T if direction == "forward" else values

    def _find(self, digest: bytes) -> tuple[PublicMatrix, torch.Tensor]:
        if digest not in self._kept:
            raise DataInvalid("this matrix was not brought here", got=digest.hex()[:16])
        return self._kept[digest]
