"""A run ticket that an enclave's parent sends: an AWS Nitro enclave has no disk that others write.

The enclave listens at a vsock port, and its parent instance connects, sends the ticket and closes
(spec/run-ticket.md §4). Only the parent reaches an enclave by vsock.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any, Final

from sealtrain.client.errors import TicketInvalid

PARENT: Final = 3
"""Context id of the parent instance, by AWS's documentation of enclaves."""
_WAIT_SECONDS: Final = 3600.0
_SEND_SECONDS: Final = 30.0
_READ_BYTES: Final = 64 << 10


def from_parent(port: int, max_bytes: int) -> bytes:
    """The bytes of a ticket that the parent sends.

    Raises:
        TicketInvalid: There is no vsock here, or no ticket comes within an hour.
    """
    try:
        listener = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
    except (AttributeError, OSError) as error:
        raise _not_here(port, type(error).__name__) from error
    with listener:
        try:
            listener.bind((socket.VMADDR_CID_ANY, port))
            listener.listen()
        except OSError as error:
            raise _not_here(port, error.strerror) from error
        return receive_from_sender(listener, max_bytes, is_sender=lambda peer: peer[0] == PARENT)


def receive_from_sender(
    listener: socket.socket,
    max_bytes: int,
    *,
    is_sender: Callable[[Any], bool],
    within: float = _WAIT_SECONDS,
    sends_within: float = _SEND_SECONDS,
    monotonic: Callable[[], float] = time.monotonic,
) -> bytes:
    """What the first sender sends whole; connections of others, and those that stall, are closed.

    Args:
        listener: A stream socket that listens.
        max_bytes: More is cut off after one byte more, which the reader of the ticket refuses.
        is_sender: Whether a peer's address is that of the sender.
        within: Seconds to wait for all of it.
        sends_within: Seconds that a connection may last.
        monotonic: Clock that counts seconds.

    Raises:
        TicketInvalid: None came in time.
    """
    until = monotonic() + within
    while (left := until - monotonic()) > 0:
        listener.settimeout(left)
        try:
            connection, peer = listener.accept()
        except TimeoutError:
            break
        with connection:
            if is_sender(peer):
                data = _whole(
                    connection, max_bytes, min(until, monotonic() + sends_within), monotonic
                )
                if data:
                    return data
    raise TicketInvalid(
        "no run ticket came",
        check="run ticket",
        got=f"none in {within:g} s",
        hint="send one from the parent instance: sealtrain nitro run",
    )


def _whole(
    connection: socket.socket, max_bytes: int, until: float, monotonic: Callable[[], float]
) -> bytes | None:
    data = b""
    try:
        while len(data) <= max_bytes and (left := until - monotonic()) > 0:
            connection.settimeout(left)
            more = connection.recv(min(_READ_BYTES, max_bytes + 1 - len(data)))
            if not more:
                return data
            data += more
    except OSError:  # it stalled or broke off
        return None
    return data if len(data) > max_bytes else None


def _not_here(port: int, got: object) -> TicketInvalid:
    return TicketInvalid(
        f"a ticket cannot be received at vsock port {port}",
        check="run ticket",
        got=got,
        hint="a document for nitro starts in an AWS Nitro enclave",
    )
