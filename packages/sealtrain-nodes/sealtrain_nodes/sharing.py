"""The sealed checkpoint that all nodes begin from: node 0 has it, and the others pass it on.

It travels over node-wire as broadcasts among the first ranks of the nodes. Each node forwards what
it gets to the others, so node 0 sends about twice the size of the checkpoint, however many nodes
there are. The process with a node's keys does it, before it hands the connections to the ranks
that train: so without PyTorch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, Final

from sealtrain.sealing.errors import CheckpointRefused
from sealtrain_nodes.wire.collectives import Circle, Steps
from sealtrain_nodes.wire.engine import Operation
from sealtrain_nodes.wire.frames import form_of
from sealtrain_nodes.wire.scratch import FrameBuffers

if TYPE_CHECKING:
    from sealtrain_nodes.wire.meeting import Wire

PIECE_BYTES: Final = 16 << 20
PIECE_SECONDS: Final = 5 * 60.0
"""Longest wait for a node that does not take, or does not pass on, the next piece."""
_NAME: Final = "the checkpoint of the nodes"
_AHEAD: Final = 2
"""Pieces on their way at a time: one is read or written while another travels."""


class Sharing:
    """Sends bytes of node 0 to all nodes; every node calls with the same size."""

    def __init__(self, wire: Wire, ranks: int, *, seconds: float = PIECE_SECONDS) -> None:
        """Make a group of the first ranks of all nodes.

        Args:
            wire: Of this node's first rank.
            ranks: Of each node.
            seconds: Longest wait for a piece.
        """
        firsts = tuple(range(0, wire.world, ranks))
        self._circle = Circle(ranks=firsts, me=firsts.index(wire.rank), scratch=FrameBuffers())
        self._engine, self._seconds = wire.engine, seconds
        self._number = 0

    def send(self, file: BinaryIO, size: int) -> None:
        """Send a file as node 0.

        Args:
            file: At its beginning.
            size: Of it, in bytes.

        Raises:
            CheckpointRefused: It became shorter meanwhile.
            SealtrainError: A node did not take it, as a failed operation of the wire.
        """

        def fill(piece: memoryview) -> None:
            if file.readinto(piece) != len(piece):  # type: ignore[attr-defined]
                raise CheckpointRefused(
                    "a checkpoint became shorter while nodes were sent it", check="checkpoint"
                )

        self._share(size, before=fill, after=lambda _piece: None)

    def receive(self, file: BinaryIO, size: int) -> None:
        """Write what node 0 sends. Arguments and errors as ``send``."""
        self._share(size, before=lambda _piece: None, after=file.write)

    def _share(
        self,
        size: int,
        *,
        before: Callable[[memoryview], object],
        after: Callable[[memoryview], object],
    ) -> None:
        under_way: deque[tuple[Operation, memoryview]] = deque()
        for count in _sizes(size):
            under_way.append(self._issue(count, before))
            if len(under_way) == _AHEAD:
                _finish(under_way.popleft(), after)
        while under_way:
            _finish(under_way.popleft(), after)

    def _issue(
        self, count: int, before: Callable[[memoryview], object]
    ) -> tuple[Operation, memoryview]:
        piece = memoryview(bytearray(count))
        before(piece)
        self._number += 1
        # As a process group of this name would say it (spec/node-wire.md §4).
        what = f"{_NAME} {self._circle.ranks} broadcast 0 {self._number} {count} torch.uint8"
        queue = partial(self._queue, form=form_of(what), piece=piece)
        operation = Operation(what, queue, timeout_s=self._seconds)
        self._engine.submit(operation)
        return operation, piece

    def _queue(self, work: Operation, *, form: bytes, piece: memoryview) -> Steps:
        return self._circle.broadcast(work, form, 0, piece)


def _sizes(size: int) -> Iterator[int]:
    for start in range(0, size, PIECE_BYTES):
        yield min(PIECE_BYTES, size - start)


def _finish(issued: tuple[Operation, memoryview], after: Callable[[memoryview], object]) -> None:
    work, piece = issued
    work.wait()
    after(piece)
