"""Connections of a script's ranks to other nodes, whose sessions the keeper's process holds.

The engines' own code gets a proven connection whole: socket, keys, numbers of the next frames. A
script of the engineer's gets none of that. Its rank has a socket within this guest, under keys of
its own; this module opens what comes from it and seals it for the other node, and the other way
round. So a script has no socket on which it could write in the clear, and no key of a session.

Towards the network all frames have one length (spec/node-wire.md §6): a script chooses what its
ranks send each other, and lengths would say it to the network. How many it sends, and when, stays
visible.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
import time
from collections import deque
from typing import Final

from sealtrain.base.secret import Random, Secret
from sealtrain.errors import SealtrainError
from sealtrain.training.errors import ChannelBroken
from sealtrain_nodes.wire.frames import (
    DATA,
    FRAME_BYTES,
    HEAD,
    OVERHEAD,
    FrameOpener,
    Position,
    Sealer,
    form_of,
)
from sealtrain_nodes.wire.link import HandedLink

CELL_BYTES: Final = HEAD.size + FRAME_BYTES
"""Plaintext of each frame towards another node: a head, what it says, and zeros."""
CARRIED: Final = form_of("a frame of a script")
_KEY_BYTES: Final = 32
_DRAIN_SECONDS: Final = 5.0
_TURN: Final = 4
"""Frames that go one way before the other ways have their turn."""


class FrameRelay:
    """Carries frames between the ranks of a script and other nodes, in one thread.

    Thread-safe. It takes 2 MiB for each connection.
    """

    def __init__(self, *, random: Random = os.urandom) -> None:
        """Carry nothing yet.

        Args:
            random: Source of the keys within this guest.
        """
        self._random = random
        self._guard = threading.Lock()
        self._new: deque[_Crossing] = deque()
        self._selector = selectors.DefaultSelector()
        self._wakes, self._wake = socket.socketpair()
        self._selector.register(self._wakes, selectors.EVENT_READ, None)
        self._thread: threading.Thread | None = None
        self._ends_at: float | None = None

    def carry(self, handed: HandedLink) -> HandedLink:
        """Keep a connection to another node; returns the one for the rank in its place."""
        near, far = socket.socketpair()
        there, back = Secret(self._random(_KEY_BYTES)), Secret(self._random(_KEY_BYTES))
        crossing = _Crossing(handed, near, sends=there, receives=back)
        with self._guard:
            self._new.append(crossing)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
                self._thread.start()
        self._wake.send(b"\0")
        return HandedLink(
            rank=handed.rank,
            sock=far,
            sends=Position(key=there, number=0),
            receives=Position(key=back, number=0),
        )

    def close(self) -> None:
        """Deliver what is under way, no longer than a few seconds, and close every connection."""
        self._ends_at = time.monotonic() + _DRAIN_SECONDS
        with contextlib.suppress(OSError):
            self._wake.send(b"\0")
        if self._thread is not None:
            self._thread.join()
        for crossing in self._new:
            crossing.close()
        self._wake.close()
        self._wakes.close()
        self._selector.close()

    def _run(self) -> None:
        carried: list[_Crossing] = []
        try:
            while not self._is_over(carried):
                self._carry_on(carried)
        finally:  # whatever ended it: both ends of each connection learn of it
            for crossing in carried:
                self._forget(crossing)
                crossing.close()

    def _carry_on(self, carried: list[_Crossing]) -> None:
        """Wait until something comes, and carry it."""
        left = None if self._ends_at is None else max(0.0, self._ends_at - time.monotonic())
        moved: dict[int, _Crossing] = {}
        for key, _events in self._selector.select(left):
            if key.data is None:
                with contextlib.suppress(OSError):
                    self._wakes.recv(1024)
            else:
                moved[id(key.data)] = key.data
        with self._guard:
            while self._new:
                crossing = self._new.popleft()
                carried.append(crossing)
                moved[id(crossing)] = crossing
        for crossing in moved.values():
            crossing.pump()
            self._watch(crossing)
            if crossing.over:
                carried.remove(crossing)

    def _is_over(self, carried: list[_Crossing]) -> bool:
        ends_at = self._ends_at
        return ends_at is not None and (not carried or time.monotonic() >= ends_at)

    def _watch(self, crossing: _Crossing) -> None:
        self._forget(crossing)
        if crossing.over:
            crossing.close()
            return
        for sock, events in crossing.wants.items():
            if events:
                self._selector.register(sock, events, crossing)

    def _forget(self, crossing: _Crossing) -> None:
        for sock in crossing.sockets:
            with contextlib.suppress(KeyError, ValueError):  # it is not watched
                self._selector.unregister(sock)


class _Crossing:
    """One rank's connection to one rank of another node: both ways."""

    def __init__(
        self, handed: HandedLink, near: socket.socket, *, sends: Secret, receives: Secret
    ) -> None:
        self.sockets = near, handed.sock
        for sock in self.sockets:
            sock.setblocking(False)
        self._ways = (
            _Outward(
                near,
                handed.sock,
                FrameOpener(sends),
                Sealer(handed.sends.key, number=handed.sends.number),
            ),
            _Inward(
                handed.sock,
                near,
                FrameOpener(handed.receives.key, number=handed.receives.number),
                Sealer(receives),
            ),
        )
        self._broken = False

    @property
    def over(self) -> bool:
        """Whether nothing more is carried."""
        return self._broken or all(way.ended for way in self._ways)

    @property
    def wants(self) -> dict[socket.socket, int]:
        """What each socket is waited for, as of ``selectors``."""
        found = dict.fromkeys(self.sockets, 0)
        for way in self._ways:
            if way.has_rest:
                found[way.sink] |= selectors.EVENT_WRITE
            elif not way.ended:
                found[way.source] |= selectors.EVENT_READ
        return found

    def pump(self) -> None:
        """Carry what has come, both ways. What is not due ends the connection at both ends."""
        for way in self._ways:
            try:
                way.pump()
            except OSError:
                way.cut()  # what the other end said last may still be on its way here
            except SealtrainError:
                self._broken = True

    def close(self) -> None:
        """Forget the keys and close both sockets."""
        for way in self._ways:
            way.forget()
        for sock in self.sockets:
            sock.close()


