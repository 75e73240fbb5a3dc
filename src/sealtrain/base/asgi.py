"""Connections of an asynchronous server, bounded in number, in time and per address.

1. A request's head must arrive within some seconds of its first byte (or of connecting), however
   its bytes are spread; its body is the application's.
2. A caller that does not read its answer for ``READ_SECONDS`` is cut off.
3. One address holds at most so many connections. When the table is full, connections whose request
   is unfinished give way to new ones (``base.connections``).
"""

from __future__ import annotations

from asyncio import TimerHandle, Transport
from typing import ClassVar, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

from sealtrain.base.connections import Connection, Connections, ConnectionStage

READ_SECONDS: Final = 60.0


def make_bounded_protocol(table: Connections, head_seconds: float) -> type[H11Protocol]:
    """The protocol of one server, for ``uvicorn.Config``.

    Args:
        table: Of the server's connections.
        head_seconds: In which a request's head arrives.
    """

    class Protocol(_Bounded):
        pass

    Protocol.table, Protocol.head_seconds = table, head_seconds
    return Protocol


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
            self._reach(ConnectionStage.HEAD)
            self._expect_head()
        else:
            self._reach(ConnectionStage.BODY if self.cycle.more_body else ConnectionStage.WORK)
            self._cancel()

    def on_response_complete(self) -> None:
        """Between requests the keep-alive limit holds."""
        self._cancel()
        if self._connection is not None:
            self._connection.finish_request()
        self._reach(ConnectionStage.IDLE)
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The peer does not read: give it some time."""
        super().pause_writing()
        self._reach(ConnectionStage.UNREAD)
        if self._unread is None:
            self._unread = self.loop.call_later(READ_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """The peer reads again."""
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        if self.cycle is not None and not self.cycle.response_complete:
            self._reach(ConnectionStage.WORK)
        super().resume_writing()

    def _reach(self, stage: ConnectionStage) -> None:
        if self._connection is not None:
            self._connection.stage = stage

    def _expect_head(self) -> None:
        if self._slow is None and not self.transport.is_closing():
            self._slow = self.loop.call_later(self.head_seconds, self.transport.abort)

    def _cancel(self) -> None:
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None
