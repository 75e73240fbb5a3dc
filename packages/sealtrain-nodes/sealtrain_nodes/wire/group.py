"""A group of ranks of different guests as PyTorch's process group, over their wire.

Groups share the wire: their operations are done in the order in which a rank issues all of them, so
two ranks have to issue what both take part in in the same order, as with NCCL. What a group does
not do is refused by name: sparse tensors, receiving from any rank.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final, NoReturn, Protocol

import torch
import torch.distributed as dist

from sealtrain.errors import UsageError
from sealtrain_nodes.wire.collectives import Circle, Steps
from sealtrain_nodes.wire.engine import Operation
from sealtrain_nodes.wire.frames import form_of
from sealtrain_nodes.wire.parts import (
    TensorParts,
    all_of,
    require_count,
    require_size,
    split,
)
from sealtrain_nodes.wire.scratch import FrameBuffers
from sealtrain_nodes.wire.staging import STAGED, staging_of
from sealtrain_nodes.wire.tensors import (
    Flat,
    Reduction,
    reduction_of,
    require_plain,
)
from sealtrain_nodes.wire.work import WireWork

BACKEND: Final = "sealtrain"
_SCRATCH: Final = FrameBuffers()

Tensors = Sequence[torch.Tensor]
Queue = Callable[[Operation, bytes, list[Flat], list[Flat]], Steps]
"""Queues pieces, given the form, the tensors that are filled and those that are only read."""


# PyTorch types what callers of its groups may write; a subclass is called in one way only.
_ProcessGroup: Any = dist.ProcessGroup


class NamedGroup(_ProcessGroup):  # type: ignore[misc]
    """What PyTorch asks a group for besides its operations."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._group_name = self._description = ""

    def getBackendName(self) -> str:  # noqa: N802  # PyTorch's name, as the following
        """Name of the backend."""
        return BACKEND

    def setGroupName(self, name: str) -> None:  # noqa: N802, D102
        self._group_name = name

    def getGroupName(self) -> str:  # noqa: N802, D102
        return self._group_name

    def setGroupDesc(self, description: str) -> None:  # noqa: N802, D102
        self._description = description

    def getGroupDesc(self) -> str:  # noqa: N802, D102
        return self._description


class Issuer(Protocol):
    """Takes operations of the wire: its engine, or a lane before it."""

    def submit(self, operation: Operation) -> None:
        """Have an operation done after all that were submitted before."""


