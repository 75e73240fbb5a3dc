"""Ranks of a wire as forked processes, or as threads where only the meeting is of interest."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch._dynamo  # DDP loads it; a forked rank then does not
import torch.distributed as dist

from sealtrain.base.processes import answer_of, pack, pack_error
from sealtrain_nodes.wire.guest_groups import GuestGroups
from sealtrain_nodes.wire.identity import NodeKey
from sealtrain_nodes.wire.joining import join, leave
from sealtrain_nodes.wire.meeting import Wire, connect
from sealtrain_nodes.wire.membership import Address, Listener, Membership, RankPeer
from sealtrain_nodes.wire.staging import STAGED

SECONDS = 20.0

# Before PyTorch 2.13 they have other names.
all_gather_single: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single: Any = (
    getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
)


@dataclass
class World:
    """Keys, listeners and membership of a run, made before its ranks are."""

    keys: list[NodeKey]
    listeners: list[Listener]
    membership: Membership
    session: bytes

    made: ClassVar[list[World]] = []
    """Worlds of a test, to be closed after it."""

    def __post_init__(self) -> None:
        self.made.append(self)

    @classmethod
    def of(cls, ranks: int, each: int = 1) -> World:
        """A node for each rank, or for so many of them."""
        made = [NodeKey.make() for _ in range(ranks // each)]
        keys = [made[rank // each] for rank in range(ranks)]
        listeners = [Listener.open("127.0.0.1") for _ in range(ranks)]
        membership = Membership(
            tuple(
                RankPeer(listener.address, key.public_key)
                for listener, key in zip(listeners, keys, strict=True)
            )
        )
        return cls(keys, listeners, membership, os.urandom(32))

    def connect(self, rank: int, *, timeout_s: float = SECONDS, **other: Any) -> Wire:
        """This rank's wire; ``other`` takes the place of what the rank knows."""
        known: dict[str, Any] = {
            "membership": self.membership,
            "listener": self.listeners[rank],
            "key": self.keys[rank],
            "session_id": self.session,
        } | other
        return connect(rank=rank, timeout_s=timeout_s, **known)

    def reached_by(self, rank: int, address: Address) -> Membership:
        """The membership of a rank to whom rank 0 seems to be at another address."""
        first = RankPeer(address, self.membership.peer(0).public_key)
        return Membership((first, *self.membership.peers[1:]))

    def close(self) -> None:
        for listener in self.listeners:
            listener.close()


def in_threads(calls: list[Callable[[], Any]]) -> list[Any]:
    """What each call returned or raised, all at the same time."""
    found: list[Any] = [None] * len(calls)

    def one(number: int, call: Callable[[], Any]) -> None:
        try:
            found[number] = call()
        except Exception as error:
            found[number] = error

    threads = [threading.Thread(target=one, args=item) for item in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * SECONDS)
    return found


