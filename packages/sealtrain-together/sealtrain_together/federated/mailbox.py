"""A party's side of Flower: turns arrive on a unix socket, each is answered once (spec §2, §3)."""

from __future__ import annotations

import queue
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from sealtrain.errors import LimitExceeded
from sealtrain.training.errors import ChannelBroken, PeerUnreachable
from sealtrain_together.channel.streams import Buffer
from sealtrain_together.federated.frames import (
    HEAD,
    TAKEN,
    TURN_BYTES,
    bind_socket,
    receive_frame,
    send_frame,
)

_READ_S = 30.0
_NOT_TAKEN = b"\x01"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadMessage:
    """One message of the lead.

    Attributes:
        conversation: 16 bytes that name the channel.
        number: Its turn, from 0.
        data: Bytes of the channel.
    """

    conversation: bytes
    number: int
    data: bytes
    _relay: socket.socket

    def answer(self, data: Buffer) -> None:
        """Send back bytes of the channel; a relay that went away loses them."""
        self._close(TAKEN + data)

    def refuse(self) -> None:
        """Say that no such conversation is known here."""
        self._close(_NOT_TAKEN)

    def _close(self, frame: bytes) -> None:
        with self._relay, suppress(PeerUnreachable):
            send_frame(self._relay, frame)


class Mailbox:
    """Where turns arrive. Use as a context: it listens.

    Args:
        path: Where the unix socket is made. Make it before the process is confined.
        turn_bytes: Most bytes of a channel in one answer.
    """

    def __init__(self, path: Path, *, turn_bytes: int = TURN_BYTES) -> None:
        self.path = path
        self.turn_bytes = turn_bytes

    def __enter__(self) -> Self:
        self._listener = bind_socket(self.path)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # before it is free for another one; a confined process leaves it
            self.path.unlink()
        self._listener.close()

    def next(self, timeout: float) -> LeadMessage | None:
        """The next turn; ``None`` when none arrives in time, or another message arrives.

        Args:
            timeout: Seconds.
        """
        self._listener.settimeout(timeout)
        try:
            relay, _address = self._listener.accept()
        except TimeoutError:
            return None
        relay.settimeout(_READ_S)
        try:
            frame = receive_frame(relay)
        except (ChannelBroken, LimitExceeded, PeerUnreachable):
            relay.close()
            return None
        if len(frame) < HEAD.size:
            relay.close()
            return None
        conversation, number = HEAD.unpack_from(frame)
        return LeadMessage(
            conversation=conversation, number=number, data=frame[HEAD.size :], _relay=relay
        )


class AnsweringStream:
    """The party's end of a channel in turns: reads a turn, and writes its answer.

    The answer goes out when the channel wants to read what the turn did not bring, empty where the
    request goes on; and in parts, each for an empty turn, where it is longer than a turn.

    Args:
        turn_bytes: Most bytes of the channel in an answer.
    """

    def __init__(self, turn_bytes: int = TURN_BYTES) -> None:
        self._most = turn_bytes
        self._turns: queue.SimpleQueue[LeadMessage | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._expected = 0
        self._open = True
        self._turn: LeadMessage | None = None
        self._out = bytearray()
        self._in = memoryview(b"")

    def deliver(self, turn: LeadMessage) -> None:
        """Hand in a turn; one that is not the next is refused, and nothing comes of it."""
        with self._lock:
            fits = self._open and turn.number == self._expected
            self._expected += fits
        if fits:
            self._turns.put(turn)
        else:
            turn.refuse()

    def sendall(self, data: Buffer, /) -> None:
        """Keep bytes for the answer."""
        if not self._open:
            raise ConnectionResetError("another conversation took its place")
        self._out += data
        while len(self._out) > self._most:
            self._answer(self._most)
            turn = self._turns.get()
            if turn is None or turn.data:
                if turn is not None:
                    turn.refuse()
                raise ConnectionResetError("the lead does not fetch the rest of an answer")
            self._turn = turn

    def recv_into(self, buffer: memoryview, /) -> int:
        """Receive of this turn; of the next one, once this one is answered."""
        while not len(self._in):
            self._answer()
            turn = self._turns.get()
            if turn is None:
                return 0
            self._turn, self._in = turn, memoryview(turn.data)
        count = min(len(buffer), len(self._in))
        buffer[:count] = self._in[:count]
        self._in = self._in[count:]
        return count

    def end(self) -> None:
        """Let nothing more in; a reader finds the stream at its end. From any thread."""
        with self._lock:
            self._open = False
        self._turns.put(None)

    def close(self) -> None:
        """Send what is left of the answer and end."""
        self._answer()
        self.end()

    def _answer(self, count: int | None = None) -> None:
        part = bytes(self._out[:count])
        del self._out[:count]
        if self._turn is not None:
            self._turn.answer(part)
            self._turn = None
