"""Frames between a guest and an accelerator, which proves nothing (spec/one-time-pads.md §6).

``u8 kind | u32 length | body``. Nothing rests on this connection: public matrices and uniform
numbers pass here. Everything is bounded: the length of a frame, the time of a wait, the text of a
refusal.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import torch

from sealtrain.errors import DataInvalid, LimitExceeded
from sealtrain_together.channel.streams import (
    Buffer,
    prepare,
    receive_into,
    receive_or_end,
    send_all,
)
from sealtrain_together.pads.matrix import DIRECTIONS, MAX_SIDE, Direction
from sealtrain_together.pads.tensors import MAX_BYTES, octets

MATRIX: Final = 0x01
PRODUCT: Final = 0x02
ANSWER: Final = 0x80
REFUSED: Final = 0xFF
MAX_FRAME: Final = MAX_BYTES
MAX_REFUSAL: Final = 1024

_EARLY_PART: Final = 1 << 18
_FRAME: Final = struct.Struct(">BI")
_SIDES: Final = struct.Struct(">II")
_PRODUCT: Final = struct.Struct(">32sII")


class Frames:
    """One end of a connection.

    Args:
        connection: Connected. Closed by ``close``.
        seconds: For one frame to arrive or leave.
        early: Bytes of answers that are taken in while a frame leaves.
    """

    def __init__(self, connection: socket.socket, *, seconds: float, early: int = 0) -> None:
        self._stream = _TwoWay(prepare(connection, seconds), early)
        self._seconds = seconds

    def close(self) -> None:
        """End the connection."""
        self._stream.close()

    def send(self, kind: int, *parts: bytes | memoryview) -> None:
        """One frame of that kind whose body is the parts.

        Raises:
            PeerUnreachable: It was not taken in time.
            LimitExceeded: It is too long.
        """
        length = sum(len(part) for part in parts)
        if length > MAX_FRAME:
            raise LimitExceeded(
                "a request is too large for one frame",
                got=f"{length} bytes",
                expected=f"at most {MAX_FRAME}",
                hint="leave the layer in the guest: name it in skip",
            )
        self._stream.allow(self._seconds)
        for part in (_FRAME.pack(kind, length), *parts):
            send_all(self._stream, part)

    def receive(
        self,
        *,
        idle_seconds: float | None = None,
        hold: Callable[[int], object] = lambda _size: None,
    ) -> tuple[int, memoryview] | None:
        """Kind and body of the next frame; ``None`` where the other end closed the connection.

        Args:
            idle_seconds: How long it may take to begin; as long as a frame when ``None``.
            hold: Called with the length of the body before there is memory for it; may refuse.

        Raises:
            PeerUnreachable: It did not come in time, or the connection failed.
            ChannelCut: The connection ended in the middle of it.
            LimitExceeded: It is too long.
        """
        self._stream.allow(self._seconds if idle_seconds is None else idle_seconds)
        head = receive_or_end(self._stream, _FRAME.size)
        if head is None:
            return None
        kind, length = _FRAME.unpack(head)
        if length > MAX_FRAME:
            raise LimitExceeded(
                "a frame is too long", got=f"{length} bytes", expected=f"at most {MAX_FRAME}"
            )
        hold(length)
        body = octets(torch.empty(length, dtype=torch.uint8))
        self._stream.allow(self._seconds)
        receive_into(self._stream, body)
        return kind, body


class _TwoWay:
    """A connection that may take in what arrives while it sends. A ``Stream``.

    Two ends that both send, and receive only afterwards, wait for each other.

    Args:
        sock: Connected. Its timeout is set anew for each step.
        room: Bytes that may be taken in so.
    """

    def __init__(self, sock: socket.socket, room: int) -> None:
        self._socket, self._room = sock, room
        self._early: deque[memoryview] = deque()
        self._held = 0
        self._until = 0.0

    def allow(self, seconds: float) -> None:
        """Give everything that follows so many seconds together."""
        self._until = time.monotonic() + seconds

    def sendall(self, data: Buffer, /) -> None:
        """As ``Stream.sendall``."""
        left = memoryview(data)
        self._socket.settimeout(0)
        while left:
            try:
                left = left[self._socket.send(left) :]
            except BlockingIOError:
                self._make_way()

    def recv_into(self, buffer: memoryview, /) -> int:
        """As ``Stream.recv_into``."""
        if not self._early:
            self._socket.settimeout(self._seconds_left())
            return self._socket.recv_into(buffer)
        first = self._early.popleft()
        size = min(len(first), len(buffer))
        buffer[:size] = first[:size]
        if size < len(first):
            self._early.appendleft(first[size:])
        self._held -= size
        return size

    def close(self) -> None:
        """As ``Stream.close``."""
        self._socket.close()

    def _make_way(self) -> None:
        """Wait until more can be sent, or take in a part of what arrived."""
        room = self._room - self._held
        ready = select.poll()
        ready.register(self._socket, select.POLLOUT | (select.POLLIN if room > 0 else 0))
        found = ready.poll(1000 * self._seconds_left())
        if not found:
            raise TimeoutError
        if found[0][1] & (select.POLLOUT | select.POLLIN) != select.POLLIN:
            return
        arrived = self._socket.recv(min(room, _EARLY_PART))
        if not arrived:
            raise ConnectionResetError
        self._early.append(memoryview(arrived))
        self._held += len(arrived)

    def _seconds_left(self) -> float:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


# --- Bodies -------------------------------------------------------------------------------------


def describe_matrix(values: torch.Tensor) -> tuple[bytes, memoryview]:
    """Body that brings a matrix."""
    return _SIDES.pack(*values.shape), octets(values)


def read_matrix(body: Buffer) -> torch.Tensor:
    """The matrix that a body brings.

    Raises:
        DataInvalid: The body holds no matrix.
    """
    outputs, inputs = _unpack(_SIDES, body)
    if not (1 <= outputs <= MAX_SIDE and 1 <= inputs <= MAX_SIDE):
        raise DataInvalid("a matrix has impossible sides", got=f"{outputs} and {inputs}")
    if len(body) - _SIDES.size != outputs * inputs:
        raise DataInvalid("a matrix has the wrong length", got=f"{len(body)} bytes")
    return torch.frombuffer(body, dtype=torch.int8, offset=_SIDES.size).view(outputs, inputs)


def describe_product(digest: bytes, direction: Direction, rows: int) -> bytes:
    """What stands before the elements of a request for a product."""
    return _PRODUCT.pack(digest, DIRECTIONS.index(direction), rows)


def read_product(body: Buffer) -> tuple[bytes, Direction, int, int]:
    """Digest, direction, rows, and where the elements begin.

    Raises:
        DataInvalid: It is no such request.
    """
    digest, direction, rows = _unpack(_PRODUCT, body)
    if direction >= len(DIRECTIONS):
        raise DataInvalid("there are two directions", got=direction, expected="0 or 1")
    return digest, DIRECTIONS[direction], rows, _PRODUCT.size


def _unpack(form: struct.Struct, body: Buffer) -> tuple[Any, ...]:
    if len(body) < form.size:
        raise DataInvalid("a body has the wrong length", got=f"{len(body)} bytes")
    return form.unpack_from(body)
