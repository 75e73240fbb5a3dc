"""An operator who carries all traffic between nodes swaps, replays, answers and delays it.

The operator knows the format, sees every byte, decides where each connection leads, and holds no
key. Whatever it does, a sum is right on every rank or the group ends with a typed error.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from collecting import COLLECTING
from manifest_world import World as Consortium
from meeting_world import Lead, Node, Run, joining, nodes_world
from relays import altering, carried

from sealtrain.errors import SealtrainError
from sealtrain.training.errors import ChannelBroken, ChannelCut, ChannelRefused, PeerUnreachable
from sealtrain_nodes.wire.meeting import Wire
from sealtrain_nodes.wire.membership import Listener, Membership, RankPeer

if not COLLECTING:
    import torch
    import torch.distributed as dist
    from wire_world import World, in_threads

    from sealtrain_nodes.wire.group import WireGroup

pytestmark = [pytest.mark.long, pytest.mark.claim("C234")]

ENDS = ChannelBroken | ChannelCut | PeerUnreachable
SIZE = 300_000
ROUNDS = 3


def sums(wire: Wire | Exception, rank: int, world: int, *, seconds: float = 20.0) -> list[float]:
    """Reductions of a megabyte each; the extremes of what came out."""
    if isinstance(wire, Exception):
        raise wire
    group = WireGroup(wire.engine, tuple(range(world)), rank, "all", timedelta(seconds=seconds))
    found = []
    try:
        for number in range(ROUNDS):
            work = torch.full((SIZE,), float(rank + number))
            group.allreduce([work], dist.AllreduceOptions()).wait()
            found += [work.min().item(), work.max().item()]
    finally:
        wire.close()
    return found


def right(world: int) -> list[float]:
    return [float(sum(range(world)) + world * number) for number in range(ROUNDS) for _ in range(2)]


@dataclass
class Crossing:
    """Connections to one rank that all lead over the operator.

    Bytes of the handshake pass unchanged. ``pick`` says of each frame what is passed on, and over
    which connection.

    Attributes:
        pick: Connection, direction (0: to the rank), number, frame → what is passed on, and where.
        kept: Frames that came, by connection and direction.
    """

    target: tuple[str, int]
    pick: Callable[[int, int, int, bytes], list[tuple[int, bytes]]]
    kept: dict[tuple[int, int], list[bytes]] = field(default_factory=dict)
    socks: list[tuple[socket.socket, socket.socket]] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Crossing:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()[:2]
        self._start(self._serve)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for pair in self.socks:
            for sock in pair:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join(10)
        for pair in self.socks:
            for sock in pair:
                sock.close()

    def _start(self, call: Callable[..., None], *given: Any) -> None:
        self.threads.append(threading.Thread(target=call, args=given, daemon=True))
        self.threads[-1].start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                self.socks.append((near, socket.create_connection(self.target, timeout=20)))
                number = len(self.socks) - 1
                for way in (0, 1):
                    self.kept[number, way] = []
                    self._start(self._carry, number, way)

    def _carry(self, number: int, way: int) -> None:
        source, target = self.socks[number][way], self.socks[number][1 - way]
        kept = self.kept[number, way]
        with suppress(OSError, ConnectionError):
            while True:
                head = _exactly(source, 5)
                if head[0] in (20, 21, 22, 23) and head[1] == 3:  # a record of TLS
                    target.sendall(head + _exactly(source, struct.unpack(">H", head[3:])[0]))
                    continue
                head += _exactly(source, 11)
                frame = head + _exactly(source, struct.unpack(">I", head[4:8])[0] + 16)
                kept.append(frame)
                for to, part in self.pick(number, way, len(kept) - 1, frame):
                    self.socks[to][1 - way].sendall(part)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)


def _exactly(source: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = source.recv(size - len(data))
        if not part:
            raise ConnectionError
        data += part
    return bytes(data)


def through(world: World, crossing: Crossing) -> Membership:
    """The membership of ranks for which rank 0 seems to be where the operator is."""
    return world.reached_by(1, crossing.address)


def trained(world: World, crossing: Crossing, *, seconds: float = 20.0) -> list[Any]:
    """What each rank's sums are, or its error; all but rank 0 are led over the operator."""
    count = len(world.keys)
    wires = in_threads(
        [lambda: world.connect(0)]
        + [
            lambda rank=rank: world.connect(rank, membership=through(world, crossing))
            for rank in range(1, count)
        ]
    )
    return in_threads(
        [
            lambda rank=rank, wire=wire: sums(wire, rank, count, seconds=seconds)
            for rank, wire in enumerate(wires)
        ]
    )


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    yield
    while World.made:
        World.made.pop().close()


