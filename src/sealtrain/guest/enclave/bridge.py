"""Bytes carried between two sockets, in bounded number and time; nothing of them is read.

Both sides of an enclave have bridges: inside from loopback to the parent, outside from the enclave
to servers. What travels through them is TLS or sealed, and each end proves itself inside of it.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

MAX_CONNECTIONS: Final = 256
IDLE_SECONDS: Final = 3600.0
_COPY_BYTES: Final = 64 << 10
_BACKLOG: Final = 64

Connect = Callable[[], socket.socket]


class Bridge:
    """Carries each connection of a listener to one of ``connect``.

    Args:
        listener: A stream socket that is bound; it listens from now on, and the bridge closes it.
        handle: What becomes of an accepted connection; it closes it. ``carry_to`` gives one.
        is_welcome: Whether a peer's address may connect.
        most: Connections at one time; more are closed at once.
    """

    def __init__(
        self,
        listener: socket.socket,
        handle: Callable[[socket.socket], None],
        *,
        is_welcome: Callable[[Any], bool] = lambda _: True,
        most: int = MAX_CONNECTIONS,
    ) -> None:
        self._listener = listener
        self._handle = handle
        self._is_welcome = is_welcome
        self._free = threading.BoundedSemaphore(most)
        listener.listen(_BACKLOG)

    def start(self) -> None:
        """Serve in a thread until ``close``."""
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        """Serve until the listener is closed."""
        while True:
            try:
                connection, peer = self._listener.accept()
            except OSError:
                return
            if not self._is_welcome(peer) or not self._free.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._one, args=(connection,), daemon=True).start()

    def close(self) -> None:
        """Take no further connection."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _one(self, connection: socket.socket) -> None:
        try:
            with connection, suppress(OSError):
                self._handle(connection)
        finally:
            self._free.release()


def carry_to(connect: Connect, *, idle: float = IDLE_SECONDS) -> Callable[[socket.socket], None]:
    """What carries a connection to another, which is made for it."""

    def handle(connection: socket.socket) -> None:
        with connect() as other:
            carry(connection, other, idle=idle)

    return handle


def carry(one: socket.socket, other: socket.socket, *, idle: float = IDLE_SECONDS) -> None:
    """Carry bytes both ways until both sides have ended, one broke off or both were idle.

    Args:
        one: A connected socket.
        other: Another.
        idle: Seconds that one direction may be silent or blocked.
    """
    for side in (one, other):
        side.settimeout(idle)
    back = threading.Thread(target=_copy, args=(other, one), daemon=True)
    back.start()
    _copy(one, other)
    back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy until the source ends, then end the target's direction; an error ends both."""
    try:
        while data := source.recv(_COPY_BYTES):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        for side in (source, target):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
