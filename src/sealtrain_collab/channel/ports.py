"""Where parties listen: one thread for each connection, bounded, until the block ends."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sealtrain.base.hostport import written
from sealtrain.errors import SealtrainError, UsageError

__all__ = ["Callers", "bind", "listening"]

_log = logging.getLogger(__name__)
_MAX_CONNECTIONS = 16
_POLL_S = 0.2

Say = Callable[[str], object]


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
            got=f"{written(*address)}, {os.strerror(error.errno or 0)}",
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

    def next(self) -> socket.socket | None:
        """Wait for the next caller; ``None`` once the wait is over, or the port is closed."""
        while True:
            self._waiting.poll()
            if self._over.is_set():
                return None
            try:
                return self._listener.accept()[0]
            except TimeoutError:
                continue
            except OSError:
                return None

    def end(self) -> None:
        """End the wait for callers, at once."""
        self._over.set()
        os.write(self._wake, b"\0")

    def close(self) -> None:
        """Give back what waiting takes, once no thread waits."""
        for end in (self._woken, self._wake):
            os.close(end)


@contextmanager
def listening(
    where: tuple[str, int] | socket.socket,
    handle: Callable[[socket.socket], None],
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
        connections: At a time; one more is closed at once.
        say: Takes a line for each connection that ended with an error, and one when it is full.

    Yields:
        The address that was bound.

    Raises:
        UsageError: The address cannot be bound.
    """
    listener = where if isinstance(where, socket.socket) else bind(where, what=what)
    callers = Callers(listener)
    slots = threading.BoundedSemaphore(connections)
    open_ones: set[socket.socket] = set()

    def serve(sock: socket.socket) -> None:
        try:
            with sock:
                handle(sock)
        except SealtrainError as error:
            say(f"{what}: ended [{error.code}]")
        except Exception as error:
            say(f"{what}: failed [{type(error).__name__}]")
            raise
        finally:
            open_ones.discard(sock)
            slots.release()

    def accept() -> None:
        full = False
        while (sock := callers.next()) is not None:
            if not slots.acquire(blocking=False):
                sock.close()
                if not full:  # once, however many call
                    say(f"{what}: full, no more than {connections} connections at a time")
                full = True
                continue
            full = False
            open_ones.add(sock)
            threading.Thread(target=serve, args=(sock,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        host, port = listener.getsockname()[:2]
        yield host, port
    finally:
        callers.end()
        thread.join()
        callers.close()
        listener.close()
        for sock in tuple(open_ones):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
