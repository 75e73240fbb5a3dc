"""What a script's ranks have of the connections to other nodes, and what the network sees of it."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import pytest

from sealtrain.base.secret import Secret
from sealtrain.errors import SealtrainError
from sealtrain.training.errors import ChannelBroken, ChannelCut
from sealtrain_nodes.relay import CELL_BYTES, FrameRelay
from sealtrain_nodes.wire.frames import (
    DATA,
    FAILED,
    FRAME_BYTES,
    HEAD,
    OVERHEAD,
    Position,
    form_of,
)
from sealtrain_nodes.wire.link import HandedLink, Link, PeerFailed, Piece

pytestmark = pytest.mark.claim("C763")

FORM = form_of("an exchange")
CELL = CELL_BYTES + OVERHEAD
CANARY = b"a record of clinic-a: secret-4be1a7"
SECONDS = 20.0
Meddle = Callable[[int, bytes], bytes | None]


@dataclass
class Network:
    """A line between two nodes, on which every byte is seen; ``meddle`` gets each frame of one way.

    Attributes:
        seen: What went there, and back.
    """

    meddle: Meddle = lambda _number, frame: frame
    seen: tuple[bytearray, bytearray] = field(default_factory=lambda: (bytearray(), bytearray()))
    sockets: list[socket.socket] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)

    def ends(self) -> tuple[socket.socket, socket.socket]:
        one, ours = socket.socketpair()
        other, its = socket.socketpair()
        for way, (source, sink) in enumerate(((ours, its), (its, ours))):
            given = (source, sink, self.seen[way], self.meddle if not way else None)
            self.threads.append(threading.Thread(target=self._pass, args=given, daemon=True))
            self.threads[-1].start()
        return one, other

    def close(self) -> None:
        for thread in self.threads:
            thread.join(SECONDS)
        for sock in self.sockets:
            sock.close()

    def _pass(
        self, source: socket.socket, sink: socket.socket, seen: bytearray, meddle: Meddle | None
    ) -> None:
        number = passed = 0
        self.sockets += [source]
        with suppress(OSError):
            while data := source.recv(1 << 20):
                seen += data
                if meddle is None:
                    sink.sendall(data)
                    continue
                while len(seen) - passed >= CELL:
                    frame = meddle(number, bytes(seen[passed : passed + CELL]))
                    if frame is None:
                        sink.shutdown(socket.SHUT_RDWR)
                        return
                    sink.sendall(frame)
                    passed, number = passed + CELL, number + 1
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


@dataclass
class Script:
    """What the ranks of a script have: an end each, and what the keepers kept."""

    one: Link
    two: Link
    handed: tuple[HandedLink, HandedLink]
    session: tuple[bytes, bytes]
    network: Network


@contextmanager
def scripts(meddle: Meddle = lambda _number, frame: frame) -> Iterator[Script]:
    network, keys = Network(meddle), (os.urandom(32), os.urandom(32))
    ends, relays = network.ends(), (FrameRelay(), FrameRelay())
    given = [
        HandedLink(
            rank=1 - place,
            sock=ends[place],
            sends=Position(key=Secret(keys[place]), number=1),
            receives=Position(key=Secret(keys[1 - place]), number=1),
        )
        for place in (0, 1)
    ]
    handed = relays[0].carry(given[0]), relays[1].carry(given[1])
    one, two = map(Link.taken_over, handed)
    try:
        yield Script(one, two, handed, keys, network)
    finally:
        for link in (one, two):
            link.close()
        for relay in relays:
            relay.close()
        network.close()


def until(done: Callable[[], object], *links: Link) -> None:
    """Pump until it is done."""
    ends = time.monotonic() + SECONDS
    while not done():
        for link in links:
            link.pump_out()
            link.pump_in()
        assert time.monotonic() < ends


def exchange(script: Script, *sizes: int, content: bytes = b"") -> list[bytes]:
    """Send pieces from one to two; what came."""
    came: list[bytes] = []
    for size in sizes:
        sent = memoryview((content * (size // max(1, len(content)) + 1))[:size] or bytes(size))
        room = memoryview(bytearray(size))
        script.one.send(Piece(FORM, size, sent, lambda: None))
        script.two.expect(Piece(FORM, size, room, lambda room=room: came.append(bytes(room))))
    until(lambda: len(came) == len(sizes), script.one, script.two)
    return came


def test_what_ranks_send_arrives_as_it_was_sent() -> None:
    sizes = (0, 1, 1000, FRAME_BYTES - 1, FRAME_BYTES, 7, 0)
    with scripts() as script:
        came = exchange(script, *sizes, content=CANARY)
        assert [len(piece) for piece in came] == list(sizes)
        assert came[2].startswith(CANARY)
        assert came[4] == (CANARY * (FRAME_BYTES // len(CANARY) + 1))[:FRAME_BYTES]


def test_the_network_sees_frames_of_one_length_whatever_a_script_sends() -> None:
    sizes = (0, 3, 70_000, FRAME_BYTES)
    with scripts() as script:
        exchange(script, *sizes, content=CANARY)
        script.one.part(FAILED, b"node-lost 0")
        while script.one.tells:
            script.one.leave()
        script.two.expect(Piece(FORM, 9, memoryview(bytearray(9)), lambda: None))
        with pytest.raises(PeerFailed):
            until(lambda: False, script.two)
        there = bytes(script.network.seen[0])
    assert len(there) == (len(sizes) + 1) * CELL
    heads = {there[at : at + HEAD.size] for at in range(0, len(there), CELL)}
    assert len(heads) == 1
    assert CANARY not in there


def test_a_script_has_neither_a_key_of_the_session_nor_the_connection_itself() -> None:
    with scripts() as script:
        for handed in script.handed:
            assert handed.sock.family == socket.AF_UNIX
            for way in (handed.sends, handed.receives):
                assert way.key.reveal() not in script.session
                assert way.number == 0
        keys = [way.key.reveal() for each in script.handed for way in (each.sends, each.receives)]
        assert len(set(keys)) == 4


GARBAGE = {
    "in the clear": CANARY * 4000,
    "a frame under no key": HEAD.pack(DATA, 4, FORM) + bytes(4 + 16),
    "longer than any": HEAD.pack(DATA, FRAME_BYTES + 1, FORM) + bytes(CELL),
}


@pytest.mark.parametrize("written", GARBAGE.values(), ids=GARBAGE)
def test_what_a_script_writes_past_its_frames_reaches_no_network(written: bytes) -> None:
    """It holds the socket within the guest: nothing of that is sent on, and its run ends."""
    with scripts() as script:
        with suppress(OSError):
            script.handed[0].sock.send(written)
        script.two.expect(Piece(FORM, 4, memoryview(bytearray(4)), lambda: None))
        with pytest.raises(ChannelCut):
            until(lambda: False, script.two)
        assert not script.network.seen[0]


def _flip(number: int, frame: bytes) -> bytes:
    return frame if number != 1 else frame[:-1] + bytes([frame[-1] ^ 1])


def _repeat() -> Meddle:
    kept: list[bytes] = []

    def meddle(_number: int, frame: bytes) -> bytes:
        kept.append(frame)
        return kept[0]

    return meddle


MEDDLERS: dict[str, Callable[[], Meddle]] = {
    "altered": lambda: _flip,
    "repeated": _repeat,
    "cut": lambda: lambda number, frame: None if number == 1 else frame,
    "left out": lambda: lambda number, frame: b"" if number == 1 else frame,
}


@pytest.mark.parametrize("made", MEDDLERS.values(), ids=MEDDLERS)
def test_a_network_that_meddles_ends_the_ranks_and_gives_them_nothing(
    made: Callable[[], Meddle],
) -> None:
    with scripts(made()) as script, pytest.raises((ChannelCut, ChannelBroken)):
        exchange(script, 5, 6, 7, content=CANARY)


def test_a_rank_that_ends_is_known_to_its_peer_and_its_last_word_arrives() -> None:
    with scripts() as script:
        exchange(script, 10)
        script.one.part(FAILED, b"rank-lost 0")
        while script.one.tells:
            script.one.leave()
        script.two.expect(Piece(FORM, 4, memoryview(bytearray(4)), lambda: None))
        with pytest.raises(PeerFailed) as caught:
            until(lambda: False, script.two)
        assert caught.value.error.code == "rank-lost"
        script.two.close()
        ends = time.monotonic() + SECONDS
        while not script.one.leave():
            assert time.monotonic() < ends


def test_a_keeper_that_dies_ends_both_ranks() -> None:
    network = Network()
    ends, relay = network.ends(), FrameRelay()
    key = Position(key=Secret(bytes(32)), number=1)
    rank = Link.taken_over(relay.carry(HandedLink(rank=1, sock=ends[0], sends=key, receives=key)))
    relay.close()
    rank.expect(Piece(FORM, 4, memoryview(bytearray(4)), lambda: None))
    with pytest.raises(SealtrainError):
        until(lambda: False, rank)
    rank.close()
    ends[1].settimeout(SECONDS)
    assert ends[1].recv(1) == b""
    ends[1].close()
    network.close()


def test_many_connections_take_one_thread_and_leave_none() -> None:
    before = set(threading.enumerate())
    relay, ends = FrameRelay(), []
    for peer in range(50):
        ours, its = socket.socketpair()
        key = Position(key=Secret(os.urandom(32)), number=1)
        handed = relay.carry(HandedLink(rank=peer, sock=ours, sends=key, receives=key))
        ends += [its, handed.sock]
    assert len(set(threading.enumerate()) - before) == 1
    for sock in ends:
        sock.close()
    relay.close()
    assert set(threading.enumerate()) <= before
