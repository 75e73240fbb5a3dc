"""The parent's tunnels (RFC 9110 §9.3.6): to listed servers and to no other; bytes are carried."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Collection
from typing import Final

from sealtrain.base.hostport import write_host_and_port
from sealtrain.guest.enclave.bridge import carry

MAX_HEAD_BYTES: Final = 16 << 10
_HEAD_SECONDS: Final = 30.0
_CONNECT_SECONDS: Final = 30.0
_END: Final = b"\r\n\r\n"
_CONNECT: Final = re.compile(
    rb"CONNECT ((?:\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9_.-]{1,253}):[0-9]{1,5}) HTTP/1\.[01]\r\n"
)
Address = tuple[str, int]
Reach = Callable[[Address], socket.socket]


def reach_server(address: Address) -> socket.socket:
    """A TCP connection to a server."""
    return socket.create_connection(address, timeout=_CONNECT_SECONDS)


class Tunnels:
    """What becomes of a connection at the tunnels' port (``bridge.Bridge``).

    Args:
        servers: Host in lower case and port of each that may be reached.
        reach: Connects to one.
        seconds: That a head may take.
        on_refusal: Called with an address that is not listed.
    """

    def __init__(
        self,
        servers: Collection[Address],
        *,
        reach: Reach = reach_server,
        seconds: float = _HEAD_SECONDS,
        on_refusal: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._servers = frozenset(servers)
        self._reach, self._seconds = reach, seconds
        self._on_refusal = on_refusal

    def __call__(self, connection: socket.socket) -> None:
        """Answer one request, and carry what follows."""
        head = self._head(connection)
        address = None if head is None else target_of(head)
        if address is None:
            _answer(connection, "400 Bad Request")
            return
        if address not in self._servers:
            self._on_refusal(write_host_and_port(*address))
            _answer(connection, "403 Forbidden")
            return
        try:
            server = self._reach(address)
        except OSError:
            _answer(connection, "502 Bad Gateway")
            return
        with server:
            _answer(connection, "200 OK")
            carry(connection, server)

    def _head(self, connection: socket.socket) -> bytes | None:
        """A request's head; ``None`` where it is too long, late or followed by more.

        A client that speaks TLS does not speak before the tunnel is there.
        """
        until = time.monotonic() + self._seconds
        head = b""
        while not head.endswith(_END):
            left = until - time.monotonic()
            if _END in head or len(head) >= MAX_HEAD_BYTES or left <= 0:
                return None
            connection.settimeout(left)
            try:
                more = connection.recv(MAX_HEAD_BYTES - len(head))
            except OSError:
                return None
            if not more:
                return None
            head += more
        return head


def target_of(head: bytes) -> Address | None:
    """Host in lower case and port that a request's head asks for; ``None`` where it is none."""
    found = _CONNECT.match(head)
    if found is None or not head.endswith(_END) or head.count(_END) != 1:
        return None
    host, _, port = found[1].decode("ascii").lower().rpartition(":")
    return host.strip("[]"), int(port)


def _answer(connection: socket.socket, status: str) -> None:
    connection.sendall(f"HTTP/1.1 {status}\r\n\r\n".encode("ascii"))