class WireGroup(NamedGroup):
    """Ranks of different guests, of which no two are one guest's.

    Args:
        issuer: Takes the operations.
        ranks: Of the wire, by rank of the group.
        me: This one's rank in the group.
        name: The same on every rank.
        timeout: For each operation.
        staged: As ``offer``.
    """

    def __init__(
        self,
        issuer: Issuer,
        ranks: tuple[int, ...],
        me: int,
        name: str,
        timeout: timedelta,
        *,
        staged: Collection[str] = STAGED,
    ) -> None:
        super().__init__(me, len(ranks))
        self._circle = Circle(ranks=ranks, me=me, scratch=_SCRATCH)
        self._issuer = issuer
        self._staged = staged
        self._timeout_s = timeout.total_seconds()
        self._number = 0
        self._messages: dict[tuple[int, int], int] = {}
        self._label = f"{name} {ranks}"

    # --- All ranks ---------------------------------------------------------------------------

    def allreduce(self, tensors: Tensors, opts: Any = None) -> WireWork:
        """Reduce over all ranks, in every rank."""
        return self._reduce("all_reduce", self._circle.all_reduce, tensors, opts)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> WireWork:
        """As ``allreduce``."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Tensors, opts: Any = None) -> WireWork:
        """Reduce over all ranks, in one rank."""
        root = root_of(opts)
        return self._reduce(
            f"reduce {root}", partial(self._circle.reduce, root=root), tensors, opts
        )

    def _reduce(
        self, kind: str, reduce: Callable[..., Steps], tensors: Tensors, opts: Any
    ) -> WireWork:
        reductions = _reductions(tensors, opts)

        def queue(work: Operation, form: bytes, filled: list[Flat], _: list[Flat]) -> Steps:
            for flat, reduction in zip(filled, reductions, strict=True):
                yield from reduce(work, form, flat=flat, reduction=reduction)

        return self._collective(
            f"{kind} {reductions[0].name if reductions else ''}",
            tensors,
            [],
            queue,
            opts,
            result=tensors,
            shape=_sizes(tensors),
        )

    def broadcast(self, tensors: Tensors, opts: Any = None) -> WireWork:
        """Send one rank's tensors to all."""
        root = root_of(opts)

        def queue(work: Operation, form: bytes, filled: list[Flat], _: list[Flat]) -> Steps:
            for flat in filled:
                yield from self._circle.broadcast(work, form, root, flat.bytes)

        return self._collective(
            f"broadcast {root}", tensors, [], queue, opts, result=tensors, shape=_sizes(tensors)
        )

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> WireWork:
        """Gather every rank's tensor in every rank."""
        return self._gather_all(
            [TensorParts(list(output)) for output in outputs], inputs, opts, outputs
        )

    def allgather_coalesced(
        self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None
    ) -> WireWork:
        """As ``allgather``, of several tensors; the outputs are lists by rank."""
        parts = [TensorParts(list(of_tensor)) for of_tensor in zip(*outputs, strict=True)]
        return self._gather_all(parts, inputs, opts, outputs)

    def all_gather_single(
        self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None
    ) -> WireWork:
        """Gather every rank's tensor in one tensor."""
        return self.all_gather_single_coalesced([output], [tensor], opts)

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> WireWork:
        """As ``all_gather_single``, of several tensors."""
        parts = [TensorParts([output], whole=True) for output in outputs]
        return self._gather_all(parts, inputs, opts, outputs)

    def _gather_all(
        self, outputs: list[TensorParts], inputs: Tensors, opts: Any, result: Any
    ) -> WireWork:
        circle = self._circle
        for output, tensor in zip(outputs, inputs, strict=True):
            output.require(tensor, circle.size)

        def queue(work: Operation, form: bytes, filled: list[Flat], given: list[Flat]) -> Steps:
            rows = iter(filled)
            for output, own in zip(outputs, given, strict=True):
                back = output.views(rows, circle.size)
                yield from circle.exchange(work, form, [own.bytes] * circle.size, back)

        return self._collective(
            "all_gather", all_of(outputs), inputs, queue, opts, result=result, shape=_sizes(inputs)
        )

    def reduce_scatter(
        self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None
    ) -> WireWork:
        """Reduce over all ranks; each rank gets its part."""
        return self._scatter_reduced(outputs, [TensorParts(list(parts)) for parts in inputs], opts)

    def reduce_scatter_single(
        self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None
    ) -> WireWork:
        """As ``reduce_scatter``, of one tensor's parts."""
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> WireWork:
        """As ``reduce_scatter_single``, of several tensors."""
        parts = [TensorParts([tensor], whole=True) for tensor in inputs]
        return self._scatter_reduced(outputs, parts, opts)

    def _scatter_reduced(self, outputs: Tensors, inputs: list[TensorParts], opts: Any) -> WireWork:
        reductions = _reductions(outputs, opts)
        circle = self._circle
        for output, parts in zip(outputs, inputs, strict=True):
            parts.require(output, circle.size)

        def queue(work: Operation, form: bytes, filled: list[Flat], given: list[Flat]) -> Steps:
            rows = iter(given)
            for output, parts, reduction in zip(filled, inputs, reductions, strict=True):
                views = parts.views(rows, circle.size)
                yield from circle.reduce_scatter(work, form, views, output, reduction)

        kind = f"reduce_scatter {reductions[0].name if reductions else ''}"
        return self._collective(
            kind, outputs, all_of(inputs), queue, opts, result=outputs, shape=_sizes(outputs)
        )

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> WireWork:
        """Gather every rank's tensor in one rank."""
        circle, root = self._circle, root_of(opts)
        at_root = [TensorParts(list(output)) for output in outputs] if circle.me == root else []
        for output, tensor in zip(at_root, inputs, strict=bool(at_root)):
            output.require(tensor, circle.size)

        def queue(work: Operation, form: bytes, filled: list[Flat], given: list[Flat]) -> Steps:
            rows = iter(filled)
            for output in at_root:
                views = output.views(rows, circle.size)
                own = given[at_root.index(output)]
                if own.length:
                    views[circle.me][:] = own.bytes
                for other in circle.others:
                    yield from circle.receive(work, form, other, views[other])
            if circle.me != root:
                for own in given:
                    yield from circle.send(work, form, root, own.bytes)

        return self._collective(
            f"gather {root}",
            all_of(at_root),
            inputs,
            queue,
            opts,
            result=outputs,
            shape=_sizes(inputs),
        )

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> WireWork:
        """Send each rank its tensor of one rank's list."""
        circle, root = self._circle, root_of(opts)
        at_root = [TensorParts(list(parts)) for parts in inputs] if circle.me == root else []
        for output, parts in zip(outputs, at_root, strict=bool(at_root)):
            parts.require(output, circle.size)

        def queue(work: Operation, form: bytes, filled: list[Flat], given: list[Flat]) -> Steps:
            rows = iter(given)
            for own, parts in zip(filled, at_root, strict=bool(at_root)):
                views = parts.views(rows, circle.size)
                if own.length:
                    own.bytes[:] = views[circle.me]
                for other in circle.others:
                    yield from circle.send(work, form, other, views[other])
            if circle.me != root:
                for own in filled:
                    yield from circle.receive(work, form, root, own.bytes)

        return self._collective(
            f"scatter {root}",
            outputs,
            all_of(at_root),
            queue,
            opts,
            result=outputs,
            shape=_sizes(outputs),
        )

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> WireWork:
        """Send rank j the tensor j, and receive its tensor for this rank."""
        circle = self._circle
        for tensors in (outputs, inputs):
            require_count(len(tensors), circle.size)
        require_size(inputs[circle.me], outputs[circle.me])

        def queue(work: Operation, form: bytes, filled: list[Flat], given: list[Flat]) -> Steps:
            yield from circle.exchange(
                work, form, [flat.bytes for flat in given], [flat.bytes for flat in filled]
            )

        return self._collective("all_to_all", outputs, inputs, queue, opts, result=outputs)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_sizes: Sequence[int],
        input_sizes: Sequence[int],
        opts: Any = None,
    ) -> WireWork:
        """As ``alltoall``, of one tensor's parts along its first dimension."""
        size = self._circle.size
        return self.alltoall(
            split(output, output_sizes, size), split(tensor, input_sizes, size), opts
        )

    def barrier(self, opts: Any = None) -> WireWork:
        """Wait until all ranks are here."""

        def queue(work: Operation, form: bytes, _: list[Flat], __: list[Flat]) -> Steps:
            yield from self._circle.signal(work, form)

        return self._collective("barrier", [], [], queue, opts, result=None)

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """As ``barrier``, waited for: a missing rank is named by the error anyway."""
        self.barrier().wait(timeout or timedelta(0))

    # --- Two ranks ---------------------------------------------------------------------------

    def send(self, tensors: Tensors, destination: int, tag: int) -> WireWork:
        """Send tensors to a rank."""
        return self._message("send", self._circle.me, destination, tensors, tag)

    def recv(self, tensors: Tensors, source: int, tag: int) -> WireWork:
        """Receive tensors of a rank."""
        return self._message("receive", source, self._circle.me, tensors, tag)

    def recv_anysource(self, *_: Any) -> NoReturn:
        """Refused: a rank says of whom it receives."""
        raise UsageError(
            "the group receives from a named rank only",
            check="receive",
            hint="name the source: dist.recv(tensor, src=…)",
        )

    def _message(
        self, name: str, source: int, destination: int, tensors: Tensors, tag: int
    ) -> WireWork:
        way = (source, destination)
        number = self._messages.get(way, 0)
        self._messages[way] = number + 1
        circle = self._circle

        def queue(work: Operation, form: bytes, filled: list[Flat], given: list[Flat]) -> Steps:
            for flat in given:
                yield from circle.send(work, form, destination, flat.bytes)
            for flat in filled:
                yield from circle.receive(work, form, source, flat.bytes)

        return self._issue(
            f"message {number} {source} {destination} {tag} {_sizes(tensors)}",
            tensors if name == "receive" else [],
            tensors if name == "send" else [],
            queue,
            self._timeout_s,
            result=tensors,
            alone=True,
        )

    # --- How an operation is issued ----------------------------------------------------------

    def _collective(
        self,
        kind: str,
        filled: Tensors,
        given: Tensors,
        queue: Queue,
        opts: Any,
        *,
        result: Any,
        shape: str = "",
    ) -> WireWork:
        self._number += 1
        seconds = _seconds(opts) or self._timeout_s
        return self._issue(
            f"{kind} {self._number} {shape}", filled, given, queue, seconds, result=result
        )

    def _issue(
        self,
        what: str,
        filled: Tensors,
        given: Tensors,
        queue: Queue,
        seconds: float,
        *,
        result: Any,
        alone: bool = False,
    ) -> WireWork:
        """Issue an operation.

        Args:
            what: What all its ranks agree on besides the group and the types.
            filled: Tensors that it writes.
            given: Tensors that it only reads.
            queue: Queues its pieces.
            seconds: How long it may take.
            result: What its future gives.
            alone: Whether it is a message of one rank to another.
        """
        tensors = [*filled, *given]
        require_plain(tensors)
        types = " ".join(sorted({str(tensor.dtype) for tensor in tensors}))
        form = form_of(f"{self._label} {what} {types}")
        staging = staging_of(tensors, self._staged)
        mark = staging.mark()
        written: list[Flat] = []

        def begin(work: Operation) -> Steps:
            with staging.copying(after=mark):
                written.extend(Flat(tensor, staging) for tensor in filled)
                read = [Flat(tensor, staging) for tensor in given]
            return queue(work, form, written, read)

        def finish() -> None:
            with staging.copying():
                for flat in written:
                    flat.restore()

        operation = Operation(
            what, begin, finish=finish, timeout_s=seconds, alone=alone, keeps=tensors
        )
        self._issuer.submit(operation)
        return WireWork(operation, result, staging.device)

    def size(self) -> int:
        """Number of ranks."""
        return self._circle.size

    def rank(self) -> int:
        """This one's rank in the group."""
        return self._circle.me

    # Names before PyTorch 2.13.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


def root_of(opts: Any) -> int:
    """The root that options name."""
    return int(getattr(opts, "rootRank", 0))


def _seconds(opts: Any) -> float | None:
    timeout = getattr(opts, "timeout", None)
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else 0.0
    return seconds if seconds > 0 else None


def _reductions(tensors: Tensors, opts: Any) -> list[Reduction]:
    op = getattr(opts, "reduceOp", dist.ReduceOp.SUM)
    return [reduction_of(op, tensor.dtype) for tensor in tensors]


def _sizes(tensors: Tensors) -> str:
    return " ".join(str(tensor.numel()) for tensor in tensors)
