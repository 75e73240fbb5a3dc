"""The lead's side of Flower: which nodes there are, and one message to one of them and back.

The relay's ServerApp connects to a unix socket of the lead. A relay that ends and comes again is
taken again; what was on its way then is lost.
"""

from __future__ import annotations

import itertools
import socket
import threading
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as NotInTime
from contextlib import suppress
from pathlib import Path
from typing import Self

from sealtrain.errors import LimitExceeded
from sealtrain.training.errors import ChannelBroken, PeerUnreachable
from sealtrain_together.channel.ports import Callers
from sealtrain_together.federated.frames import (
    FROM_RELAY,
    LOST,
    NODES,
    REPLY,
    TO_RELAY,
    bind_socket,
    receive_frame,
    send_frame,
)

_MAX_NODES = 4096
_SILENT_S = 120.0  # a relay says each second which nodes there are
_SPARE_S = 30.0


class Carrier:
    """Use as a context: it listens. ``serve`` begins to take what comes.

    Args:
        path: Where the unix socket is made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._over = threading.Event()
        self._sending = threading.Lock()
        self._thread: threading.Thread | None = None
        self._relay: socket.socket | None = None
        self._nodes: tuple[int, ...] = ()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[bytes]] = {}

    def __enter__(self) -> Self:
        self._listener = bind_socket(self.path)
        self._callers = Callers(self._listener)
        return self

    def serve(self) -> None:
        """Take relays from now on, in a thread of its own.

        Called once the process is confined: threads are bound by what was so before them.
        """
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        self._over.set()
        with self._sending:
            if self._relay is not None and failure is None:
                with suppress(PeerUnreachable):
                    send_frame(self._relay, b"")  # the run is over: no lead comes after this one
        if self._relay is not None:
            with suppress(OSError):
                self._relay.shutdown(socket.SHUT_RDWR)
        self._callers.end()
        if self._thread is not None:
            self._thread.join()
        self._callers.close()
        with suppress(OSError):  # before it is free for another one; a confined process leaves it
            self.path.unlink()
        self._listener.close()

    @property
    def nodes(self) -> tuple[int, ...]:
        """Flower's ids of the nodes that are there now."""
        return self._nodes

    def exchange(self, node: int, data: bytes, *, seconds: int) -> bytes:
        """Carry a message to a node and return what came back.

        Args:
            node: Flower's id.
            data: At most ``frames.MAX_FRAME`` bytes with their head.
            seconds: How long it may take.

        Raises:
            PeerUnreachable: No party took it or answered in time, or no relay is connected.
        """
        number = next(self._numbers) % (1 << 32)
        answer: Future[bytes] = Future()
        self._waiting[number] = answer
        try:
            with self._sending:
                if self._relay is None:
                    raise _lose("no relay is connected")
                send_frame(self._relay, TO_RELAY.pack(node, number, seconds) + data)
            # The relay says itself when the time is over; if it says nothing it is gone.
            return answer.result(seconds + _SPARE_S)
        except NotInTime:
            raise _lose("the relay says nothing") from None
        finally:
            self._waiting.pop(number, None)

    def _serve(self) -> None:
        while (relay := self._callers.next()) is not None:
            relay.settimeout(_SILENT_S)
            self._relay = relay
            try:
                while not self._over.is_set():
                    self._take(receive_frame(relay))
            except (ChannelBroken, PeerUnreachable, LimitExceeded):
                self._nodes = ()
            finally:
                with self._sending:
                    self._relay = None
                    relay.close()
                for answer in tuple(self._waiting.values()):
                    _settle(answer, _lose("the relay went away"))

    def _take(self, frame: bytes) -> None:
        if len(frame) < FROM_RELAY.size:
            raise ChannelBroken("the relay sent something else than a frame", check="relay")
        kind, number = FROM_RELAY.unpack_from(frame)
        data = frame[FROM_RELAY.size :]
        if kind == NODES and len(data) % 8 == 0 and len(data) <= 8 * _MAX_NODES:
            starts = range(0, len(data), 8)
            self._nodes = tuple(int.from_bytes(data[at : at + 8], "big") for at in starts)
        elif kind in (REPLY, LOST) and (answer := self._waiting.get(number)) is not None:
            _settle(answer, data if kind == REPLY else _lose("its node does not answer"))


def _settle(answer: Future[bytes], result: bytes | PeerUnreachable) -> None:
    with suppress(InvalidStateError):  # the relay answered twice: the first counts
        if isinstance(result, bytes):
            answer.set_result(result)
        else:
            answer.set_exception(result)


def _lose(why: str) -> PeerUnreachable:
    return PeerUnreachable(
        "a party of the federation does not answer",
        check="relay",
        got=why,
        hint="see whether its guest and its SuperNode run",
    )
