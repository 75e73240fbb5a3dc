"""Somebody on the way between the parties of a travelling run: sees all, and meddles."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

Meddle = Callable[[int, bytes], list[bytes]]
"""Number of a frame in its direction, and the frame → what is passed on in its place."""

_HEAD = struct.Struct(">BI")
_SHAKE = struct.Struct(">I")


def honest(_number: int, frame: bytes) -> list[bytes]:
    return [frame]


@dataclass
class Relay:
    """Bytes of each connection that went through, by direction, as they came."""

    there: list[bytearray] = field(default_factory=list)
    back: list[bytearray] = field(default_factory=list)


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise ConnectionError
        data += part
    return data


def _frames(sock: socket.socket, prelude: int, shakes: int) -> Iterator[tuple[bool, bytes]]:
    """Whether it is a record, and the frame: first what comes before records, then those."""
    if prelude:
        yield False, _exactly(sock, prelude)
    for _ in range(shakes):
        head = _exactly(sock, _SHAKE.size)
        yield False, head + _exactly(sock, _SHAKE.unpack(head)[0])
    while True:
        head = _exactly(sock, _HEAD.size)
        yield True, head + _exactly(sock, _HEAD.unpack(head)[1])


def _pump(
    source: socket.socket, target: socket.socket, kept: bytearray, meddle: Meddle,
    prelude: int, shakes: int,
) -> None:  # fmt: skip
    number = 0
    try:
        for record, frame in _frames(source, prelude, shakes):
            kept += frame
            for one in meddle(number, frame) if record else [frame]:
                target.sendall(one)
            number += record
    except OSError:
        pass
    finally:
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


@contextmanager
def relayed(
    address: tuple[str, int], *, there: Meddle = honest, back: Meddle = honest, writes: bool = False
) -> Iterator[tuple[tuple[str, int], Relay]]:
    """A port that leads to ``address`` over somebody who meddles with records.

    Args:
        address: Where it leads.
        there: What becomes of records of who connects.
        back: Of those of who answers.
        writes: It is a write port: an id first, no handshake. Else an attested channel.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    relay, open_ones = Relay(), []

    def serve() -> None:
        while True:
            try:
                caller, _ = listener.accept()
                answerer = socket.create_connection(address, timeout=30)
            except OSError:
                return
            open_ones.extend([caller, answerer])
            relay.there.append(bytearray())
            relay.back.append(bytearray())
            shakes = (0, 0) if writes else (2, 1)  # hello and finish there, answer back
            for source, target, kept, meddle, prelude, count in (
                (caller, answerer, relay.there[-1], there, 16 if writes else 0, shakes[0]),
                (answerer, caller, relay.back[-1], back, 0, shakes[1]),
            ):
                threading.Thread(
                    target=_pump, args=(source, target, kept, meddle, prelude, count), daemon=True
                ).start()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[:2], relay
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for sock in open_ones:
            sock.close()
        thread.join(5)
