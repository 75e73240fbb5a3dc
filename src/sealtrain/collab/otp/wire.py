"""Frames between a guest and who multiplies for it (spec/one-time-pads.md §6).

``u8 kind | u32 length | body``. Nothing rests on this channel; everything in it is bounded: the
length of a frame, the time of a wait, the text of a refusal.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from sealtrain.base.printable import printable
from sealtrain.collab.otp.matrix import DIRECTIONS, MAX_SIDE, Direction
from sealtrain.errors import AcceleratorUnreachable, DataInvalid, LimitExceeded
from sealtrain.training import quiet

quiet.silence()

import torch  # noqa: E402  # after silence()

__all__ = [
    "ANSWER",
    "BEGIN",
    "MATRIX",
    "MAX_FRAME",
    "MAX_ROWS",
    "PADS",
    "PRODUCT",
    "REFUSED",
    "SESSION_BYTES",
    "Channel",
    "Later",
    "asked_in_parts",
    "asked_pads",
    "asked_product",
    "connected",
    "described_matrix",
    "elements",
    "matrix_of",
    "octets",
    "read_pads",
    "read_product",
    "row_parts",
]

MATRIX: Final = 0x01
PRODUCT: Final = 0x02
BEGIN: Final = 0x03
PADS: Final = 0x04
ANSWER: Final = 0x80
REFUSED: Final = 0xFF
MAX_FRAME: Final = 1 << 28
MAX_ROWS: Final = 1 << 20
MAX_REFUSAL: Final = 1024
SESSION_BYTES: Final = 16

_FRAME: Final = struct.Struct(">BI")
_SIDES: Final = struct.Struct(">II")
_PRODUCT: Final = struct.Struct(">32sII")
_PADS: Final = struct.Struct(">32sIQI")
_PART: Final = 1 << 20
_BESIDE: Final = 64


Later = Callable[[], torch.Tensor]
"""Rows that somebody is at work on."""


class Channel:
    """One side of a connection.

    Args:
        connection: Connected. Closed by ``close``.
        seconds: For one frame to arrive or leave.
    """

    def __init__(self, connection: socket.socket, *, seconds: float) -> None:
        self._connection = connection
        self._seconds = seconds
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def send(self, kind: int, *parts: bytes | memoryview) -> None:
        """One frame of that kind whose body is the parts.

        Raises:
            AcceleratorUnreachable: It was not taken in time.
            LimitExceeded: It is too long.
        """
        length = sum(len(part) for part in parts)
        if length > MAX_FRAME:
            raise LimitExceeded(
                "a product is too large for one frame",
                got=f"{length} bytes",
                expected=f"at most {MAX_FRAME}",
                hint="train with smaller batches or shorter sequences",
            )
        until = time.monotonic() + self._seconds
        for part in (_FRAME.pack(kind, length), *parts):
            view = memoryview(part)
            while view:
                view = view[self._within(until, partial(self._connection.send, view[:_PART])) :]

    def receive(self, *, idle_seconds: float | None = None) -> tuple[int, bytearray]:
        """Kind and body of the next frame.

        Args:
            idle_seconds: How long it may take to begin; as long as a frame when ``None``.

        Raises:
            AcceleratorUnreachable: It did not come in time, or the other side went.
            LimitExceeded: It is too long.
        """
        idle = self._seconds if idle_seconds is None else idle_seconds
        head = self._read(_FRAME.size, time.monotonic() + idle)
        kind, length = _FRAME.unpack(head)
        if length > MAX_FRAME:
            raise LimitExceeded(
                "a frame is too long", got=f"{length} bytes", expected=f"at most {MAX_FRAME}"
            )
        return kind, self._read(length, time.monotonic() + self._seconds)

    def ask(self, kind: int, *parts: bytes | memoryview) -> bytearray:
        """Body of the answer to a request.

        Raises:
            AcceleratorUnreachable: There was none, or it was a refusal.
        """
        self.send(kind, *parts)
        return self.answer(kind)

    def answer(self, kind: int) -> bytearray:
        """Body of the answer to a request that was sent. Raises as ``ask``."""
        answered, body = self.receive()
        if answered == REFUSED:
            raise AcceleratorUnreachable(
                "who multiplies refused", got=_printable(body), expected="an answer"
            )
        if answered != kind | ANSWER:
            raise AcceleratorUnreachable(
                "who multiplies does not keep to the protocol",
                got=f"frame {answered:#04x}",
                expected=f"frame {kind | ANSWER:#04x}",
            )
        return body

    def _read(self, size: int, until: float) -> bytearray:
        buffer = bytearray(size)
        view = memoryview(buffer)
        while view:
            size = min(_PART, len(view))
            read = self._within(until, partial(self._connection.recv_into, view, size))
            if read == 0:
                raise AcceleratorUnreachable("the other side closed the connection")
            view = view[read:]
        return buffer

    def _within(self, until: float, call: Callable[[], int]) -> int:
        left = until - time.monotonic()
        late = AcceleratorUnreachable(
            "who multiplies, or who asks, did not answer in time", hint="see whether it runs"
        )
        if left <= 0:
            raise late
        try:
            self._connection.settimeout(left)
            return call()
        except TimeoutError as error:
            raise late from error
        except OSError as error:
            raise AcceleratorUnreachable(
                f"the connection broke: {error.strerror}", hint="see whether it runs"
            ) from error


def asked_in_parts(
    channel: Channel,
    kind: int,
    parts: list[slice],
    body: Callable[[slice], tuple[bytes | memoryview, ...]],
    read: Callable[[bytearray, slice], torch.Tensor],
) -> Later:
    """Ask for rows, and have them later: meanwhile this side can do something else.

    The second request leaves only when the first is answered: two sides that both send, and read
    only afterwards, wait for each other.

    Args:
        channel: To whom.
        kind: Of request.
        parts: Rows of each request (``row_parts``).
        body: Makes a request's body.
        read: Takes the rows out of an answer.
    """
    channel.send(kind, *body(parts[0]))

    def later() -> torch.Tensor:
        found = []
        for number, part in enumerate(parts):
            if number:
                channel.send(kind, *body(part))
            found.append(read(channel.answer(kind), part))
        return found[0] if len(found) == 1 else torch.cat(found)

    return later


def connected(host: str, port: int, *, seconds: float) -> Channel:
    """A channel to a server.

    Raises:
        AcceleratorUnreachable: Nothing listens there.
    """
    try:
        return Channel(socket.create_connection((host, port), timeout=seconds), seconds=seconds)
    except OSError as error:
        raise AcceleratorUnreachable(
            "nothing answers where an accelerator or dealer should",
            got=f"{host}:{port}",
            hint="start it, or correct the address",
        ) from error


# --- Bodies -------------------------------------------------------------------------------------


def octets(values: torch.Tensor) -> memoryview:
    """Bytes of an int8 or int32 tensor as they travel."""
    return memoryview(values.contiguous().numpy().reshape(-1).view("uint8").data)


def elements(body: bytearray, rows: int, columns: int, *, offset: int = 0) -> torch.Tensor:
    """int32 (rows, columns) from the bytes behind ``offset``.

    Raises:
        DataInvalid: They are of another length.
    """
    if len(body) - offset != 4 * rows * columns:
        raise DataInvalid(
            "a body has the wrong length",
            got=f"{len(body) - offset} bytes",
            expected=f"{4 * rows * columns} for {rows} rows of {columns}",
        )
    if rows * columns == 0:
        return torch.empty(rows, columns, dtype=torch.int32)
    return torch.frombuffer(body, dtype=torch.int32, offset=offset).view(rows, columns)


def row_parts(rows: int, widths: tuple[int, int]) -> list[slice]:
    """Runs of rows whose request and answer fit a frame each.

    Args:
        rows: All of them.
        widths: Columns of what goes in and of what comes out.
    """
    fitting = min(MAX_ROWS, (MAX_FRAME - _BESIDE) // (4 * max(widths)))
    return [slice(begin, min(rows, begin + fitting)) for begin in range(0, rows, fitting)]


def described_matrix(values: torch.Tensor) -> tuple[bytes, memoryview]:
    """Body that brings a matrix."""
    return _SIDES.pack(*values.shape), octets(values)


def matrix_of(body: bytearray) -> torch.Tensor:
    """The matrix that a body brings.

    Raises:
        DataInvalid: It is none.
    """
    outputs, inputs = _unpacked(_SIDES, body)
    if not (1 <= outputs <= MAX_SIDE and 1 <= inputs <= MAX_SIDE):
        raise DataInvalid("a matrix has impossible sides", got=f"{outputs} and {inputs}")
    if len(body) - _SIDES.size != outputs * inputs:
        raise DataInvalid("a matrix has the wrong length", got=f"{len(body)} bytes")
    return torch.frombuffer(body, dtype=torch.int8, offset=_SIDES.size).view(outputs, inputs)


def asked_product(digest: bytes, direction: Direction, rows: int) -> bytes:
    """What stands before the elements of a request for a product."""
    return _PRODUCT.pack(digest, DIRECTIONS.index(direction), rows)


def read_product(body: bytearray) -> tuple[bytes, Direction, int, int]:
    """Digest, direction, rows, and where the elements begin.

    Raises:
        DataInvalid: It is no such request.
    """
    digest, direction, rows = _unpacked(_PRODUCT, body)
    return digest, _direction(direction), _rows(rows), _PRODUCT.size


def asked_pads(digest: bytes, direction: Direction, first: int, rows: int) -> bytes:
    """A request for U."""
    return _PADS.pack(digest, DIRECTIONS.index(direction), first, rows)


def read_pads(body: bytearray) -> tuple[bytes, Direction, int, int]:
    """Digest, direction, first row and rows of a request for U.

    Raises:
        DataInvalid: It is none.
    """
    digest, direction, first, rows = _unpacked(_PADS, body, whole=True)
    return digest, _direction(direction), first, _rows(rows)


def _unpacked(form: struct.Struct, body: bytearray, *, whole: bool = False) -> tuple[Any, ...]:
    if len(body) < form.size or (whole and len(body) != form.size):
        raise DataInvalid("a body has the wrong length", got=f"{len(body)} bytes")
    return form.unpack_from(body)


def _direction(number: int) -> Direction:
    if number >= len(DIRECTIONS):
        raise DataInvalid("there are two directions", got=number, expected="0 or 1")
    return DIRECTIONS[number]


def _rows(number: int) -> int:
    if not 1 <= number <= MAX_ROWS:
        raise DataInvalid("too many rows, or none", got=number, expected=f"1 to {MAX_ROWS}")
    return number


def _printable(body: bytearray) -> str:
    """What a stranger says, cut, and without what could drive a terminal."""
    return printable(bytes(body[:MAX_REFUSAL]).decode("utf-8", "replace"), 200)
