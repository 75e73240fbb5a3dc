"""Frames between a guest and the relay beside it, and a channel's bytes in turns (spec §2, §3).

The relay runs outside: what comes from it is read with a cap, and proves nothing.
"""

from __future__ import annotations

import errno
import socket
import stat
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sealtrain.errors import LimitExceeded, UsageError
from sealtrain_together.channel.streams import Buffer, receive_exactly, send_all

MAX_FRAME = 64 << 20
TURN_BYTES = 32 << 20
"""Of a channel that one turn or answer carries: what is longer goes in several."""
TO_RELAY = struct.Struct(">QII")
"""Node, number of the message, seconds it may take."""
FROM_RELAY = struct.Struct(">BI")
"""Kind, number of the message."""
NODES, REPLY, LOST = range(3)

HEAD = struct.Struct(">16sI")
"""Of a turn to a party: which conversation, and which turn of it, from 0."""
TAKEN = b"\x00"
"""A party's answer begins with it; whatever else means that it has no such conversation."""

_LENGTH = struct.Struct(">I")
_MAX_PATH = 107


def send_frame(sock: socket.socket, data: Buffer) -> None:
    """Send bytes behind their length.

    Raises:
        PeerUnreachable: The other side does not take them.
    """
    send_all(sock, _LENGTH.pack(len(data)))
    send_all(sock, data)


def receive_frame(sock: socket.socket) -> bytes:
    """What was sent by ``send_frame``.

    Raises:
        LimitExceeded: It is longer than a frame may be.
        ChannelBroken, PeerUnreachable: It does not arrive.
    """
    (size,) = _LENGTH.unpack(receive_exactly(sock, _LENGTH.size))
    if size > MAX_FRAME:
        raise LimitExceeded(
            "a frame of the relay is too long", got=size, expected=f"at most {MAX_FRAME} bytes"
        )
    return receive_exactly(sock, size)


def bind_socket(path: Path) -> socket.socket:
    """A listening unix socket that only this user reaches.

    A socket that an ended process left there is replaced; so no process removes its own,
    which may be its successor's by then.

    Raises:
        UsageError: A process listens there, or the path is no place for a socket.
    """
    try:
        length = len(str(path).encode())
    except UnicodeEncodeError:
        raise UsageError("the path of the relay's socket is no text") from None
    if length > _MAX_PATH:
        raise UsageError(
            "the path of the relay's socket is too long",
            got=f"{length} bytes",
            expected=f"at most {_MAX_PATH}",
            hint="choose a shorter one, such as under /run",
        )
    listener = socket.socket(socket.AF_UNIX)
    try:
        _remove_what_is_left(path)
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen()
    except OSError as error:
        listener.close()
        raise UsageError(
            "cannot listen for the relay",
            got=f"{path}: {error.strerror}",
            hint="remove what lies there; its path is at most 107 bytes long",
        ) from error
    return listener


def _remove_what_is_left(path: Path) -> None:
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(errno.EEXIST, "another file lies there")
    with socket.socket(socket.AF_UNIX) as caller:
        try:
            caller.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
        except FileNotFoundError:
            return
        else:
            raise FileExistsError(errno.EADDRINUSE, "another guest listens there")


class AskingStream:
    """The lead's end of a channel in turns: it writes a request, then it reads the reply.

    What is longer than a turn goes in several, each answered by nothing but the last; where the
    answer is longer than a turn, empty turns fetch the rest. So neither side, nor anything between
    them, holds more of the channel than a turn.

    Args:
        exchange: Carries a turn to the party and brings its answer. Raises ``PeerUnreachable``.
        conversation: 16 random bytes that name this channel to the party.
        turn_bytes: Most bytes of the channel in a turn.
    """

    def __init__(
        self,
        exchange: Callable[[bytes], bytes],
        conversation: bytes,
        *,
        turn_bytes: int = TURN_BYTES,
    ) -> None:
        self._exchange = exchange
        self._conversation = conversation
        self._most = turn_bytes
        self._turn = 0
        self._out = bytearray()
        self._in = memoryview(b"")

    def sendall(self, data: Buffer, /) -> None:
        """Keep bytes for the next turn; send what one turn cannot carry."""
        self._out += data
        while len(self._out) > self._most:  # the last byte stays: nothing is answered before it
            if len(self._ask(self._most)):
                raise ConnectionResetError("the party answered before it was asked")

    def recv_into(self, buffer: memoryview, /) -> int:
        """Receive of this turn's answer; of the next one's, when that is used up."""
        if not len(self._in):
            self._in = self._ask(len(self._out))  # by an empty turn for the rest of an answer
        count = min(len(buffer), len(self._in))
        buffer[:count] = self._in[:count]
        self._in = self._in[count:]
        return count

    def _ask(self, count: int) -> memoryview:
        """Send the first bytes as a turn; its answer, empty where the party has no more to say."""
        said = HEAD.pack(self._conversation, self._turn) + self._out[:count]
        del self._out[:count]
        self._turn += 1
        answer = self._exchange(said)
        if answer[:1] != TAKEN or len(answer) > self._most + len(TAKEN):
            raise ConnectionResetError("the party has no such conversation")
        return memoryview(answer)[1:]

    def close(self) -> None:
        """Forget what was not carried yet."""
        self._out.clear()
        self._in = memoryview(b"")