class _Way:
    """Frames from one socket to the other, each opened and sealed anew."""

    def __init__(
        self, source: socket.socket, sink: socket.socket, opener: FrameOpener, sealer: Sealer
    ) -> None:
        self.source, self.sink, self.ended = source, sink, False
        self._opener, self._sealer = opener, sealer
        self._frame = memoryview(bytearray(CELL_BYTES + OVERHEAD))
        self._plain = memoryview(bytearray(CELL_BYTES))
        self._sealed = memoryview(bytearray(CELL_BYTES + OVERHEAD))
        self._got = 0
        self._rest: memoryview | None = None

    @property
    def has_rest(self) -> bool:
        """Whether the sink has yet to take some of a frame."""
        return self._rest is not None

    def pump(self) -> None:
        """Move some frames.

        Raises:
            ChannelBroken: One is not the next of its direction.
            OSError: A connection failed.
        """
        with contextlib.suppress(BlockingIOError, InterruptedError):
            for _ in range(_TURN):
                self._flush()
                if self.ended or not self._receive():
                    return
                self._rest = self._sealed[: self._carry()]
            self._flush()

    def cut(self) -> None:
        """Carry nothing more: a socket failed."""
        self.ended, self._rest = True, None
        with contextlib.suppress(OSError):
            self.sink.shutdown(socket.SHUT_WR)

    def forget(self) -> None:
        """Drop the keys."""
        self._opener.forget()
        self._sealer.forget()

    def _flush(self) -> None:
        while self._rest is not None:
            sent = self.sink.send(self._rest)
            self._rest = self._rest[sent:] if sent < len(self._rest) else None

    def _receive(self) -> bool:
        """Read to the end of the next frame; ``False`` where the source has ended."""
        while self._got < self._due():
            got = self.source.recv_into(self._frame[self._got : self._due()])
            if not got:
                if self._got:
                    raise ChannelBroken("a connection ended within a frame", check="frame")
                self.ended = True
                self.sink.shutdown(socket.SHUT_WR)
                return False
            self._got += got
        self._got, whole = 0, self._due()
        self._opener.open(self._frame[:whole], self._plaintext_room(whole - OVERHEAD))
        return True

    def _due(self) -> int:
        """How long the frame is, as far as its head is known."""
        raise NotImplementedError

    def _plaintext_room(self, size: int) -> memoryview:
        """Where so much plaintext goes."""
        raise NotImplementedError

    def _carry(self) -> int:
        """Seal what was opened; returns how long the frame is."""
        raise NotImplementedError


class _Outward(_Way):
    """From the rank to the other node: each frame becomes one of the one length."""

    def _due(self) -> int:
        if self._got < HEAD.size:
            return HEAD.size
        _kind, size, _form = HEAD.unpack_from(self._frame)
        return _require_size(size) + OVERHEAD

    def _plaintext_room(self, size: int) -> memoryview:
        self._plain[: HEAD.size] = self._frame[: HEAD.size]
        tail = CELL_BYTES - HEAD.size - size
        self._plain[HEAD.size + size :] = bytes(tail)  # of the frame before
        return self._plain[HEAD.size : HEAD.size + size]

    def _carry(self) -> int:
        return self._sealer.seal(DATA, CARRIED, self._plain, self._sealed)


class _Inward(_Way):
    """From the other node to the rank: each frame as the other rank made it."""

    def _due(self) -> int:
        return CELL_BYTES + OVERHEAD

    def _plaintext_room(self, size: int) -> memoryview:
        return self._plain

    def _carry(self) -> int:
        if HEAD.unpack_from(self._frame) != (DATA, CELL_BYTES, CARRIED):
            raise ChannelBroken("another frame came than those of scripts", check="frame")
        kind, size, form = HEAD.unpack_from(self._plain)
        said = self._plain[HEAD.size : HEAD.size + _require_size(size)]
        return self._sealer.seal(kind, form, said, self._sealed)


def _require_size(size: int) -> int:
    if size > FRAME_BYTES:
        raise ChannelBroken(
            "a frame is longer than any that is sent",
            check="frame",
            got=size,
            expected=f"at most {FRAME_BYTES}",
        )
    return size
