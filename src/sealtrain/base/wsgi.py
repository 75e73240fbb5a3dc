"""Small HTTP servers on the standard library's WSGI server; no request is logged.

Anyone may call, and nothing is known of a caller before its request is whole. So everything that a
caller can hold has a cap (``base.connections``):

1. connections, in all and of one address; a full server lets the oldest unfinished ones go;
2. a request's head and body, in bytes: no more is read;
3. bytes of all unfinished requests together; slow ones give way to others;
4. seconds: a request that is not whole after ``REQUEST_SECONDS`` is cut off, however its bytes are
   spread, and so is a caller that does not read its answer.
"""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from socketserver import ThreadingMixIn
from typing import Any, Final, cast
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from sealtrain.base.connections import (
    Caps,
    Connection,
    ConnectionCaps,
    Connections,
    ConnectionStage,
)
from sealtrain.base.hostport import host_and_port
from sealtrain.errors import UsageError

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
"""A WSGI application (PEP 3333)."""

REQUEST_SECONDS: Final = 20.0
CAPS: Final = Caps(connections=64, connections_per_address=32, body_bytes=32 << 20)
_HEAD_BYTES: Final = 16 << 10
_BACKLOG: Final = 128
_BOTH_WAYS: Final = 2
"""``SHUT_RDWR``: no module of ``base`` opens a socket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """What a server takes.

    Attributes:
        caps: Connections, and bytes of unfinished requests.
        body_bytes: Longest body; 0 where requests have none.
        seconds: For a whole request to arrive, and for its answer to be read.
    """

    caps: ConnectionCaps = CAPS
    body_bytes: int = 0
    seconds: float = REQUEST_SECONDS


def bind_server(
    app: App, listen: str, *, hint: str | None = None, limits: ServerLimits | None = None
) -> WSGIServer:
    """A server of ``app``, bound; it serves with ``serve_forever``, each request in a thread.

    Args:
        app: Answers. Reading a body may raise ``TooManyRequests``.
        listen: ``HOST:PORT``, port 0 for any free one.
        hint: What to do where the place is taken.
        limits: What it takes.

    Raises:
        UsageError: The place cannot be listened at.
    """
    host, port = host_and_port(listen)
    taken = limits or ServerLimits()

    class WsgiServer(_Server):
        limits = taken

    try:
        return make_server(host, port, app, WsgiServer, _BoundedRequest)
    except OSError as error:
        raise UsageError(
            "cannot listen", check="listen", got=f"{listen}: {error.strerror}", hint=hint
        ) from None


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = _BACKLOG
    limits: ServerLimits

    def __init__(self, *arguments: Any) -> None:
        self._table = Connections(self.limits.caps)
        self._served: dict[Any, Connection] = {}
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a caller in a thread, if there is room for it."""
        connection = self._table.open(client_address[0], partial(_cut, request))
        if connection is None:
            self.shutdown_request(request)
            return
        self._served[request] = connection
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """End a connection, and forget it."""
        connection = self._served.pop(request, None)
        if connection is not None:
            self._table.close(connection)
        super().shutdown_request(request)

    def connection_of(self, request: Any) -> Connection:
        """The place of a connection that is served."""
        return self._served[request]

    def handle_error(self, _request: Any, _client_address: Any) -> None:
        """A caller that went away, or was cut off, is not told of."""


class _Incoming(io.RawIOBase):
    """What a caller sends: so many bytes, until a moment, and accounted for; else it ends there."""

    def __init__(self, sock: Any, connection: Connection, seconds: float) -> None:
        self._socket, self._connection = sock, connection
        self._until = time.monotonic() + seconds
        self._left = _HEAD_BYTES
        self._held = 0

    def readable(self) -> bool:
        return True

    def allow(self, size: int) -> None:
        """Take so many bytes more, whatever was left."""
        self._left = size

    def readinto(self, buffer: Any, /) -> int:
        room = min(len(buffer), self._left)
        seconds = self._until - time.monotonic()
        if not room or seconds <= 0:
            return 0
        try:
            self._socket.settimeout(seconds)
            count: int = self._socket.recv_into(memoryview(buffer)[:room])
        except OSError:
            return 0
        self._left -= count
        self._held += count
        if self._connection.stage is ConnectionStage.BODY:
            self._connection.hold(self._held)
        return count


class _BoundedRequest(WSGIRequestHandler):
    def setup(self) -> None:
        """Begin to count what arrives."""
        server = cast("_Server", self.server)
        self._seconds = server.limits.seconds
        self._body_bytes = server.limits.body_bytes
        self._connection = server.connection_of(self.request)
        super().setup()
        self.rfile.close()
        self._incoming = _Incoming(self.request, self._connection, self._seconds)
        self.rfile = io.BufferedReader(self._incoming)

    def get_environ(self) -> dict[str, Any]:
        """The head is whole: let the body come, as far as it may."""
        environ = super().get_environ()
        told = environ.get("CONTENT_LENGTH") or "0"
        has_body = told.isascii() and told.strip("0").isdecimal()
        self._incoming.allow(self._body_bytes)
        self._connection.stage = (
            ConnectionStage.BODY if has_body and self._body_bytes else ConnectionStage.WORK
        )
        environ["sealtrain.received"] = self._note_received
        return environ

    def _note_received(self) -> None:
        """The body is whole: from now on the caller waits."""
        self._connection.stage = ConnectionStage.WORK
        self.request.settimeout(self._seconds)

    def log_message(self, *_: Any) -> None:
        """Log no request."""


def _cut(request: Any) -> None:
    with contextlib.suppress(OSError):
        request.shutdown(_BOTH_WAYS)
