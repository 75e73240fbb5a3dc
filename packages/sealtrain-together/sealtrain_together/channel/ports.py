"""Where parties listen: one thread for each connection, bounded, until the block ends.

Anyone may call. A caller holds its place by what it proved (``Caller``), and who may be let go for
a new one follows from that (``base.connections``): callers that have proven nothing, the oldest of
the address that has the most; never one that proved itself.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Self, TypeVar

from sealtrain.base.connections import (
    Caps,
    Connection,
    Connections,
    ConnectionStage,
    listener_ended,
)
from sealtrain.base.hostport import write_host_and_port
from sealtrain.errors import SealtrainError, UsageError

_log = logging.getLogger(__name__)
_MAX_CONNECTIONS = 16
_POLL_S = 0.2
_LAST_SECONDS: Final = 5.0
_ENDING_SECONDS: Final = 2.0
_UNPROVEN_BYTES: Final = 2 << 30
"""That callers may send to one port before they have proven anything, all together."""

Say = Callable[[str], object]
Proven = TypeVar("Proven")


class Caller(socket.socket):
    """A connection of a port, and the place that it has there."""

    place: Connection | None = None
    kept = False
    """It stays open when its port ends."""

    @classmethod
    def of(cls, sock: socket.socket) -> Self:
        """The same connection; ``sock`` is used up."""
        return cls(sock.family, sock.type, sock.proto, fileno=sock.detach())

    def mark_proven(self) -> None:
        """It proved to be a party that is meant: no other caller takes its place."""
        self._reach(ConnectionStage.WORK)

    def mark_served(self) -> None:
        """It is served without proof: its place is safe while its address has its share."""
        self._reach(ConnectionStage.SERVED)

    def hold(self, size: int) -> None:
        """Account for bytes that it is about to send, or for none.

        Raises:
            TooManyRequests: All callers together hold too many.
        """
        if self.place is not None and self.place.stage is not ConnectionStage.WORK:
            if self.place.stage is ConnectionStage.HEAD and size:
                self.place.stage = ConnectionStage.BODY
            self.place.hold(size)

    def _reach(self, stage: ConnectionStage) -> None:
        if self.place is not None:
            self.place.stage = stage

    def cut(self) -> None:
        """End it for the thread that waits on it."""
        with contextlib.suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)


def bind(address: tuple[str, int], *, what: str) -> socket.socket:
    """A socket that is listened on, before a process gives up to open any.

    Args:
        address: Host and port; port 0 lets the system choose, an IPv6 address has its colons.
        what: Name of the port for the error.

    Raises:
        UsageError: The address cannot be bound.
    """
    try:
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        return socket.create_server(address, family=family)
    except OSError as error:
        raise UsageError(
            f"cannot listen for {what}",
            got=f"{write_host_and_port(*address)}, {os.strerror(error.errno or 0)}",
        ) from error


class Callers:
    """The callers of a port, until ``end``.

    Args:
        listener: Where they call; its timeout is set. It stays open.
    """

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._listener.settimeout(_POLL_S)  # a caller may be gone before it is accepted
        self._woken, self._wake = os.pipe()
        self._waiting = select.poll()
        self._waiting.register(listener, select.POLLIN)
        self._waiting.register(self._woken, select.POLLIN)
        self._over = threading.Event()

    def next(self) -> Caller | None:
        """Wait for the next caller; ``None`` once the wait is over, or the port is closed."""
        while True:
            self._waiting.poll()
            if self._over.is_set():
                return None
            try:
                return Caller.of(self._listener.accept()[0])
            except TimeoutError:
                continue
            except OSError as failure:
                if listener_ended(failure):
                    return None
                self._over.wait(_POLL_S)  # no descriptor is free, say

    def end(self) -> None:
        """End the wait for callers, at once."""
        self._over.set()
        os.write(self._wake, b"\0")

    def close(self) -> None:
        """Give back what waiting takes, once no thread waits."""
        for end in (self._woken, self._wake):
            os.close(end)


class _Port:
    """The connections of one port, each in a thread. Use as a context: it listens meanwhile.

    Args:
        listener: Stays open.
        handle: As ``listening``.
        what: As ``listening``.
        connections: As ``listening``.
        of_one_address: Of these, so many of one address; three quarters when ``None``.
        say: As ``listening``.
    """

    def __init__(
        self,
        listener: socket.socket,
        handle: Callable[[Caller], object],
        *,
        what: str,
        connections: int,
        of_one_address: int | None = None,
        say: Say,
    ) -> None:
        self._callers = Callers(listener)
        self._handle, self._what, self._say = handle, what, say
        self._most = connections
        self._table = Connections(
            Caps(
                connections=connections,
                connections_per_address=of_one_address or connections - connections // 4,
                body_bytes=_UNPROVEN_BYTES,
            )
        )
        self._open: dict[Caller, threading.Thread] = {}
        self._lock = threading.Lock()
        self._fewer = threading.Condition(self._lock)  # a thread of a connection ended
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._callers.end()
        self._thread.join()
        self._callers.close()
        with self._lock:
            left = [caller for caller in self._open if not caller.kept]
        for caller in left:
            caller.cut()

    def join(self, seconds: float | None = _LAST_SECONDS) -> None:
        """Wait for the threads of connections that were cut, so that none is left.

        Args:
            seconds: For each thread, without end when ``None``.
        """
        with self._lock:
            threads = tuple(self._open.values())
        for thread in threads:
            thread.join(seconds)

    def _accept(self) -> None:
        full = False
        while (caller := self._callers.next()) is not None:
            admitted = self._admit(caller)
            if not admitted and not full:  # once, however many call
                self._say(f"{self._what}: full, no more than {self._most} connections at a time")
            full = not admitted

    def _admit(self, caller: Caller) -> bool:
        """Serve a caller, if there is room: also for threads of those that were just cut.

        These end as soon as they run. On a busy machine that is not at once, and a caller waits.
        """
        with self._fewer:
            busy = not self._fewer.wait_for(
                lambda: len(self._open) < 2 * self._most, _ENDING_SECONDS
            )
        place = None if busy else self._table.open(_address(caller), caller.cut)
        if place is None:
            caller.close()
            return False
        caller.place = place
        thread = threading.Thread(target=self._serve, args=(caller, place), daemon=True)
        with self._lock:
            self._open[caller] = thread
        thread.start()
        return True

    def _serve(self, caller: Caller, place: Connection) -> None:
        try:
            self._handle(caller)
        except SealtrainError as error:
            self._say(f"{self._what}: ended [{error.code}]")
        except Exception as error:
            self._say(f"{self._what}: failed [{type(error).__name__}]")
            raise
        finally:
            if not caller.kept:
                caller.close()
            self._table.close(place)
            with self._fewer:
                self._open.pop(caller, None)
                self._fewer.notify()


def _address(caller: Caller) -> str:
    try:
        peer: Any = caller.getpeername()
    except OSError:  # it went already
        return ""
    return str(peer[0]) if isinstance(peer, tuple) else ""


def first_proven(
    listener: socket.socket,
    prove: Callable[[Caller], Proven],
    *,
    what: str,
    seconds: float,
    connections: int = _MAX_CONNECTIONS,
    say: Say = _log.warning,
) -> Proven | None:
    """Accept callers, several at a time, until one of them proves to be the one that is meant.

    The others are let go, and no thread is left: silent callers keep the right one waiting neither
    here nor afterwards.

    Args:
        listener: Stays open.
        prove: What came of a caller that proved itself, whose connection stays open; raises for
            any other.
        what: As ``listening``.
        seconds: How long to wait.
        connections: As ``listening``.
        say: As ``listening``.

    Returns:
        What ``prove`` returned; ``None`` where no caller proved itself in time.
    """
    found: list[Proven] = []
    lock, done = threading.Lock(), threading.Event()

    def handle(caller: Caller) -> None:
        proven = prove(caller)
        with lock:
            if not found:
                found.append(proven)
                caller.kept = True
        done.set()

    with _Port(listener, handle, what=what, connections=connections, say=say) as port:
        done.wait(seconds)
    port.join()
    return found[0] if found else None


@contextmanager
def gathering(
    listener: socket.socket,
    handle: Callable[[Caller], object],
    *,
    what: str,
    connections: int,
    say: Say = _log.warning,
) -> Iterator[None]:
    """Accept connections while the block runs, and leave no thread behind.

    Args:
        listener: Stays open.
        handle: As ``listening``; a caller that it marks as kept stays open afterwards.
        what: As ``listening``.
        connections: At a time, of one address too; else as ``listening``.
        say: As ``listening``.
    """
    port = _Port(
        listener, handle, what=what, connections=connections, of_one_address=connections, say=say
    )
    try:
        with port:
            yield
    finally:
        port.join(None)


@contextmanager
def listening(
    where: tuple[str, int] | socket.socket,
    handle: Callable[[Caller], None],
    *,
    what: str,
    connections: int = _MAX_CONNECTIONS,
    say: Say = _log.warning,
) -> Iterator[tuple[str, int]]:
    """Accept connections while the block runs.

    Args:
        where: Host and port, or what ``bind`` gave; closed at the end.
        handle: Serves one connection to its end; closes it. An error it raises is told by its code,
            or by its class if it is not one of ours: nothing else of it, for it may quote a record.
        what: Name of the port for the log.
        connections: At a time, three quarters of them of one address. One more takes the place of
            a caller that has proven nothing, or is closed at once where there is none.
        say: Takes a line for each connection that ended with an error, and one when it is full.

    Yields:
        The address that was bound.

    Raises:
        UsageError: The address cannot be bound.
    """
    listener = where if isinstance(where, socket.socket) else bind(where, what=what)
    with (
        contextlib.closing(listener),
        _Port(listener, handle, what=what, connections=connections, say=say),
    ):
        host, port = listener.getsockname()[:2]
        yield host, port
