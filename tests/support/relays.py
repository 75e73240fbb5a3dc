"""Somebody on the way between two parties: sees all, and meddles."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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


Passing = Callable[[socket.socket, bytearray], Iterator[bytes]]
"""Reads one direction of a connection, keeps what came, and gives what is passed on."""


def altering(change: Callable[[bytes], bytes] = lambda data: data) -> Passing:
    """Bytes as they come."""

    def passed(source: socket.socket, kept: bytearray) -> Iterator[bytes]:
        while data := source.recv(1 << 18):
            kept += data
            yield change(data)

    return passed


def framed(meddle: Meddle, *, prelude: int, shakes: int) -> Passing:
    """Frames of a channel; ``meddle`` is asked about records alone."""

    def passed(source: socket.socket, kept: bytearray) -> Iterator[bytes]:
        number = 0
        for record, frame in _frames(source, prelude, shakes):
            kept += frame
            yield from meddle(number, frame) if record else [frame]
            number += record

    return passed


def _pump(source: socket.socket, target: socket.socket, kept: bytearray, passing: Passing) -> None:
    try:
        for part in passing(source, kept):
            target.sendall(part)
    except OSError:
        pass
    finally:
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


def relayed(
    address: tuple[str, int], *, there: Meddle = honest, back: Meddle = honest, writes: bool = False
) -> contextlib.AbstractContextManager[tuple[tuple[str, int], Relay]]:
    """A port that leads to ``address`` over somebody who meddles with records.

    Args:
        address: Where it leads.
        there: What becomes of records of who connects.
        back: Of those of who answers.
        writes: It is a write port: an id first, no handshake. Else an attested channel.
    """
    shakes = (0, 0) if writes else (2, 1)  # hello and finish there, answer back
    return carried(
        address,
        framed(there, prelude=16 if writes else 0, shakes=shakes[0]),
        framed(back, prelude=0, shakes=shakes[1]),
    )


@contextmanager
def carried(
    address: tuple[str, int], there: Passing, back: Passing
) -> Iterator[tuple[tuple[str, int], Relay]]:
    """A port that leads to ``address`` over somebody who sees all that passes."""
    listener = socket.create_server(("127.0.0.1", 0))
    relay, ends = Relay(), list[socket.socket]()
    threads: list[threading.Thread] = []

    def serve() -> None:
        while True:
            try:
                caller, _ = listener.accept()
                answerer = socket.create_connection(address, timeout=30)
            except OSError:
                return
            ends.extend([caller, answerer])
            relay.there.append(bytearray())
            relay.back.append(bytearray())
            for source, target, kept, passing in (
                (caller, answerer, relay.there[-1], there),
                (answerer, caller, relay.back[-1], back),
            ):
                given = (source, target, kept, passing)
                threads.append(threading.Thread(target=_pump, args=given, daemon=True))
                threads[-1].start()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[:2], relay
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # a close alone wakes nobody who reads
        for item in (thread, *threads):
            item.join(5)
        for end in ends:
            end.close()


SECONDS = 30.0


def answered(address: tuple[str, int], said: bytes) -> bytes:
    """Everything that is answered to one who says this, until the other end closes."""
    heard = b""
    with (
        suppress(ConnectionError),
        socket.create_connection(address, timeout=SECONDS) as connection,
    ):
        connection.sendall(said)
        with suppress(OSError):  # it has closed the connection already
            connection.shutdown(socket.SHUT_WR)
        while data := connection.recv(1 << 16):
            heard += data
    return heard


def expect_only_a_handshake(heard: bytes) -> None:
    """It answered a hello, and nothing behind it: not even that it is ready."""
    if heard:
        (size,) = struct.unpack_from(">I", heard)
        assert len(heard) == 4 + size
        assert set(json.loads(heard[4:])) == {"nonce", "proof", "public_key", "sealed", "version"}