def straight(number: int, _way: int, _count: int, frame: bytes) -> list[tuple[int, bytes]]:
    return [(number, frame)]


def test_an_operator_who_only_carries_changes_nothing() -> None:
    world = World.of(3)
    with Crossing(world.membership.peer(0).address, straight) as crossing:
        assert trained(world, crossing) == [right(3)] * 3
    assert all(len(frames) > ROUNDS for frames in crossing.kept.values())


@pytest.mark.parametrize("ways", [(0,), (1,), (0, 1)], ids=["there", "back", "both"])
def test_streams_of_two_nodes_that_change_places_add_up_to_no_sum(ways: tuple[int, ...]) -> None:
    def swapped(number: int, way: int, count: int, frame: bytes) -> list[tuple[int, bytes]]:
        return [(1 - number if way in ways and count >= 2 else number, frame)]

    world = World.of(3)
    with Crossing(world.membership.peer(0).address, swapped) as crossing:
        found = trained(world, crossing)
    assert all(isinstance(each, ENDS) for each in found), found
    assert any(isinstance(each, ChannelBroken) for each in found), found


def test_a_call_that_is_led_to_another_node_connects_nobody() -> None:
    """Rank 2 calls 0 and 1; the operator crosses the two calls before their first byte."""
    world = World.of(3)
    zero, one = (world.membership.peer(rank).address for rank in (0, 1))
    with Crossing(zero, straight) as to_zero, Crossing(one, straight) as to_one:
        peers = world.membership.peers
        crossed = Membership(
            (
                RankPeer(to_one.address, peers[0].public_key),
                RankPeer(to_zero.address, peers[1].public_key),
                peers[2],
            )
        )
        found = in_threads(
            [
                lambda: world.connect(0, timeout_s=3.0),
                lambda: world.connect(1, timeout_s=3.0),
                lambda: world.connect(2, timeout_s=3.0, membership=crossed),
            ]
        )
    assert all(isinstance(each, ChannelRefused | PeerUnreachable) for each in found), found


@pytest.mark.parametrize("session", ["new", "the same"])
def test_frames_of_a_run_before_a_restart_are_none_of_the_run_after_it(session: str) -> None:
    """Even with the keys, and with the session id, that a run never uses twice."""
    first = World.of(2)
    with Crossing(first.membership.peer(0).address, straight) as before:
        assert trained(first, before) == [right(2)] * 2

    def replayed(number: int, way: int, count: int, frame: bytes) -> list[tuple[int, bytes]]:
        old = before.kept[0, way]
        return [(number, old[count] if way == 0 and 2 <= count < len(old) else frame)]

    listeners = [Listener.open("127.0.0.1") for _ in range(2)]
    members = Membership(
        tuple(
            RankPeer(listener.address, key.public_key)
            for listener, key in zip(listeners, first.keys, strict=True)
        )
    )
    again = World(
        first.keys, listeners, members, os.urandom(32) if session == "new" else first.session
    )
    with Crossing(members.peer(0).address, replayed) as after:
        found = trained(again, after)
    assert all(isinstance(each, ENDS) for each in found), found
    assert isinstance(found[0], ChannelBroken)
    assert found[0].check == "frame"


def test_frames_that_come_late_are_added_as_they_are() -> None:
    def late(number: int, way: int, count: int, frame: bytes) -> list[tuple[int, bytes]]:
        if count in (2, 5) and number == way:
            time.sleep(1.0)
        return [(number, frame)]

    world = World.of(3)
    with Crossing(world.membership.peer(0).address, late) as crossing:
        assert trained(world, crossing) == [right(3)] * 3


