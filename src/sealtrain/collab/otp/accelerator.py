"""The untrusted side of a product, and how a guest reaches it.

It is given public matrices and uniform numbers. Whatever it answers is opened and checked.
"""

from __future__ import annotations

from typing import Protocol

from sealtrain.collab.otp import wire
from sealtrain.collab.otp.exact import ExactProduct
from sealtrain.collab.otp.matrix import Direction, PublicMatrix
from sealtrain.collab.otp.wire import Later
from sealtrain.errors import AcceleratorUnreachable, DataInvalid, ProductAltered
from sealtrain.training import quiet

quiet.silence()

import torch  # noqa: E402  # after silence()

__all__ = ["Accelerator", "LocalAccelerator", "RemoteAccelerator", "bring_matrix"]


class Accelerator(Protocol):
    """Who multiplies."""

    def admit(self, matrix: PublicMatrix) -> None:
        """Have it know a matrix."""
        ...

    def product(self, matrix: PublicMatrix, direction: Direction, elements: torch.Tensor) -> Later:
        """Ask for ``elements`` times the matrix modulo p.

        Args:
            matrix: Admitted before.
            direction: Which way.
            elements: Centred int32, (t, n), t at least 1.

        Returns:
            Gives the answer: int32 (t, m), any numbers.
        """
        ...


class LocalAccelerator:
    """Multiplies in this process, where no other machine is: for tests and measurements.

    Args:
        exact: How.
    """

    def __init__(self, exact: ExactProduct) -> None:
        self._exact = exact

    def admit(self, matrix: PublicMatrix) -> None:
        """Nothing to do."""

    def product(self, matrix: PublicMatrix, direction: Direction, elements: torch.Tensor) -> Later:
        """As ``Accelerator.product``."""
        return lambda: self._exact.product(elements, matrix.factor(direction))


class RemoteAccelerator:
    """A server of ``serving``, over TCP.

    Args:
        host: Name or address.
        port: Where it listens.
        seconds: For each answer.

    Raises:
        AcceleratorUnreachable: Nothing listens there.
    """

    def __init__(self, host: str, port: int, *, seconds: float = 120.0) -> None:
        self._channel = wire.connected(host, port, seconds=seconds)
        self._known: set[bytes] = set()

    def close(self) -> None:
        """End the connection."""
        self._channel.close()

    def admit(self, matrix: PublicMatrix) -> None:
        """As ``Accelerator.admit``. A matrix travels once.

        Raises:
            AcceleratorUnreachable: No answer.
            ProductAltered: It took the matrix for another one.
        """
        if matrix.digest not in self._known:
            bring_matrix(self._channel, matrix)
            self._known.add(matrix.digest)

    def product(self, matrix: PublicMatrix, direction: Direction, elements: torch.Tensor) -> Later:
        """As ``Accelerator.product``.

        Raises:
            AcceleratorUnreachable: No answer, or one of another shape. So may the answer.
        """
        widths = matrix.widths(direction)

        def body(part: slice) -> tuple[bytes, memoryview]:
            asked = wire.asked_product(matrix.digest, direction, part.stop - part.start)
            return asked, wire.octets(elements[part])

        def read(answer: bytearray, part: slice) -> torch.Tensor:
            try:
                return wire.elements(answer, part.stop - part.start, widths[1])
            except DataInvalid as error:
                raise AcceleratorUnreachable(
                    "the accelerator answered with a product of another shape",
                    got=error.got,
                    expected=error.expected,
                ) from error

        parts = wire.row_parts(elements.shape[0], widths)
        return wire.asked_in_parts(self._channel, wire.PRODUCT, parts, body, read)


def bring_matrix(channel: wire.Channel, matrix: PublicMatrix) -> None:
    """Send a matrix to an accelerator or dealer.

    Raises:
        AcceleratorUnreachable: No answer.
        ProductAltered: It took the matrix for another one.
    """
    answer = channel.ask(wire.MATRIX, *wire.described_matrix(matrix.values))
    if bytes(answer) != matrix.digest:
        raise ProductAltered(
            "who multiplies took a matrix for another one",
            check="matrix digest",
            got=bytes(answer[:32]).hex(),
            expected=matrix.digest.hex(),
        )
