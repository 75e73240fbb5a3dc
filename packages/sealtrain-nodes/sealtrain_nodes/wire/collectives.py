"""Collectives as pieces to send and to expect: direct exchanges between ranks.

A reduction is cut into parts of one frame for each rank. Every rank sends each other rank its
segment of a part, reduces its own segment and sends the result to all, while later parts are under
way. A result is always formed in the order of ranks, whatever arrives first: it has the same bits
on every rank and every time.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from sealtrain_nodes.wire.engine import Operation
from sealtrain_nodes.wire.frames import FRAME_BYTES
from sealtrain_nodes.wire.link import Piece
from sealtrain_nodes.wire.scratch import FrameBuffers

if TYPE_CHECKING:  # it loads PyTorch, which a keeper does not
    from sealtrain_nodes.wire.tensors import Flat, Reduction

Steps = Iterator[None]
"""Queues pieces at each step. The order of the steps is the same on every rank."""

AHEAD: Final = 3
"""Parts whose segments are sent before the first result is."""
EXCHANGED_BYTES: Final = 16 << 10
"""Up to so many bytes every rank sends its whole tensor to all, which halves the way."""
FORWARDED_BYTES: Final = 128 << 10
"""From so many bytes on a broadcast of more than two ranks is passed on by all of them."""


class _PendingResult:
    """Pieces that wait until their bytes are there."""

    __slots__ = ("_pieces", "_there")

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self._there = False

    def send(self, work: Operation, rank: int, form: bytes, view: memoryview) -> None:
        """Queue a piece of it for a rank, unless it is empty."""
        if view:
            self._pieces.append(work.send(rank, form, view, ready=self._there))

    def release(self) -> None:
        """The bytes are there."""
        self._there = True
        for piece in self._pieces:
            piece.ready = True


@dataclass(frozen=True)
class Circle:
    """The ranks of a group, seen by one of them, and one operation's place among its operations.

    Attributes:
        ranks: Ranks of the wire, by rank of the group.
        me: This one's rank in the group.
        scratch: Buffers.
    """

    ranks: tuple[int, ...]
    me: int
    scratch: FrameBuffers

    @cached_property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    @cached_property
    def others(self) -> tuple[int, ...]:
        """Ranks of the group besides this one, the next one first."""
        return tuple((self.me + step) % self.size for step in range(1, self.size))

    # --- One message -------------------------------------------------------------------------

    def send(self, work: Operation, form: bytes, to: int, view: memoryview) -> Steps:
        """Send bytes to a rank of the group."""
        for start in range(0, len(view), FRAME_BYTES):
            work.send(self.ranks[to], form, view[start : start + FRAME_BYTES])
            yield

    def receive(self, work: Operation, form: bytes, source: int, view: memoryview) -> Steps:
        """Receive bytes of a rank of the group."""
        for start in range(0, len(view), FRAME_BYTES):
            work.expect(self.ranks[source], form, view[start : start + FRAME_BYTES])
            yield

    def signal(self, work: Operation, form: bytes) -> Steps:
        """Send an empty frame to every rank and wait for those of all."""
        for other in self.others:
            work.send(self.ranks[other], form, memoryview(b""))
            work.expect(self.ranks[other], form, memoryview(bytearray()))
        yield

    # --- Without arithmetic ------------------------------------------------------------------

    def exchange(
        self,
        work: Operation,
        form: bytes,
        out: Sequence[memoryview],
        back: Sequence[memoryview],
    ) -> Steps:
        """Send ``out[j]`` to rank j and fill ``back[j]`` with what it sends."""
        if len(back[self.me]):
            back[self.me][:] = out[self.me]
        yield from _in_turns(
            [self.send(work, form, other, out[other]) for other in self.others]
            + [self.receive(work, form, other, back[other]) for other in self.others]
        )

    def broadcast(self, work: Operation, form: bytes, root: int, view: memoryview) -> Steps:
        """Fill ``view`` on every rank with that of the root."""
        if self.size > 2 and len(view) >= FORWARDED_BYTES:
            yield from self._pass_on(work, form, root, view)
        elif self.me != root:
            yield from self.receive(work, form, root, view)
        else:
            yield from self.send_each(work, form, [view] * self.size)

    def send_each(self, work: Operation, form: bytes, views: Sequence[memoryview]) -> Steps:
        """Send ``views[j]`` to rank j."""
        yield from _in_turns([self.send(work, form, other, views[other]) for other in self.others])

    def receive_each(self, work: Operation, form: bytes, views: Sequence[memoryview]) -> Steps:
        """Fill ``views[j]`` with what rank j sends."""
        yield from _in_turns(
            [self.receive(work, form, other, views[other]) for other in self.others]
        )

    def _pass_on(self, work: Operation, form: bytes, root: int, view: memoryview) -> Steps:
        """The root sends each rank a segment of each part, and that rank sends it to the others."""
        me, ranks = self.me, self.ranks
        for part in _parts(len(view), self.size, FRAME_BYTES):
            segments = [view[slice(*segment)] for segment in part]
            if me == root:
                for other in self.others:
                    _send_part(work, ranks[other], form, segments[other])
                    _send_part(work, ranks[other], form, segments[root])
                yield
                continue
            passed = _PendingResult()
            _expect_part(work, ranks[root], form, segments[me], passed.release)
            _expect_part(work, ranks[root], form, segments[root])
            for other in self.others:
                if other != root:
                    passed.send(work, ranks[other], form, segments[me])
                    _expect_part(work, ranks[other], form, segments[other])
            yield

    # --- With arithmetic ---------------------------------------------------------------------

    def all_reduce(self, work: Operation, form: bytes, flat: Flat, reduction: Reduction) -> Steps:
        """Replace the elements by their reduction over all ranks, in every rank."""
        if len(flat.bytes) <= EXCHANGED_BYTES:
            self._reduce_all(work, form, flat, reduction)
            yield
            return
        ahead: deque[tuple[list[tuple[int, int]], _PendingResult]] = deque()
        for part in _parts(flat.length, self.size, FRAME_BYTES // flat.item):
            result = _PendingResult()
            for other in self.others:
                _send_part(work, self.ranks[other], form, flat.part(*part[other]))
            own = flat.array[slice(*part[self.me])]
            self._gather_into(work, form, own, len(own) * flat.item, reduction, result.release)
            ahead.append((part, result))
            if len(ahead) > AHEAD:
                self._share(work, form, flat, *ahead.popleft())
            yield
        for part, result in ahead:
            self._share(work, form, flat, part, result)
            yield

    def _reduce_all(self, work: Operation, form: bytes, flat: Flat, reduction: Reduction) -> None:
        """Everybody sends everything: the copy is what is sent, the original is reduced into."""
        whole = memoryview(bytes(flat.bytes))
        for other in self.others:
            _send_part(work, self.ranks[other], form, whole)
        self._gather_into(work, form, flat.array, len(whole), reduction, lambda: None)

    def _share(
        self,
        work: Operation,
        form: bytes,
        flat: Flat,
        part: list[tuple[int, int]],
        result: _PendingResult,
    ) -> None:
        """Send the own segment of a part to all once it is reduced, and receive theirs."""
        own = flat.part(*part[self.me])
        for other in self.others:
            result.send(work, self.ranks[other], form, own)
            _expect_part(work, self.ranks[other], form, flat.part(*part[other]))

    def reduce_scatter(
        self,
        work: Operation,
        form: bytes,
        inputs: Sequence[memoryview],
        output: Flat,
        reduction: Reduction,
    ) -> Steps:
        """Reduce ``inputs[j]`` of all ranks into the output of rank j."""
        if output.length:
            output.bytes[:] = inputs[self.me]
        yield from _in_turns(
            [
                self.send_each(work, form, inputs),
                self._reduce_into(work, form, output, reduction),
            ]
        )

    def reduce(
        self, work: Operation, form: bytes, flat: Flat, reduction: Reduction, *, root: int
    ) -> Steps:
        """Replace the root's elements by their reduction over all ranks."""
        if self.me == root:
            yield from self._reduce_into(work, form, flat, reduction)
        else:
            yield from self.send(work, form, root, flat.bytes)

    def _reduce_into(self, work: Operation, form: bytes, flat: Flat, reduction: Reduction) -> Steps:
        step = FRAME_BYTES // flat.item
        for start in range(0, flat.length, step):
            array = flat.array[start : start + step]
            size = len(array) * flat.item
            self._gather_into(work, form, array, size, reduction, lambda: None)
            yield

    def _gather_into(
        self,
        work: Operation,
        form: bytes,
        own: Any,
        size: int,
        reduction: Reduction,
        then: Callable[[], None],
    ) -> None:
        """Expect a frame of every other rank and reduce all of them into ``own``.

        Args:
            work: The operation.
            form: Its form.
            own: At most a frame of elements, this rank's.
            size: Their bytes.
            reduction: What to do.
            then: Called once it is done.
        """
        if not size:
            return
        buffers: dict[int, Any] = {}
        missing = self.size - 1

        def arrived() -> None:
            nonlocal missing
            missing -= 1
            if missing:
                return
            arrays = {rank: reduction.typed(buffers[rank], len(own)) for rank in sorted(buffers)}
            reduction.in_order(
                own,
                [array for rank, array in arrays.items() if rank < self.me],
                [array for rank, array in arrays.items() if rank > self.me],
            )
            reduction.last(own, self.size)
            for buffer in buffers.values():
                self.scratch.give(buffer)
            then()

        def room(source: int) -> Callable[[], memoryview]:
            def taken() -> memoryview:
                buffers[source] = self.scratch.take()
                return memoryview(buffers[source])[:size]

            return taken

        for other in self.others:
            work.expect_in(self.ranks[other], form, size, room(other), arrived)


def _parts(length: int, ranks: int, step: int) -> Iterator[list[tuple[int, int]]]:
    """Cut a row into parts of at most ``step`` elements for each rank: their segments by rank."""
    for start in range(0, length, ranks * step):
        stop = min(length, start + ranks * step)
        each = -(-(stop - start) // ranks)
        yield [
            (min(stop, start + rank * each), min(stop, start + (rank + 1) * each))
            for rank in range(ranks)
        ]


def _send_part(work: Operation, rank: int, form: bytes, view: memoryview) -> None:
    if view:
        work.send(rank, form, view)


def _expect_part(
    work: Operation,
    rank: int,
    form: bytes,
    view: memoryview,
    then: Callable[[], None] | None = None,
) -> None:
    if view:
        work.expect(rank, form, view, then)


def _in_turns(ways: Sequence[Steps]) -> Steps:
    """One step of each way after the other: a rank that only sent could wait for another."""
    left = deque(ways)
    while left:
        way = left.popleft()
        with contextlib.suppress(StopIteration):
            next(way)
            left.append(way)
            yield
