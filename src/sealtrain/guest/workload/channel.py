"""The channel between a workload and its keeper: frames over stream sockets that a fork made.

A frame is its length (4 bytes, big endian) and canonical JSON (spec/workload-channel.md §1). Each
connection is one queue: the workload asks, the keeper answers in order. The keeper reads a question
only after it answered the one before, so a flood fills the workload's own buffers.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.base.process_state import OneProcess
from sealtrain.errors import DataInvalid, LimitExceeded, SealtrainError, error_by_code
from sealtrain.guest.workload.messages import MAX_QUESTION_BYTES, WorkloadQuestion, parse_question

_LENGTH: Final = struct.Struct("!I")
_MAX_ANSWER_BYTES: Final = 256 << 20
_NAMES: Final = ("control", "rows", "store")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelEnds:
    """One side's ends of a rank's connections."""

    control: socket.socket
    rows: socket.socket
    store: socket.socket

    @property
    def all(self) -> tuple[socket.socket, ...]:
        """All three."""
        return self.control, self.rows, self.store


def connections() -> tuple[ChannelEnds, ChannelEnds]:
    """Connections of a rank: the keeper's ends, and the workload's."""
    pairs = {name: socket.socketpair() for name in _NAMES}
    ours = ChannelEnds(**{name: pair[0] for name, pair in pairs.items()})
    return ours, ChannelEnds(**{name: pair[1] for name, pair in pairs.items()})


@dataclass(frozen=True, slots=True)
class Reply:
    """The keeper's answer.

    Attributes:
        fields: Of the message.
        descriptor: Of a memory that goes along with it; the channel closes it.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    descriptor: int | None = None


class AskingEnd:
    """The workload's end of a connection. Threads may ask at a time; each waits for its answer."""

    def __init__(self, end: socket.socket) -> None:
        """Ask over this end, in this process only."""
        self._end = end
        self._process = OneProcess("its channel to the keeper")
        self._sending = threading.Lock()
        self._turns = threading.Condition()
        self._asked = self._answered = 0

    def ask(self, question: WorkloadQuestion) -> tuple[dict[str, Any], int | None]:
        """The keeper's answer, and the descriptor that came with it.

        Raises:
            SealtrainError: The keeper refused, as an error of the same class without its words.
            EOFError: The keeper is gone.
            ForkRefused: This process was forked from the one that asks.
        """
        self._process.require()
        body = question.to_bytes()
        with self._sending:
            turn = self._asked
            self._asked += 1
            self._end.sendall(_LENGTH.pack(len(body)) + body)
        with self._turns:
            self._turns.wait_for(lambda: self._answered == turn)
            try:
                answer, descriptor = self._receive()
            finally:
                self._answered += 1
                self._turns.notify_all()
        if "refused" in answer:
            raise error_by_code(answer["refused"])("the keeper refused", check="keeper")
        return answer, descriptor

    def _receive(self) -> tuple[dict[str, Any], int | None]:
        head, descriptors, _flags, _peer = socket.recv_fds(self._end, _LENGTH.size, 1)
        head += _exactly(self._end, _LENGTH.size - len(head)) if head else b""
        if len(head) < _LENGTH.size:
            raise EOFError("the keeper is gone")
        body = _exactly(self._end, _LENGTH.unpack(head)[0])
        answer: dict[str, Any] = parse_json(body, max_bytes=_MAX_ANSWER_BYTES)
        return answer, descriptors[0] if descriptors else None


def answer_all(
    name: str, end: socket.socket, answer: Callable[[WorkloadQuestion], Reply | None]
) -> None:
    """Answer the questions of a connection until the workload is gone. The keeper's side.

    Args:
        name: Of the connection.
        end: The keeper's.
        answer: Answers a question; ``None`` where there is nothing more to answer. What it raises
            and is not ``Refusal`` ends the connection.

    Raises:
        Misused: A frame is too long or cut off, or no question; or the answer is not read.
        Exception: As ``answer``.
    """
    while (body := _question(end)) is not None:
        try:
            reply = answer(_parse_question(name, body))
        except Refusal as refusal:
            reply = Reply({"refused": refusal.error.code})
        if reply is None:
            return
        _send(end, reply)


class Misused(Exception):
    """A frame is none, or a question is not one of ours or comes out of order."""


class Refusal(Exception):
    """The keeper refuses a question; the workload may go on.

    Attributes:
        error: Why.
    """

    def __init__(self, error: SealtrainError) -> None:
        super().__init__(error.code)
        self.error = error


def _parse_question(name: str, body: bytes) -> WorkloadQuestion:
    try:
        return parse_question(name, body)
    except (DataInvalid, LimitExceeded) as error:
        raise Misused("no question of this connection") from error


def _question(end: socket.socket) -> bytes | None:
    """The next frame; ``None`` where the workload's end was closed between two frames."""
    try:
        head = end.recv(_LENGTH.size)  # descriptors that come along are not received
        if not head:
            return None
        head += _exactly(end, _LENGTH.size - len(head))
        (length,) = _LENGTH.unpack(head)
        if length > MAX_QUESTION_BYTES:
            raise Misused("a question is too long")
        return _exactly(end, length)
    except (EOFError, OSError):
        raise Misused("a question was cut off") from None


def _send(end: socket.socket, reply: Reply) -> None:
    body = canonical_json(reply.fields)
    frame = _LENGTH.pack(len(body)) + body
    try:
        sent = 0
        if reply.descriptor is not None:
            sent = socket.send_fds(end, [frame[: _LENGTH.size]], [reply.descriptor])
        end.sendall(frame[sent:])
    except OSError:  # the workload is gone
        raise Misused("an answer was not read") from None
    finally:
        if reply.descriptor is not None:
            os.close(reply.descriptor)


def _exactly(end: socket.socket, length: int) -> bytes:
    data = bytearray(length)
    view, done = memoryview(data), 0
    while done < length:
        count = end.recv_into(view[done:])
        if not count:
            raise EOFError("the other end is gone")
        done += count
    return bytes(data)
