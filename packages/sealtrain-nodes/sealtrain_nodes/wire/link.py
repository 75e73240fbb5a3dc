"""One peer's connection while the group works: frames out, frames in, without waiting.

A link has two queues, of pieces to send and of pieces to receive. ``pump`` moves as much as the
socket takes and has; what waits for the sockets is the engine. Everything that is expected is
known beforehand, so a frame that is anything else ends the group.
"""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from sealtrain.errors import SealtrainError, error_by_code
from sealtrain.training.errors import ChannelBroken, ChannelCut
from sealtrain_nodes.wire.frames import (
    DATA,
    END,
    FAILED,
    FRAME_BYTES,
    HEAD,
    NO_FORM,
    OVERHEAD,
    READY,
    FrameOpener,
    Position,
    Sealer,
)

_TURN: Final = 4
"""Frames that are moved in a direction before the other directions have their turn."""


class PeerFailed(Exception):
    """The peer reported why it gave up. Internal: the engine makes an error of it."""

    def __init__(self, error: SealtrainError, blamed: int) -> None:
        super().__init__(error.code)
        self.error = error
        self.blamed = blamed


class Piece:
    """At most one frame of one operation, in one direction.

    Attributes:
        form: What it is part of.
        size: Bytes of it.
        view: Bytes to send, or room for what is received.
        then: Called once it was sent, or received and opened.
        room: Gives the view of a piece that is received, once it has arrived.
        ready: Whether ``view`` has its bytes, for a piece to send.
    """

    __slots__ = ("form", "ready", "room", "size", "then", "view")

    def __init__(
        self,
        form: bytes,
        size: int,
        view: memoryview,
        then: Callable[[], None],
        *,
        room: Callable[[], memoryview] | None = None,
        ready: bool = True,
    ) -> None:
        self.form = form
        self.size = size
        self.view = view
        self.then = then
        self.room = room
        self.ready = ready


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedLink:
    """A proven peer's connection between two frames, on its way to the process that trains.

    Attributes:
        rank: Of the peer.
        sock: Its connection.
        sends: Where the direction out stands.
        receives: Where the direction in stands.
    """

    rank: int
    sock: socket.socket
    sends: Position
    receives: Position