def test_frames_that_come_after_their_time_come_to_nobody() -> None:
    all_ended = threading.Event()

    def held(number: int, way: int, count: int, frame: bytes) -> list[tuple[int, bytes]]:
        if count == 2 and (number, way) == (0, 0):
            all_ended.wait(20)
        return [(number, frame)]

    world = World.of(3)
    with Crossing(world.membership.peer(0).address, held) as crossing:
        found = trained(world, crossing, seconds=1.0)
        all_ended.set()
    assert all(isinstance(each, ENDS) for each in found), found


def test_a_rank_that_joins_a_second_time_takes_nobodys_place() -> None:
    """The right key, rank and session, once the meeting is over: nobody listens any more."""
    world = World.of(2)
    wires = in_threads([lambda: world.connect(0), lambda: world.connect(1)])
    spare = Listener.open("127.0.0.1")
    late = in_threads([lambda: world.connect(1, listener=spare, timeout_s=1.0)])[0]
    spare.close()
    assert isinstance(late, PeerUnreachable | ChannelRefused)
    found = in_threads(
        [lambda rank=rank, wire=wire: sums(wire, rank, 2) for rank, wire in enumerate(wires)]
    )
    assert found == [right(2)] * 2


# -- the meeting of nodes --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def consortium(tmp_path_factory: pytest.TempPathFactory) -> Consortium:
    return nodes_world(tmp_path_factory.mktemp("nodes"), nodes=3, ranks=1)


@contextmanager
def playing_back(recorded: bytes) -> Iterator[tuple[tuple[str, int], list[bytes]]]:
    """A port that answers whatever is said with bytes of an earlier meeting."""
    listener, heard = socket.create_server(("127.0.0.1", 0)), list[bytes]()

    def serve() -> None:
        with suppress(OSError):
            sock, _ = listener.accept()
            with sock:
                sock.settimeout(5.0)
                sock.sendall(recorded)
                heard.append(b"")
                while data := sock.recv(1 << 16):
                    heard[0] += data

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[:2], heard
    finally:
        listener.close()
        thread.join(10)


def test_an_old_meeting_that_is_answered_again_takes_nobody_in(
    consortium: Consortium, tmp_path: Path
) -> None:
    """The lead's half of a whole meeting, played to the node that asks after a restart."""
    (tmp_path / "before").mkdir()
    with (
        Lead(Run(consortium, tmp_path / "before")) as lead,
        carried(lead.address, altering(), altering()) as (between, seen),
        joining(consortium, 2, lead) as other,
        Node(consortium, 1, between) as node,
    ):
        node.welcomed()
        with node.introduced():
            other.ready()
    recorded = bytes(seen.back[0])
    assert len(recorded) > 1000
    with (
        playing_back(recorded) as (address, heard),
        pytest.raises(SealtrainError),
        Node(consortium, 1, address, seconds=5.0) as node,
    ):
        node.welcomed()
    # The node asked for a proof, and said nothing behind that.
    (size,) = struct.unpack_from(">I", heard[0])
    assert len(heard[0]) == 4 + size


def test_calls_of_two_nodes_that_change_places_seat_each_where_it_says(
    consortium: Consortium, tmp_path: Path
) -> None:
    """Where a connection comes from decides nothing: a node is the number that it proved."""
    with (
        Lead(Run(consortium, tmp_path)) as lead,
        carried(lead.address, altering(), altering()) as (one, _),
        carried(lead.address, altering(), altering()) as (two, _),
        Node(consortium, 2, one) as second,
        Node(consortium, 1, two) as first,
    ):
        first.welcomed()
        second.welcomed()
        results: list[Any] = []

        def introduced(node: Node) -> None:
            with node.introduced() as (mine, told):
                results.append((node.number, mine.public_key, told))

        in_threads([lambda: introduced(first), lambda: introduced(second)])
        met = lead.met()
    assert len(results) == 2
    for number, key, told in results:
        assert told.places[number].public_key == key
    assert met.company.world == 3
