"""The sealed checkpoint that all nodes begin from: node 0 has it, and the others pass it on.

It travels over node-wire as broadcasts among the first ranks of the nodes. Each node forwards what
it gets to the others, so node 0 sends about twice the size of the checkpoint, however many nodes
there are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from sealtrain.errors import CheckpointRefused

if TYPE_CHECKING:
    from sealtrain.training.distributed.wire.meeting import Wire

__all__ = ["PIECE_BYTES", "Sharing"]

PIECE_BYTES: Final = 16 << 20
PIECE_SECONDS: Final = 5 * 60.0
"""Longest wait for a node that does not take, or does not pass on, the next piece."""
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
        from sealtrain.training.distributed.wire.group import WireGroup

        firsts = tuple(range(0, wire.world, ranks))
        timeout = timedelta(seconds=seconds)
        me = firsts.index(wire.rank)
        self._group = WireGroup(wire, firsts, me, "the checkpoint of the nodes", timeout)

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
        under_way: deque[tuple[Any, memoryview]] = deque()
        for count in _sizes(size):
            under_way.append(self._issued(count, before))
            if len(under_way) == _AHEAD:
                _finish(under_way.popleft(), after)
        while under_way:
            _finish(under_way.popleft(), after)

    def _issued(self, count: int, before: Callable[[memoryview], object]) -> tuple[Any, memoryview]:
        import torch

        tensor = torch.empty(count, dtype=torch.uint8)
        piece = tensor.numpy().data
        before(piece)
        return self._group.broadcast([tensor]), piece


def _sizes(size: int) -> Iterator[int]:
    for start in range(0, size, PIECE_BYTES):
        yield min(PIECE_BYTES, size - start)


def _finish(issued: tuple[Any, memoryview], after: Callable[[memoryview], object]) -> None:
    work, piece = issued
    work.wait()
    after(piece)
