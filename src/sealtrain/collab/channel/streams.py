"""A connection as channels use it: what the system says of it becomes an error of ours."""

from __future__ import annotations

import socket
from typing import Protocol

from sealtrain.errors import ChannelBroken, PeerUnreachable

__all__ = [
    "Address",
    "Buffer",
    "Stream",
    "dialled",
    "prepared",
    "receive_exactly",
    "receive_into",
    "send_all",
]

Address = tuple[str, int]
Buffer = bytes | bytearray | memoryview


class Stream(Protocol):
    """What a channel needs of a connection; a socket has it."""

    def sendall(self, data: Buffer, /) -> None:
        """Send every byte, or raise ``OSError``."""

    def recv_into(self, buffer: memoryview, /) -> int:
        """Receive into ``buffer``; how many bytes, 0 at the end. Raises ``OSError``."""

    def close(self) -> None:
        """Let go of the connection."""


def dialled(address: Address, *, timeout: float) -> socket.socket:
    """A connection to a listening party.

    Args:
        address: Host and port.
        timeout: Seconds to connect and between bytes.

    Raises:
        PeerUnreachable: Nobody answers there.
    """
    try:
        return prepared(socket.create_connection(address, timeout=timeout), timeout)
    except OSError as error:
        raise PeerUnreachable(
            "nobody answers at the address of the other side",
            check="channel",
            got=f"{address[0]}:{address[1]}, {type(error).__name__}",
            hint="see whether it runs and listens there",
        ) from error


def prepared(sock: socket.socket, timeout: float) -> socket.socket:
    """The connection, patient for ``timeout`` seconds, its records sent at once."""
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


def receive_into(sock: Stream, view: memoryview) -> None:
    """Fill ``view``.

    Raises:
        ChannelBroken: The stream ends before.
        PeerUnreachable: Nothing arrives in time, or the connection fails.
    """
    size, done = len(view), 0
    while done < size:
        try:
            count = sock.recv_into(view[done:])
        except OSError as error:
            raise _unreachable(error) from error
        if not count:
            raise ChannelBroken(
                "the stream ended without a word",
                check="record",
                got=f"{done} bytes",
                expected=f"{size}",
                hint="the other side died, or somebody cut the connection",
            )
        done += count


def _unreachable(error: OSError) -> PeerUnreachable:
    return PeerUnreachable(
        "the other side of the channel does not answer",
        check="channel",
        got=type(error).__name__,
        hint="see whether it still runs, and open the channel again",
    )
