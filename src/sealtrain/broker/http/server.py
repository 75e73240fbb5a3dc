"""The socket of a broker: connections bounded in number, in time and per address.

1. A request's head must arrive within some seconds of its first byte (or of connecting), however
   its bytes are spread; the body has its own limit (``http.bodies``).
2. A caller that does not read its answer for ``READ_SECONDS`` is cut off.
3. One address holds at most so many connections. When the table is full, connections whose request
   is unfinished give way to new ones (``base.connections``).
4. On a signal, the server stops accepting connections and finishes the requests it began.
"""

from __future__ import annotations

import socket as sockets
from asyncio import TimerHandle, Transport
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import ClassVar, Final

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from sealtrain.base.background import Quitters, in_background, serve_on
from sealtrain.base.connections import Connection, Connections, ConnectionStage
from sealtrain.broker.config import BrokerConfig
from sealtrain.errors import UsageError

__all__ = ["READ_SECONDS", "STOP_SECONDS", "serve_app", "serving"]

READ_SECONDS: Final = 60.0
STOP_SECONDS: Final = 10
_BACKLOG: Final = 1024


class _Bounded(H11Protocol):
    """Uvicorn's HTTP/1.1 protocol with the limits that Uvicorn has no setting for."""

    table: ClassVar[Connections]
    """Every connection of the server."""
    head_seconds: ClassVar[float]

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Admit a connection, or cut it."""
        super().connection_made(transport)
        self._slow: TimerHandle | None = None
        self._unread: TimerHandle | None = None
        address = self.client[0] if self.client else ""
        self._connection: Connection | None = self.table.open(address, transport.abort)
        if self._connection is None:
            transport.abort()
            return
        self.app_state = {**self.app_state, "connection": self._connection}
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        self._cancel()
        if self._unread is not None:
            self._unread.cancel()
        if self._connection is not None:
            self.table.close(self._connection)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes; further bytes of an unfinished head do not extend its deadline."""
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._reached(ConnectionStage.HEAD)
            self._expect_head()
        else:
            self._reached(ConnectionStage.BODY if self.cycle.more_body else ConnectionStage.WORK)
            self._cancel()

    def on_response_complete(self) -> None:
        """Between requests the keep-alive limit holds."""
        self._cancel()
        if self._connection is not None:
            self._connection.finished()
        self._reached(ConnectionStage.IDLE)
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The peer does not read: give it some time."""
        super().pause_writing()
        self._reached(ConnectionStage.UNREAD)
        if self._unread is None:
            self._unread = self.loop.call_later(READ_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """The peer reads again."""
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        if self.cycle is not None and not self.cycle.response_complete:
            self._reached(ConnectionStage.WORK)
        super().resume_writing()

    def _reached(self, stage: ConnectionStage) -> None:
        if self._connection is not None:
            self._connection.stage = stage

    def _expect_head(self) -> None:
        if self._slow is None and not self.transport.is_closing():
            self._slow = self.loop.call_later(self.head_seconds, self.transport.abort)

    def _cancel(self) -> None:
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None


async def serve_app(
    app: FastAPI,
    config: BrokerConfig,
    ready: Callable[[str], None] | None,
    quitters: Quitters | None,
    *,
    stop_seconds: int = STOP_SECONDS,
) -> None:
    """Serve ``app`` until told to stop.

    Args:
        app: The application.
        config: Where to listen, and the caps.
        ready: Called with the base URL once it answers.
        quitters: Gets a function that stops it from another thread; ``None`` to stop on SIGTERM and
            SIGINT instead.
        stop_seconds: How long requests may still take once it stops.

    Raises:
        UsageError: The address cannot be listened on.
    """
    listener = _listen(config)
    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    class Protocol(_Bounded):
        table: ClassVar[Connections] = Connections(config.limits, config.proxies)
        head_seconds = config.limits.head_seconds

    settings = uvicorn.Config(
        app,
        lifespan="off",
        ws="none",
        access_log=False,
        log_level="warning",
        log_config=None,
        server_header=False,
        date_header=False,  # `broker.http.watching` tells the broker's time
        proxy_headers=bool(config.proxies),
        forwarded_allow_ips=list(config.proxies),
        http=Protocol,
        backlog=_BACKLOG,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=stop_seconds,
    )
    with listener:
        await serve_on(listener, settings, lambda: ready and ready(url), quitters)


@contextmanager
def serving(
    app: FastAPI, config: BrokerConfig, *, stop_seconds: int = STOP_SECONDS
) -> Iterator[str]:
    """Serve ``app`` in a background thread while the block runs; yields the base URL.

    Args:
        app: What answers.
        config: Where to listen, and the caps.
        stop_seconds: How long requests may still take once the block ends.

    Raises:
        UsageError: The address cannot be listened on.
    """
    with in_background("broker", partial(serve_app, app, config, stop_seconds=stop_seconds)) as url:
        yield url


def _listen(config: BrokerConfig) -> sockets.socket:
    family = sockets.AF_INET6 if ":" in config.host else sockets.AF_INET
    # Named, because asyncio switches Nagle's delay off only for sockets that name their protocol.
    listener = sockets.socket(family, sockets.SOCK_STREAM, sockets.IPPROTO_TCP)
    try:
        listener.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
        listener.bind((config.host, config.port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise UsageError(
            f"cannot listen on {config.host}:{config.port}: {error.strerror or error}",
            check="address",
            hint="choose another --port, or 0 for any free one",
        ) from error
    return listener
