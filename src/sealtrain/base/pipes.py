"""Messages of a process that may be hostile, over a pipe of ``multiprocessing``.

``Connection.recv_bytes`` waits for the rest of a message that has begun: a header that promises
bytes, and no bytes, hold its reader for ever. Here nothing waits. A message that has begun has so
many seconds for all of it, and room only for what has arrived.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Final

_LENGTH: Final = struct.Struct("!i")
_READ_BYTES: Final = 1 << 20


class Messages:
    """The messages of one end, each whole. ``multiprocessing.connection.wait`` says when to look.

    Args:
        connection: Becomes one that does not block: sending on it may raise ``BlockingIOError``.
        max_bytes: Longest message.
        seconds: For a message to be whole, from its first byte on.
        monotonic: Clock that counts seconds.
    """

    def __init__(
        self,
        connection: Connection,
        max_bytes: int,
        *,
        seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        os.set_blocking(connection.fileno(), False)
        self._connection, self._most = connection, max_bytes
        self._seconds, self._monotonic = seconds, monotonic
        self._arrived = bytearray()
        self._until: float | None = None

    def take(self) -> bytes | None:
        """The next message; ``None`` where it is not whole yet.

        Raises:
            EOFError: The other end was closed.
            TimeoutError: It is not whole in time.
            OSError: The pipe fails, or a message is longer than it may be.
        """
        wanted = self._count_wanted()
        while len(self._arrived) < wanted:
            try:
                part = os.read(
                    self._connection.fileno(), min(_READ_BYTES, wanted - len(self._arrived))
                )
            except BlockingIOError:
                break
            if not part:
                raise EOFError
            if self._until is None:
                self._until = self._monotonic() + self._seconds
            self._arrived += part
            wanted = self._count_wanted()
        if len(self._arrived) < wanted:
            if self._until is not None and self._monotonic() > self._until:
                raise TimeoutError("a message began and did not end in time")
            return None
        message = bytes(self._arrived[_LENGTH.size :])
        self._arrived, self._until = bytearray(), None
        return message

    def _count_wanted(self) -> int:
        """Bytes of the message and its header, as far as they are known."""
        if len(self._arrived) < _LENGTH.size:
            return _LENGTH.size
        (length,) = _LENGTH.unpack_from(self._arrived)
        if not 0 <= length <= self._most:  # a longer form of the header begins with -1
            raise OSError("a message of a length that it may not have")
        return _LENGTH.size + int(length)