def ranks(
    world: int,
    work: Callable[[int, Wire], Any],
    *,
    timeout_s: float = SECONDS,
    through: Relay | None = None,
    joined: bool = True,
    staged: Collection[str] = STAGED,
    each: int = 1,
) -> list[Any]:
    """Run ``work`` in forked ranks; what each returned or raised, by rank.

    Args:
        world: Number of ranks.
        work: Called with rank and wire, as PyTorch's default group.
        timeout_s: For each operation.
        through: Somebody between rank 0 and the first rank of the second node.
        joined: Whether to make it the default group.
        staged: Types of devices whose tensors are copied to memory of their own.
        each: Ranks of one node, which meet over loopback.
    """
    made = World.of(world, each)
    memories = [os.memfd_create("guest") if each > 1 else -1 for _ in range(world // each)]
    if through is not None:
        through.listen(made.membership.peer(0).address)
    pipes = []
    for rank in range(world):
        back, there = os.pipe()
        process = os.fork()
        if process == 0:
            os.close(back)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # not a handler of the test runner
            signal.alarm(120)  # a rank that hangs ends
            inside = (each, memories[rank // each])
            _child(there, made, rank, work, timeout_s, through, joined, staged, inside)
        os.close(there)
        pipes.append((process, back))
    made.close()
    for memory in memories:
        if memory >= 0:
            os.close(memory)
    found = []
    if through is not None:
        through.start()
    for process, back in pipes:
        with os.fdopen(back, "rb") as told:
            data = told.read()
        os.waitpid(process, 0)
        found.append(_answer(data))
    if through is not None:
        through.close()
    return found


def _answer(data: bytes) -> Any:
    if not data:
        return None  # it was killed
    try:
        return answer_of(data)
    except BaseException as error:
        return error


def guest_of(rank: int, each: int, memory: int, timeout_s: float) -> GuestGroups | None:
    """The ranks of a node, connected to each other; ``None`` for a rank alone."""
    torch.set_num_threads(1)
    if each == 1:
        return None
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    return GuestGroups(
        rank % each, each, first=rank - rank % each, memory=memory, timeout_s=timeout_s
    )


def _child(
    there: int,
    made: World,
    rank: int,
    work: Callable[[int, Wire], Any],
    timeout_s: float,
    through: Relay | None,
    joined: bool,
    staged: Collection[str],
    inside: tuple[int, int],
) -> None:
    status = 0
    try:
        guest = guest_of(rank, *inside, timeout_s)
        membership = made.membership
        if through is not None and rank == inside[0]:
            membership = made.reached_by(rank, through.address)
        wire = made.connect(rank, membership=membership)
        torch.set_num_threads(1)
        if joined:
            join(wire, timeout_s=timeout_s, staged=staged, guest=guest)
        data = pack(work(rank, wire))
        if joined:
            leave()
        else:
            wire.close()
    except BaseException as error:
        if os.environ.get("SHOW"):
            traceback.print_exc()
        data = pack_error(error)
    try:
        with os.fdopen(there, "wb") as told:
            told.write(data)
    except BaseException:
        status = 1
    os._exit(status)


Meddle = Callable[[int, int, bytes], list[bytes] | None]
"""Connection's direction (0: from rank 1), number of the frame, frame → what is passed on; ``None``
cuts the connection."""


def honest(_way: int, _number: int, frame: bytes) -> list[bytes]:
    return [frame]


@dataclass
class Relay:
    """Somebody on the path between rank 1 and rank 0: sees all bytes, and meddles with frames.

    The handshake passes unchanged: TLS records up to the first frame of each direction.
    """

    meddle: Meddle = honest
    seen: bytearray = field(default_factory=bytearray)
    ways: tuple[bytearray, bytearray] = field(default_factory=lambda: (bytearray(), bytearray()))
    address: Address = ("", 0)

    def listen(self, target: Address) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()[:2]

    def start(self) -> None:
        self._listener.settimeout(SECONDS)
        self._socks: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.close()
        for sock in self._socks:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        self._thread.join(SECONDS)

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            near, _ = self._listener.accept()
            far = self._dialled()
            self._socks += [near, far]
            ways = [
                threading.Thread(target=self._carry, args=(0, near, far), daemon=True),
                threading.Thread(target=self._carry, args=(1, far, near), daemon=True),
            ]
            for way in ways:
                way.start()
            for way in ways:
                way.join()

    def _dialled(self) -> socket.socket:
        until = time.monotonic() + SECONDS
        while True:
            try:
                return socket.create_connection(self._target)
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.02)

    def _carry(self, way: int, source: socket.socket, target: socket.socket) -> None:
        number = 0
        kept = self.ways[way]
        with contextlib.suppress(OSError, ConnectionError):
            while True:
                head = self._exactly(source, 5)
                if head[0] in (20, 21, 22, 23) and head[1] == 3:  # a record of TLS
                    (size,) = struct.unpack(">H", head[3:])
                    kept += head + (rest := self._exactly(source, size))
                    self.seen += head + rest
                    self._pass(target, head + rest)
                    continue
                head += self._exactly(source, 11)
                (size,) = struct.unpack(">I", head[4:8])
                frame = head + self._exactly(source, size + 16)
                passed = self.meddle(way, number, frame)
                number += 1
                if passed is None:
                    break
                for part in passed:
                    kept += part
                    self.seen += part
                    self._pass(target, part)
        for sock in (source, target):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _pass(self, target: socket.socket, data: bytes) -> None:
        target.sendall(data)

    @staticmethod
    def _exactly(source: socket.socket, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = source.recv(size - len(data))
            if not part:
                raise ConnectionError
            data += part
        return bytes(data)


@contextmanager
def connected(**other: Any) -> Iterator[list[Wire]]:
    """Two wires in this process."""
    world = World.of(2)
    wires = in_threads([lambda rank=rank: world.connect(rank, **other) for rank in range(2)])
    for wire in wires:
        if isinstance(wire, Exception):
            raise wire
    try:
        yield wires
    finally:
        in_threads([wire.close for wire in wires])
