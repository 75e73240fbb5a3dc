"""How a guest reaches the untrusted side of a product.

It is given public matrices and uniform numbers. Whatever it answers is opened and checked.
"""

from __future__ import annotations

import socket
from typing import Protocol

import torch

from sealtrain.base.hostport import write_host_and_port
from sealtrain.base.visible_text import escape_hidden
from sealtrain.errors import AcceleratorUnreachable, DataInvalid
from sealtrain_together.errors import ProductAltered
from sealtrain_together.pads import wire
from sealtrain_together.pads.connections import (
    SECONDS,
    accelerator_gone,
    accelerator_reached,
    reach_accelerator,
)
from sealtrain_together.pads.field import HALF
from sealtrain_together.pads.matrix import Direction, PublicMatrix
from sealtrain_together.pads.tensors import Later, elements, octets


class Accelerator(Protocol):
    """A machine that multiplies."""

    def admit(self, matrix: PublicMatrix) -> None:
        """Have it know a matrix."""
        ...

    def product(self, matrix: PublicMatrix, direction: Direction, elements: torch.Tensor) -> Later:
        """Ask for ``elements`` times the matrix modulo p. Several may be asked for ahead.

        Answers are taken in the order of the requests.

        Args:
            matrix: Admitted before.
            direction: Which way.
            elements: Centred int32, (t, n), t at least 1; they and the answer fit a message each.

        Returns:
            Gives the answer, int32 (t, m); ``expect_elements`` checks it before it is opened.
        """
        ...


class ConnectedAccelerator:
    """A server of ``serving``, at the other end of a connection.

    Args:
        connection: Over TCP. Closed by ``close``.
        place: Name of it, for errors.
        seconds: For each answer.
    """

    def __init__(self, connection: socket.socket, place: str, *, seconds: float = SECONDS) -> None:
        self._place = place
        self._frames = wire.Frames(connection, seconds=seconds, early=wire.MAX_FRAME)
        self._known: set[bytes] = set()

    def close(self) -> None:
        """End the connection."""
        self._frames.close()

    def admit(self, matrix: PublicMatrix) -> None:
        """As ``Accelerator.admit``. A matrix travels once.

        Raises:
            AcceleratorUnreachable: No answer.
            ProductAltered: It took the matrix for another one.
        """
        if matrix.digest in self._known:
            return
        self._ask(wire.MATRIX, *wire.describe_matrix(matrix.values))
        expect_digest(matrix, bytes(self._answer(wire.MATRIX)), of="accelerator")
        self._known.add(matrix.digest)

    def product(self, matrix: PublicMatrix, direction: Direction, elements: torch.Tensor) -> Later:
        """As ``Accelerator.product``.

        Raises:
            AcceleratorUnreachable: No answer, or one of another shape. So may the answer.
        """
        rows, columns = elements.shape[0], matrix.widths(direction)[1]
        self._ask(
            wire.PRODUCT, wire.describe_product(matrix.digest, direction, rows), octets(elements)
        )
        return lambda: self._product(rows, columns)

    def _product(self, rows: int, columns: int) -> torch.Tensor:
        try:
            return elements(self._answer(wire.PRODUCT), rows, columns)
        except DataInvalid as error:
            raise AcceleratorUnreachable(
                "the accelerator answered with a product of another shape",
                got=error.got,
                expected=error.expected,
            ) from error

    def _ask(self, kind: int, *parts: bytes | memoryview) -> None:
        with accelerator_reached(self._place):
            self._frames.send(kind, *parts)

    def _answer(self, kind: int) -> memoryview:
        with accelerator_reached(self._place):
            received = self._frames.receive()
        if received is None:
            raise accelerator_gone("the accelerator ended the connection", self._place)
        answered, body = received
        if answered == wire.REFUSED:
            raise accelerator_gone("the accelerator refused a request", _printable(body))
        if answered != kind | wire.ANSWER:
            raise accelerator_gone(
                "the accelerator does not keep to the protocol", f"frame {answered:#04x}"
            )
        return body


class RemoteAccelerator(ConnectedAccelerator):
    """A server of ``serving`` that this process connects to.

    Args:
        host: Name or address.
        port: Where it listens.
        seconds: For each answer.

    Raises:
        AcceleratorUnreachable: Nothing listens there.
    """

    def __init__(self, host: str, port: int, *, seconds: float = SECONDS) -> None:
        connection = reach_accelerator((host, port), seconds=seconds)
        super().__init__(connection, write_host_and_port(host, port), seconds=seconds)


def _printable(body: memoryview) -> str:
    """Text of an untrusted machine, cut, without control characters."""
    return escape_hidden(bytes(body[: wire.MAX_REFUSAL]).decode("utf-8", "replace"), 200)


def expect_digest(matrix: PublicMatrix, digest: bytes, *, of: str) -> None:
    """See that a machine knows a matrix by the digest that it has here.

    Raises:
        ProductAltered: It took the matrix for another one.
    """
    if digest != matrix.digest:
        raise ProductAltered(
            f"the {of} took a matrix for another one",
            check="matrix digest",
            got=digest[:32].hex(),
            expected=matrix.digest.hex(),
        )


def expect_elements(values: object, like: torch.Tensor, *, of: str) -> torch.Tensor:
    """See that another machine's numbers have the one form that an element has.

    To be called before anything secret meets them. Then whether an answer is refused, and when,
    depends on that machine's own numbers and on the secret vectors of the check, never on data
    (spec/one-time-pads.md §4).

    Args:
        values: As they came.
        like: int32, of the shape that was asked for.
        of: Machine that sent them.

    Returns:
        ``values``.

    Raises:
        ProductAltered: They are no int32 tensor of this shape, or not all centred.
    """
    if not isinstance(values, torch.Tensor) or (
        (values.dtype, values.shape, values.device, values.layout)
        != (torch.int32, like.shape, like.device, torch.strided)
    ):
        raise _refuse_malformed(of, got="another type or shape")
    least, most = values.aminmax()
    if int(least) < -HALF or int(most) > HALF:
        beyond = ((values < -HALF) | (values > HALF)).any(dim=1)
        raise _refuse_malformed(of, got=f"{int(beyond.sum())} of {len(values)} rows altered")
    return values


def _refuse_malformed(of: str, *, got: str) -> ProductAltered:
    return ProductAltered(
        f"numbers of the {of} are no elements of the field",
        check="elements",
        got=got,
        expected="int32 as asked for, each in [-(p - 1) / 2, (p - 1) / 2]",
        hint="its machine is broken or hostile; train on another one",
    )