class Link:
    """A connected, proven peer.

    Args:
        rank: Of the peer.
        sock: Its connection.
        sealer: For the direction out.
        opener: For the direction in.
    """

    def __init__(self, rank: int, sock: socket.socket, sealer: Sealer, opener: FrameOpener) -> None:
        self.rank = rank
        self.socket = sock
        self.descriptor = sock.fileno()
        self._sealer = sealer
        self._opener = opener
        self._out: deque[Piece] = deque()
        self._in: deque[Piece] = deque()
        self._sealed = memoryview(bytearray(FRAME_BYTES + OVERHEAD))
        self._rest: memoryview | None = None  # of the frame that is being sent
        self._frame = memoryview(bytearray(FRAME_BYTES + OVERHEAD))
        self._got = 0
        self._last: list[memoryview] = []
        self.bytes_sent = 0
        """Bytes of frames that the system took."""

    @classmethod
    def taken_over(cls, handed: HandedLink) -> Self:
        """Go on with a connection that another process of this guest made."""
        sends, receives = handed.sends, handed.receives
        handed.sock.setblocking(False)
        return cls(
            handed.rank,
            handed.sock,
            Sealer(sends.key, number=sends.number),
            FrameOpener(receives.key, number=receives.number),
        )

    def handed_over(self) -> HandedLink:
        """Give the connection to the process that goes on with it; this one forgets the keys.

        Raises:
            ChannelBroken: Something is half sent or half received, or the link is closed.
        """
        if self._out or self._in or self._got or self._rest is not None or self._last:
            raise ChannelBroken(
                "a wire is handed over between two operations", check="wire", got=self._who
            )
        return HandedLink(
            rank=self.rank,
            sock=self.socket,
            sends=self._sealer.handed_over(),
            receives=self._opener.handed_over(),
        )

    def send(self, piece: Piece) -> None:
        """Queue a piece."""
        self._out.append(piece)

    def expect(self, piece: Piece) -> None:
        """Queue room for a piece."""
        self._in.append(piece)

    @property
    def wants_out(self) -> bool:
        """Whether a frame waits for the socket to take it."""
        return self._rest is not None or (bool(self._out) and self._out[0].ready)

    @property
    def wants_in(self) -> bool:
        """Whether a frame is expected."""
        return bool(self._in)

    def pump_out(self) -> bool:
        """Send what the socket takes; whether it took anything.

        Raises:
            ChannelCut: The connection is gone.
        """
        moved = False
        for _ in range(_TURN):
            if self._rest is None:
                if not self._out or not self._out[0].ready:
                    return moved
                piece = self._out[0]
                size = self._sealer.seal(DATA, piece.form, piece.view, self._sealed)
                self._rest = self._sealed[:size]
            try:
                sent = self.socket.send(self._rest)
            except (BlockingIOError, InterruptedError):
                return moved
            except OSError as error:
                self._hear_last_words()
                raise self._cut(error) from error
            moved = True
            self.bytes_sent += sent
            if sent < len(self._rest):
                self._rest = self._rest[sent:]
                return True
            self._rest = None
            self._out.popleft().then()
        return moved

    def pump_in(self) -> bool:
        """Receive what has arrived of the pieces that are expected; whether anything had.

        Raises:
            ChannelCut: The connection ended.
            ChannelBroken: Anything else arrived than the next piece.
            PeerFailed: The peer gave up.
        """
        moved = False
        for _ in range(_TURN):
            if not self._in:
                return moved
            piece = self._in[0]
            whole = piece.size + OVERHEAD
            got = self._receive(whole)
            if not got:
                return moved
            moved = True
            if self._got >= HEAD.size:
                kind, size, form = HEAD.unpack_from(self._frame)
                if kind != DATA or size != piece.size or form != piece.form:
                    self._refuse_unexpected(kind, size)
            if self._got < whole:
                continue
            view = piece.view if piece.room is None else piece.room()
            self._opener.open(self._frame[:whole], view)
            self._got = 0
            self._in.popleft().then()
        return moved

    def _receive(self, whole: int) -> int:
        try:
            got = self.socket.recv_into(self._frame[self._got : whole])
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            raise self._cut(error) from error
        if not got:
            raise self._cut(None)
        self._got += got
        return got

    def _refuse_unexpected(self, kind: int, size: int) -> None:
        """A head that is not the expected one: if the frame is genuine, it says why."""
        if size > FRAME_BYTES:
            raise ChannelBroken(
                "a frame is longer than any that is sent",
                check="frame",
                got=size,
                expected=f"at most {FRAME_BYTES}",
            )
        whole = size + OVERHEAD
        if self._got > whole:  # the rest belongs to what follows, and nothing follows
            self._got = whole
        while self._got < whole:
            if not self._receive(whole):
                return
        plain = memoryview(bytearray(size))
        self._opener.open(self._frame[:whole], plain)
        if kind == END:
            raise ChannelCut("the peer has ended the session", check="end", got=self._who)
        if kind == FAILED:
            code, _, blamed = bytes(plain[:128]).decode("ascii", "replace").partition(" ")
            found = error_by_code(code)("a rank gave up", check="peer", got=f"rank {blamed}")
            raise PeerFailed(found, int(blamed) if blamed.isdecimal() else self.rank)
        raise ChannelBroken(
            "the ranks do not do the same: one sent a part of another operation",
            check="operation",
            got=self._who,
            hint="every rank has to call the same collectives, with the same shapes and types",
        )

    def _hear_last_words(self) -> None:
        """Look through what the peer sent before the connection broke: it may say why.

        Raises:
            ChannelCut, PeerFailed: It does.
        """
        with contextlib.suppress(BlockingIOError, OSError, ChannelBroken):
            while True:
                while self._got < OVERHEAD:
                    if not self._receive(OVERHEAD):
                        return
                kind, size, _ = HEAD.unpack_from(self._frame)
                if kind != DATA or size > FRAME_BYTES:
                    self._refuse_unexpected(kind, size)
                    return
                whole = size + OVERHEAD
                while self._got < whole:
                    if not self._receive(whole):
                        return
                self._opener.open(self._frame[:whole], memoryview(bytearray(size)))
                self._got = 0

    def exchange_ready(self, receive: Callable[[memoryview], None]) -> None:
        """Send the first frame and open the peer's (check 7 of the handshake), then do not wait.

        Args:
            receive: Fills a buffer from the socket, or raises.

        Raises:
            ChannelBroken: The first frame does not open, or is another one.
            OSError: The connection failed.
        """
        size = self._sealer.seal(READY, NO_FORM, self._sealed[:0], self._sealed)
        self.socket.sendall(self._sealed[:size])
        frame = self._frame[:OVERHEAD]
        receive(frame)
        self._opener.open(frame, self._frame[:0])
        if HEAD.unpack_from(frame) != (READY, 0, NO_FORM):
            raise ChannelBroken("the first frame is another one", check="frame", got=self._who)
        self.socket.setblocking(False)

    def part(self, kind: int, word: bytes = b"") -> None:
        """Stop working: a last frame follows what is half sent. ``leave`` sends it."""
        self._out.clear()
        self._in.clear()
        frame = memoryview(bytearray(len(word) + OVERHEAD))
        with contextlib.suppress(ChannelBroken):  # it is closed
            self._sealer.seal(kind, NO_FORM, memoryview(word), frame)
            self._last = [frame] if self._rest is None else [self._rest, frame]
        self._sealer.forget()
        self._opener.forget()

    @property
    def tells(self) -> bool:
        """Whether something of the last words is not sent yet."""
        return bool(self._last)

    def leave(self) -> bool:
        """Send what the socket takes of the last words, and drop what the peer still sends.

        A connection that is closed over bytes that were not read is reset, and takes the last words
        with it.

        Returns:
            Whether both directions have ended.
        """
        try:
            while self._last:
                sent = self.socket.send(self._last[0])
                self._last[0] = self._last[0][sent:]
                if not self._last[0]:
                    del self._last[0]
                if not self._last:
                    self.socket.shutdown(socket.SHUT_WR)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            return True
        try:
            return not self.socket.recv_into(self._frame)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            return True

    def close(self) -> None:
        """Forget the keys and close the connection."""
        self._out.clear()
        self._in.clear()
        self._sealer.forget()
        self._opener.forget()
        self.socket.close()

    @property
    def _who(self) -> str:
        return f"rank {self.rank}"

    def _cut(self, error: OSError | None) -> ChannelCut:
        return ChannelCut(
            "the wire to a rank was cut",
            check="wire",
            got=self._who if error is None else f"{self._who}, {type(error).__name__}",
            hint="its node died, or the network failed: start again from the last checkpoint",
        )
