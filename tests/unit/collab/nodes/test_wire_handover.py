"""Connections of a wire that one process of a guest makes and another one goes on with."""

from __future__ import annotations

import socket

import pytest
from carrying import carries
from collecting import COLLECTING

from sealtrain.base.secret import Secret
from sealtrain.training.errors import ChannelBroken, ChannelRefused
from sealtrain_nodes.wire.collectives import Circle
from sealtrain_nodes.wire.engine import Operation
from sealtrain_nodes.wire.frames import FrameOpener, Sealer, form_of
from sealtrain_nodes.wire.link import Link, Piece
from sealtrain_nodes.wire.meeting import Wire
from sealtrain_nodes.wire.scratch import FrameBuffers

if not COLLECTING:
    from wire_world import World, in_threads

pytestmark = pytest.mark.claim("C608")

SECONDS = 20.0


def issued(wire: Wire, number: int, view: memoryview) -> Operation:
    """A broadcast of rank 0 on one end of it."""
    circle = Circle(tuple(range(wire.world)), wire.rank, FrameBuffers())
    form = form_of(f"broadcast {number}")
    operation = Operation(
        "broadcast", lambda work: circle.broadcast(work, form, 0, view), timeout_s=SECONDS
    )
    wire.engine.submit(operation)
    return operation


def broadcast(wires: list[Wire], number: int, content: bytes) -> list[bytes]:
    views = [memoryview(bytearray(len(content))) for _ in wires]
    views[0][:] = content
    for operation in [issued(wire, number, view) for wire, view in zip(wires, views, strict=True)]:
        operation.wait()
    return [bytes(view) for view in views]


def test_a_wire_goes_on_where_it_was_handed_over() -> None:
    world = World.of(3)
    made = in_threads([lambda rank=rank: world.connect(rank) for rank in range(3)])
    assert broadcast(made, 1, b"first" * 100_000) == [b"first" * 100_000] * 3
    # Rank 0 has gone on, and what it sends waits at ranks that were not handed over yet.
    taken = [Wire.taken_over(made[0].hand_over(), rank=0, world=3)]
    sent = issued(taken[0], 2, memoryview(b"second"))
    taken += [Wire.taken_over(made[rank].hand_over(), rank=rank, world=3) for rank in (1, 2)]
    views = [memoryview(bytearray(6)) for _ in (1, 2)]
    for operation in [
        sent, *(issued(wire, 2, view) for wire, view in zip(taken[1:], views, strict=True))
    ]:  # fmt: skip
        operation.wait()
    assert [bytes(view) for view in views] == [b"second"] * 2
    for wire in made:
        with pytest.raises(ChannelBroken):
            wire.hand_over()
        wire.close()  # the connections are another's
    assert broadcast(taken, 3, b"third") == [b"third"] * 3
    in_threads([wire.close for wire in taken])


def test_a_rank_takes_its_connection_to_each_other_rank_and_no_fewer() -> None:
    world = World.of(3)
    made = in_threads([lambda rank=rank: world.connect(rank) for rank in range(3)])
    handed = made[0].hand_over()
    for links, rank in ((handed[:1], 0), ([*handed, handed[0]], 0), (handed, 1)):
        with pytest.raises(ChannelRefused, check=carries(check="membership")):
            Wire.taken_over(links, rank=rank, world=3)
    in_threads([wire.close for wire in (Wire.taken_over(handed, rank=0, world=3), *made[1:])])


def test_a_link_is_not_handed_over_within_an_operation() -> None:
    here, there = socket.socketpair()
    with here, there:
        link = Link(1, here, Sealer(Secret(bytes(32))), FrameOpener(Secret(bytes(32))))
        link.expect(Piece(bytes(8), 1, memoryview(bytearray(1)), lambda: None))
        with pytest.raises(ChannelBroken):
            link.handed_over()
