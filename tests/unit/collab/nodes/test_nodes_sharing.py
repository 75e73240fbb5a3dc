"""A checkpoint that nodes pass on: whole, over few bytes of node 0, or a typed error."""

from __future__ import annotations

import hashlib
import io
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from collecting import COLLECTING
from variants import variants

from sealtrain.errors import SealtrainError
from sealtrain.sealing.errors import CheckpointRefused
from sealtrain.training.errors import ChannelBroken, ChannelCut
from sealtrain_nodes.sharing import PIECE_BYTES, Sharing
from sealtrain_nodes.wire.meeting import Wire

if not COLLECTING:
    from wire_world import Relay, ranks

pytestmark = [pytest.mark.claim("C271"), pytest.mark.long]

SECONDS = 20.0


def content(size: int) -> bytes:
    return (b"%015d\n" % size) * (size // 16) + b"x" * (size % 16)


def shared(
    rank: int, wire: Wire, *, of_node: int, size: int, seconds: float = SECONDS
) -> tuple[str, int]:
    """Digest of what a node ends with, and how many bytes it sent for that."""
    if rank % of_node:
        return "", 0
    sharing = Sharing(wire, of_node, seconds=seconds)
    before = wire.engine.bytes_sent
    if rank == 0:
        sharing.send(io.BytesIO(content(size)), size)
        end = content(size)
    else:
        file = io.BytesIO()
        sharing.receive(file, size)
        end = file.getvalue()
    return hashlib.sha256(end).hexdigest(), wire.engine.bytes_sent - before


@pytest.mark.parametrize(
    "size",
    variants([1, PIECE_BYTES, 2 * PIECE_BYTES + 12_345], each_time=[1, 2 * PIECE_BYTES + 12_345]),
)
@pytest.mark.parametrize(
    ("nodes", "of_node"), variants([(2, 1), (2, 2), (5, 1)], each_time=[(2, 2), (5, 1)])
)
def test_every_node_ends_with_the_bytes_of_node_0(nodes: int, of_node: int, size: int) -> None:
    def work(rank: int, wire: Wire) -> Any:
        return shared(rank, wire, of_node=of_node, size=size)

    found = ranks(nodes * of_node, work)
    expected = hashlib.sha256(content(size)).hexdigest()
    assert [digest for digest, _sent in found] == ([expected] + [""] * (of_node - 1)) * nodes


def test_node_0_sends_less_than_twice_the_file_however_many_nodes_there_are() -> None:
    size = 4 << 20
    for nodes in (3, 8):
        found = ranks(nodes, lambda rank, wire: shared(rank, wire, of_node=1, size=size))
        sent = [sent for _digest, sent in found]
        assert size < sent[0] < 2.01 * size
        assert max(sent[1:]) < 1.01 * size


def test_a_node_that_dies_in_the_middle_ends_it_for_all() -> None:
    size = 6 * PIECE_BYTES

    class Dying(io.BytesIO):
        def write(self, piece: Any) -> int:
            os.kill(os.getpid(), signal.SIGKILL)
            return 0

    def work(rank: int, wire: Wire) -> object:
        sharing = Sharing(wire, 1, seconds=SECONDS)
        if rank == 0:
            sharing.send(io.BytesIO(bytes(size)), size)
        else:
            sharing.receive(Dying() if rank == 2 else io.BytesIO(), size)
        return "whole"

    first, second, killed = ranks(3, work)
    assert isinstance(first, SealtrainError)
    assert isinstance(second, SealtrainError)
    assert killed is None


def test_bytes_that_are_altered_or_cut_on_the_way_are_no_checkpoint(tmp_path: Path) -> None:
    def flipped(_way: int, number: int, frame: bytes) -> list[bytes]:
        return [frame[:-1] + bytes([frame[-1] ^ 1])] if number == 9 else [frame]

    def cut(_way: int, number: int, frame: bytes) -> list[bytes] | None:
        return None if number == 9 else [frame]

    def work(rank: int, wire: Wire) -> object:
        return shared(rank, wire, of_node=1, size=PIECE_BYTES, seconds=3.0)

    for meddle, error in ((flipped, ChannelBroken), (cut, ChannelCut)):
        _lead, node = ranks(2, work, through=Relay(meddle=meddle))
        assert isinstance(node, error)


def test_nodes_that_expect_another_size_are_told_apart() -> None:
    def work(rank: int, wire: Wire) -> object:
        return shared(rank, wire, of_node=1, size=1000 + rank)

    _lead, node = ranks(2, work)
    assert isinstance(node, ChannelBroken)


def test_a_file_that_became_shorter_is_sent_to_nobody() -> None:
    def work(rank: int, wire: Wire) -> object:
        sharing = Sharing(wire, 1, seconds=SECONDS)
        if rank == 0:
            sharing.send(io.BytesIO(bytes(10)), 1000)
        else:
            sharing.receive(io.BytesIO(), 1000)
        return "whole"

    lead, node = ranks(2, work)
    assert isinstance(lead, CheckpointRefused)
    assert isinstance(node, SealtrainError)
