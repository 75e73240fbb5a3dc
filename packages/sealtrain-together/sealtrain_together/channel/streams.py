"""Connections of channels: errors of the system become errors of ours."""

from __future__ import annotations

import socket
import time
from typing import Protocol

from sealtrain.training.errors import ChannelCut, PeerUnreachable

Address = tuple[str, int]
Buffer = bytes | bytearray | memoryview


class Stream(Protocol):
    """Methods that a channel needs of a connection; a socket has them."""

    def sendall(self, data: Buffer, /) -> None:
        """Send every byte, or raise ``OSError``."""

    def recv_into(self, buffer: memoryview, /) -> int:
        """Receive into ``buffer``; how many bytes, 0 at the end. Raises ``OSError``."""

    def close(self) -> None:
        """Let go of the connection."""


class Timed:
    """A connection that has so many seconds for everything, not for each byte. A ``Stream``.

    Args:
        sock: The connection. Its own timeout is set, and is to be set again afterwards.
        seconds: For everything, from now on.
        pause: Between bytes; no less than for everything when ``None``.
    """

    def __init__(self, sock: socket.socket, seconds: float, *, pause: float | None = None) -> None:
        self._socket = sock
        self._until = time.monotonic() + seconds
        self._pause = seconds if pause is None else pause

    def sendall(self, data: Buffer, /) -> None:
        """As ``Stream.sendall``."""
        self._wait()
        self._socket.sendall(data)  # its timeout is for all of the data

    def recv_into(self, buffer: memoryview, /) -> int:
        """As ``Stream.recv_into``."""
        self._wait()
        return self._socket.recv_into(buffer)

    def close(self) -> None:
        """As ``Stream.close``."""
        self._socket.close()

    def _wait(self) -> None:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(min(left, self._pause))


def dial(address: Address, *, timeout: float, source: str | None = None) -> socket.socket:
    """A connection to a listening party.

    Args:
        address: Host and port.
        timeout: Seconds to connect and between bytes.
        source: Address of this machine to call from; the system chooses one when ``None``.

    Raises:
        PeerUnreachable: No peer answers there.
    """
    try:
        at = None if source is None else (source, 0)
        return prepare(socket.create_connection(address, timeout, at), timeout)
    except OSError as error:
        raise PeerUnreachable(
            "no peer answers at this address",
            check="channel",
            got=f"{address[0]}:{address[1]}, {type(error).__name__}",
            hint="check that the peer runs and listens there",
        ) from error


def prepare(sock: socket.socket, timeout: float) -> socket.socket:
    """The connection, patient for ``timeout`` seconds, its frames sent at once."""
    sock.settimeout(timeout)
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def send_all(sock: Stream, data: Buffer) -> None:
    """Send every byte.

    Raises:
        PeerUnreachable: The other side does not take them in time, or the connection fails.
    """
    try:
        sock.sendall(data)
    except OSError as error:
        raise _unreachable(error) from error


def receive_exactly(sock: Stream, size: int) -> bytes:
    """Read ``size`` bytes. Errors as ``receive_into``."""
    data = bytearray(size)
    receive_into(sock, memoryview(data))
    return bytes(data)


def receive_or_end(sock: Stream, size: int) -> bytes | None:
    """As ``receive_exactly``; ``None`` where the stream ends before the first byte."""
    first = bytearray(1)
    if not _receive(sock, memoryview(first)):
        return None
    return bytes(first) + receive_exactly(sock, size - 1)


def receive_into(sock: Stream, view: memoryview) -> None:
    """Fill ``view``.

    Raises:
        ChannelCut: The stream ends before.
        PeerUnreachable: Nothing arrives in time, or the connection fails.
    """
    size, done = len(view), 0
    while done < size:
        count = _receive(sock, view[done:])
        if not count:
            raise ChannelCut(
                "the stream ended without a word",
                check="record",
                got=f"{done} bytes",
                expected=f"{size}",
                hint="the peer died, or the network cut the connection",
            )
        done += count


def _receive(sock: Stream, view: memoryview) -> int:
    try:
        return sock.recv_into(view)
    except OSError as error:
        raise _unreachable(error) from error


def _unreachable(error: OSError) -> PeerUnreachable:
    return PeerUnreachable(
        "the peer does not answer",
        check="channel",
        got=type(error).__name__,
        hint="check that the peer still runs, and open the channel again",
    )
