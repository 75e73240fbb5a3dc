"""Ranks of different nodes connect to each other: who is proven is in, and no one else.

    wire = connect(membership, rank, listener, key, session_id, timeout_s=60.0)

1. A rank calls every rank of another node below it and is called by every one above it. Ranks of
   one node, which have the same key, have no wire between them (``distributed.wire.guest_groups``).
2. Strangers at the listener cost their own connection only: each handshake has a thread and a
   time of its own, and a refused one changes nothing for the others.
3. The wire is made when every peer is proven. In the other case the error is the most telling
   one: what was refused, or which ranks are missing.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final, Self

from sealtrain.base.connections import Caps, Connection, Connections, listener_ended
from sealtrain.base.secret import Random
from sealtrain.errors import SealtrainError, UsageError
from sealtrain.training.errors import ChannelCut, ChannelRefused, PeerUnreachable
from sealtrain_nodes.wire.engine import LinkEngine
from sealtrain_nodes.wire.frames import FrameOpener, Sealer
from sealtrain_nodes.wire.handshake import (
    SESSION_BYTES,
    LinkKeys,
    Meeting,
    initiate,
    respond,
)
from sealtrain_nodes.wire.identity import NodeKey
from sealtrain_nodes.wire.link import HandedLink, Link
from sealtrain_nodes.wire.membership import Listener, Membership

HANDSHAKE_SECONDS: Final = 20.0
"""Longest handshake of one caller."""
_PAUSE: Final = 0.05
_WATCH_SECONDS: Final = 0.2
"""Between two looks for ranks that are known to be gone."""
_STRANGERS: Final = 64
"""Callers at a time that proved nothing, besides one for each rank; one more takes the place of
another (``base.connections``)."""
_HANDSHAKE_BYTES: Final = 1 << 20
# A node that vanishes without a word (power, cable) is noticed within a minute.
_KEEPALIVE: Final = (
    (socket.TCP_KEEPIDLE, 20),
    (socket.TCP_KEEPINTVL, 5),
    (socket.TCP_KEEPCNT, 8),
    (socket.TCP_USER_TIMEOUT, 60_000),
)


class Wire:
    """Connections to all peers, each proven. Made by ``connect``, or taken over from it.

    Args:
        links: To every rank of another node.
        rank: This one.
        world: Number of ranks.
    """

    def __init__(self, links: Sequence[Link], *, rank: int, world: int) -> None:
        self.rank = rank
        self.world = world
        self.engine = LinkEngine(links)

    @classmethod
    def taken_over(
        cls,
        handed: Sequence[HandedLink],
        *,
        rank: int,
        world: int,
        beside: Collection[int] = (),
    ) -> Self:
        """Go on with connections that another process of this guest made.

        Args:
            handed: The connections.
            rank: This one.
            world: Number of ranks.
            beside: Ranks of this guest, to which there is no connection.

        Raises:
            ChannelRefused: They are not those to every rank of another guest, each once.
        """
        others = [peer for peer in range(world) if peer != rank and peer not in beside]
        if sorted(link.rank for link in handed) != others:
            raise ChannelRefused(
                "a rank was not given its connection to each rank of another node",
                check="membership",
                got=f"{len(handed)} connections",
                expected=f"{len(others)}",
            )
        return cls([Link.taken_over(link) for link in handed], rank=rank, world=world)

    @property
    def failure(self) -> SealtrainError | None:
        """What ended the group, if anything did; PyTorch may have shown only its text."""
        return self.engine.failure

    @property
    def lost_rank(self) -> int | None:
        """The rank that the failure is about, as far as this one knows."""
        return self.engine.lost_rank

    def hand_over(self) -> list[HandedLink]:
        """Give the connections to the process that goes on with them; no peer hears of it.

        Raises:
            SealtrainError: What ended the group before.
        """
        return self.engine.hand_over()

    def close(self) -> None:
        """End the session: the peers learn that it was meant."""
        self.engine.close()


def connect(
    membership: Membership,
    rank: int,
    listener: Listener,
    key: NodeKey,
    session_id: bytes,
    *,
    timeout_s: float,
    lost: Callable[[], str | None] = lambda: None,
    random: Random = os.urandom,
) -> Wire:
    """Meet all other ranks.

    Args:
        membership: All ranks, the same at each of them.
        rank: This one.
        listener: Bound where the membership says. It is closed afterwards.
        key: This node's.
        session_id: 32 bytes, the same at all ranks and new for each run and membership.
        timeout_s: Seconds until all peers are there.
        lost: Asked meanwhile who is known not to come any more; a name ends the meeting.
        random: Source of keys and nonces.

    Raises:
        UsageError: The rank, its key or the session id does not fit.
        ChannelRefused: A peer proved another key, rank, membership or session.
        PeerUnreachable: Ranks are missing.
        ChannelCut: A peer ended the handshake.
    """
    if len(session_id) != SESSION_BYTES:
        raise UsageError(
            "a session id has another length",
            check="session",
            got=len(session_id),
            expected=SESSION_BYTES,
        )
    if membership.peer(rank).public_key != key.public_key:
        raise UsageError(
            "the membership names another key for this rank", check="membership", got=f"rank {rank}"
        )
    meeting = Meeting(membership=membership, rank=rank, key=key, session=session_id, random=random)
    try:
        links = _Gathering(meeting, listener, timeout_s, lost).links()
        return Wire(links, rank=rank, world=membership.world)
    finally:
        listener.close()


class _Gathering:
    """The time until all peers are there."""

    def __init__(
        self,
        meeting: Meeting,
        listener: Listener,
        timeout_s: float,
        lost: Callable[[], str | None],
    ) -> None:
        self._meeting = meeting
        self._lost = lost
        self._listener = listener
        self._until = time.monotonic() + timeout_s
        self._changed = threading.Condition()
        self._found: dict[int, Link] = {}
        self._over = False
        self._fatal: SealtrainError | None = None
        self._refused: SealtrainError | None = None
        self._callers: set[socket.socket] = set()  # that proved nothing yet
        most = _STRANGERS + meeting.membership.world
        self._places = Connections(
            Caps(connections=most, connections_per_address=most, body_bytes=_HANDSHAKE_BYTES)
        )
        self._serving = threading.Semaphore(2 * most)

    def links(self) -> list[Link]:
        """Every peer's link.

        Raises:
            SealtrainError: As ``connect``.
        """
        meeting = self._meeting
        peers = meeting.membership.elsewhere(meeting.rank)
        if not peers:
            return []
        threads = [
            threading.Thread(target=self._call, args=(peer,), daemon=True)
            for peer in peers
            if peer < meeting.rank
        ]
        above = [meeting.membership.peer(peer) for peer in peers if peer > meeting.rank]
        if above:
            context = meeting.key.context(
                ssl.PROTOCOL_TLS_SERVER, [peer.public_key for peer in above]
            )
            self._listener.socket.settimeout(_WATCH_SECONDS)
            threads.append(threading.Thread(target=self._listen, args=(context,), daemon=True))
        for thread in threads:
            thread.start()
        try:
            return self._wait(peers)
        finally:
            self._listener.close()
            with self._changed:
                strangers = list(self._callers)
            for sock in strangers:
                _cut(sock)
            for thread in threads:
                thread.join(_WATCH_SECONDS + _PAUSE)  # a listener wakes as often

    def _wait(self, peers: Collection[int]) -> list[Link]:
        with self._changed:
            while len(self._found) < len(peers) and self._fatal is None:
                left = self._until - time.monotonic()
                if left <= 0:
                    break
                if (gone := self._lost()) is not None:
                    self._fatal = PeerUnreachable(
                        "ranks will not come any more", check="membership", got=gone
                    )
                    break
                self._changed.wait(min(left, _WATCH_SECONDS))
            self._over = True
            if len(self._found) == len(peers):
                return [self._found[rank] for rank in sorted(self._found)]
            for link in self._found.values():
                link.close()
            missing = sorted(set(peers) - set(self._found))
            raise (
                self._fatal
                or self._refused
                or PeerUnreachable(
                    "ranks are missing",
                    check="membership",
                    got=", ".join(f"rank {rank}" for rank in missing),
                    hint="check that every node of the run was started and reaches the others",
                )
            )

    def _call(self, peer: int) -> None:
        """Connect to a rank, and again while nothing listens there."""
        meeting = self._meeting
        try:
            known = meeting.membership.peer(peer)
            context = meeting.key.context(ssl.PROTOCOL_TLS_CLIENT, [known.public_key])
            while not self._over and (left := self._until - time.monotonic()) > 0:
                try:
                    sock = socket.create_connection(known.address, timeout=left)
                except OSError:
                    time.sleep(min(_PAUSE, left))
                    continue
                try:
                    self._meet(
                        sock,
                        lambda stream: initiate(stream, meeting, peer, context),
                    )
                except (OSError, ChannelCut):
                    sock.close()  # it may have been early, or the network was at fault
                    time.sleep(min(_PAUSE, left))
                    continue
                except BaseException:
                    sock.close()
                    raise
                return
        except SealtrainError as error:
            with self._changed:
                self._fatal = self._fatal or error
                self._changed.notify()

    def _listen(self, context: ssl.SSLContext) -> None:
        """Have a thread for each caller until all peers are there."""
        listening = self._listener.socket
        while not self._over:
            try:
                sock, (host, *_rest) = listening.accept()
            except TimeoutError:
                continue
            except OSError as failure:
                if listener_ended(failure):
                    return
                time.sleep(_PAUSE)  # no descriptor is free, say
                continue
            if not self._serving.acquire(blocking=False):
                sock.close()
                continue
            place = self._places.open(host, functools.partial(_cut, sock))
            if place is None:
                self._serving.release()
                sock.close()
                continue
            with self._changed:
                self._callers.add(sock)
            answering = threading.Thread(
                target=self._answer, args=(sock, place, context), daemon=True
            )
            answering.start()

    def _answer(self, sock: socket.socket, place: Connection, context: ssl.SSLContext) -> None:
        try:
            self._meet(sock, lambda stream: respond(stream, self._meeting, context), place)
        except OSError:
            sock.close()
        except SealtrainError as error:
            sock.close()
            with self._changed:
                if self._refused is None or isinstance(error, ChannelRefused):
                    self._refused = error
        finally:
            with self._changed:
                self._callers.discard(sock)
            self._places.close(place)
            self._serving.release()

    def _meet(
        self,
        sock: socket.socket,
        shake: Callable[[_Connection], LinkKeys],
        place: Connection | None = None,
    ) -> None:
        """Prove each other over a connection, and keep it as the peer's link.

        A caller is a stranger no more once its proof holds: no later one takes its place.

        Args:
            sock: The connection.
            shake: The handshake over it.
            place: Of a peer that called; ``None`` for one that was called.
        """
        seconds = min(HANDSHAKE_SECONDS, self._until - time.monotonic())
        stream = _Connection(sock, seconds)
        keys = shake(stream)
        out, back = keys.initiator, keys.responder
        if place is not None:
            if not self._places.close(place):
                raise ChannelCut("another caller took the place", check="membership")
            with self._changed:
                self._callers.discard(sock)
            out, back = back, out
        link = Link(keys.peer, sock, Sealer(out), FrameOpener(back))
        link.exchange_ready(stream.fill)
        with self._changed:
            if self._over:
                raise ChannelCut("the membership is complete", check="membership")
            # The same rank again, proven again: it lost its first connection.
            former = self._found.pop(keys.peer, None)
            if former is not None:
                former.close()
            self._found[keys.peer] = link
            self._changed.notify()


def _cut(sock: socket.socket) -> None:
    """End a connection that another thread waits on."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


class _Connection:
    """A connection that has so many seconds for its whole handshake. A ``Stream``."""

    def __init__(self, sock: socket.socket, seconds: float) -> None:
        self._socket = sock
        self._until = time.monotonic() + seconds
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for option, value in _KEEPALIVE:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)

    def sendall(self, data: bytes | memoryview, /) -> None:
        self._limit()
        self._socket.sendall(data)

    def receive(self, size: int, /) -> bytes:
        data = bytearray(size)
        self.fill(memoryview(data))
        return bytes(data)

    def fill(self, view: memoryview) -> None:
        while view:
            self._limit()
            got = self._socket.recv_into(view)
            if not got:
                raise ChannelCut("the peer ended the handshake", check="wire")
            view = view[got:]

    def _limit(self) -> None:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)
