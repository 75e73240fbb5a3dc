"""Collectives of all ranks of several guests: within a guest by its own transport, across by wire.

Rank l of a guest and the ranks l of the others are a column. An all-reduce exchanges parts within
the guest, so that rank l has the guest's sum of part l; reduces that over its column; and gathers
the results within the guest. So the guests exchange one reduced copy, whatever the number of their
ranks, and between two ranks of one guest there is no wire at all.

Sums are formed in the order of ranks within a guest, and then in the order of guests: they have the
same bits on every rank and every time.

Whatever needs the wire or the guest's transport is done by one thread of this process in the order
of issue (``IssueLane``), which is the same on every rank.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final, NoReturn

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceOptions, BroadcastOptions, ReduceScatterOptions

from sealtrain.errors import SealtrainError, UsageError
from sealtrain.training.errors import ChannelBroken, ChannelCut
from sealtrain_nodes.wire.engine import IssuedWork, LinkEngine, Operation
from sealtrain_nodes.wire.frames import form_of
from sealtrain_nodes.wire.group import NamedGroup, Tensors, WireGroup, root_of
from sealtrain_nodes.wire.guest_groups import GuestGroups, is_of_transport
from sealtrain_nodes.wire.parts import require_count, require_size, split
from sealtrain_nodes.wire.staging import staging_of
from sealtrain_nodes.wire.tensors import (
    in_order,
    reduction_of,
    require_plain,
)
from sealtrain_nodes.wire.work import WireWork

PART_BYTES: Final = 4 << 20
"""Of each rank's part of what is reduced at a time."""
AHEAD: Final = 2
"""Parts on the wire while the next one is reduced within the guest."""


class _Task(IssuedWork):
    """What a lane does in its turn."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        super().__init__(name)
        self.work: Callable[[], None] | None = work

    def complete(self, error: BaseException | None = None) -> None:
        super().complete(error)
        self.work = None


class IssueLane:
    """One thread that does tasks and issues operations of the wire, in the order of issue.

    Args:
        engine: Of the wire. What ends a task ends the group, and its peers are told.
    """

    def __init__(self, engine: LinkEngine) -> None:
        self._engine = engine
        self._waiting: deque[_Task | Operation] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._busy = self._closing = False
        self.failure: SealtrainError | None = None
        """What ended the group, as far as this lane found it."""

    def submit(self, operation: Operation) -> None:
        """As ``LinkEngine.submit``, after all that was issued before."""
        with self._changed:
            if self.failure is None and (self._busy or self._waiting):
                self._waiting.append(operation)
                return
            error = self.failure
            if error is None:
                self._engine.submit(operation)
                return
        operation.complete(error)

    def do(self, task: _Task) -> None:
        """Have a task done after all that was issued before."""
        with self._changed:
            error = self.failure
            if error is None and self._closing:
                error = ChannelBroken("the wire is closed", check="wire")
            if error is None:
                self._waiting.append(task)
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._run, name="sealtrain-lane", daemon=True
                    )
                    self._thread.start()
                self._changed.notify()
                return
        task.complete(error)

    def close(self) -> None:
        """Do what was issued, and take nothing more."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while (issued := self._next()) is not None:
            if isinstance(issued, Operation):
                self._engine.submit(issued)
                continue
            try:
                if issued.work is not None:
                    issued.work()
            except BaseException as error:
                self._fail(issued, _type_error(error))
                return
            issued.complete()

    def _next(self) -> _Task | Operation | None:
        with self._changed:
            self._busy = False
            while not self._waiting:
                if self._closing:
                    return None
                self._changed.wait()
            self._busy = True
            return self._waiting.popleft()

    def _fail(self, task: _Task, error: SealtrainError) -> None:
        with self._changed:
            self.failure = error
            over, self._waiting = [task, *self._waiting], deque()
            self._busy = False
        self._engine.abort(error)
        for issued in over:
            issued.complete(error)


def _type_error(error: BaseException) -> SealtrainError:
    if isinstance(error, SealtrainError):
        return error
    if is_of_transport(error):
        made: SealtrainError = ChannelCut(
            "a rank of this guest ended, or did not answer in time",
            check="guest",
            hint="check whether the machine ran out of memory",
        )
    else:
        made = ChannelBroken("the group failed", check="guest", got=type(error).__name__)
    made.__cause__ = error
    return made


class TieredGroup(NamedGroup):
    """All ranks of all guests.

    Args:
        engine: Of the wire.
        lane: Of this process.
        guest: The ranks of this one.
        world: Number of all ranks: as many in each guest.
        name: The same on every rank.
        timeout: For each operation of the wire.
        staged: As ``WireGroup``.
    """

    def __init__(
        self,
        engine: LinkEngine,
        lane: IssueLane,
        guest: GuestGroups,
        *,
        world: int,
        name: str,
        timeout: timedelta,
        staged: Any,
    ) -> None:
        self._me = guest.first + guest.rank
        super().__init__(self._me, world)
        self._lane, self._guest, self._staged = lane, guest, staged
        self._world, self._ranks = world, guest.size
        self._guests, self._own = world // guest.size, guest.first // guest.size
        column = tuple(range(guest.rank, world, guest.size))
        every = tuple(range(world))

        def over(issuer: Any, ranks: tuple[int, ...], label: str) -> WireGroup:
            me = ranks.index(self._me)
            return WireGroup(issuer, ranks, me, f"{name} {label}", timeout, staged=staged)

        self._column = over(engine, column, "column")
        self._direct = over(engine, every, "direct")
        self._pairs = over(lane, every, "pairs")
        self._messages = guest.group()
        self._label, self._number = f"{name} {every}", 0

    def size(self) -> int:
        """Number of ranks."""
        return self._world

    def rank(self) -> int:
        """This one's rank."""
        return self._me

    def _issue(
        self,
        name: str,
        tensors: Sequence[torch.Tensor],
        work: Callable[[], None],
        result: Any,
        *,
        shape: Sequence[torch.Tensor] = (),
    ) -> WireWork:
        """Have the lane do a collective.

        Args:
            name: What it is; the same on every rank.
            tensors: All that it reads or writes.
            work: Does it.
            result: What its future gives.
            shape: Tensors whose sizes and types are the same on every rank.
        """
        require_plain(tensors)
        staging = staging_of(tensors, self._staged)
        mark = staging.mark()
        self._number += 1
        sizes = " ".join(f"{tensor.numel()} {tensor.dtype}" for tensor in shape)
        form = form_of(f"{self._label} {name} {self._number} {sizes}")

        def turn() -> None:
            self._require_same(form)
            with staging.copying(after=mark):
                work()

        task = _Task(name, turn)
        self._lane.do(task)
        return WireWork(task, result, staging.device)

    def _require_same(self, form: bytes) -> None:
        """Compare with the guest's other ranks: a transport ends the process if sizes differ.

        Raises:
            ChannelBroken: One of them does something else.
        """
        own = torch.frombuffer(bytearray(form), dtype=torch.uint8)
        forms = own.new_empty(self._ranks, len(form))
        self._guest.gather_all(forms, own)
        if not bool((forms == own).all()):
            raise ChannelBroken(
                "the ranks do not do the same: one began another operation",
                check="operation",
                got="a rank of this guest",
                hint="every rank has to call the same collectives, with the same shapes and types",
            )

    # --- With arithmetic ----------------------------------------------------------------------

    def allreduce(self, tensors: Tensors, opts: Any = None) -> WireWork:
        """Reduce over all ranks, in every rank."""
        names = [_reduction(tensor, opts) for tensor in tensors]

        def work() -> None:
            for tensor, name in zip(tensors, names, strict=True):
                row = _row(tensor)
                self._all_reduce(row, name)
                _restore(tensor, row)

        return self._issue(f"all_reduce {names}", tensors, work, tensors, shape=tensors)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> WireWork:
        """As ``allreduce``."""
        return self.allreduce(tensors, opts)

    def _all_reduce(self, row: torch.Tensor, name: str) -> None:
        step = self._ranks * max(1, PART_BYTES // row.element_size())
        under_way: deque[tuple[torch.Tensor, torch.Tensor, torch.Tensor, Any]] = deque()

        def spread() -> None:
            part, padded, own, sent = under_way.popleft()
            sent.wait()
            if name == "AVG":
                own /= self._world
            self._guest.gather_all(padded, own)
            if padded is not part:
                part.copy_(padded[: len(part)])

        for start in range(0, len(row), step):
            part = row[start : start + step]
            padded, own = self._reduce_in_guest(part, name)
            how = AllreduceOptions()
            how.reduceOp = _operation(name)
            under_way.append((part, padded, own, self._column.allreduce([own], how)))
            if len(under_way) > AHEAD:
                spread()
        while under_way:
            spread()

    def _reduce_in_guest(self, part: torch.Tensor, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        """The part, filled up to a multiple of the ranks, and the guest's sum of a share."""
        missing = -len(part) % self._ranks
        padded = torch.cat([part, part.new_zeros(missing)]) if missing else part
        return padded, self._reduce_rows(padded, name)

    def _reduce_rows(self, rows: torch.Tensor, name: str) -> torch.Tensor:
        """The guest's reduction of the row with this rank's number within the guest."""
        room = torch.empty_like(rows)
        self._guest.exchange(room, rows)
        return in_order(list(room.view(self._ranks, -1)), name)

    def reduce_scatter(
        self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None
    ) -> WireWork:
        """Reduce over all ranks; each rank gets its part."""
        for output, parts in zip(outputs, inputs, strict=True):
            require_count(len(parts), self._world)
            for part in parts:
                require_size(part, output)
        rows = [torch.cat([_row(part) for part in parts]) for parts in inputs]
        return self.reduce_scatter_single_coalesced(outputs, rows, opts)

    def reduce_scatter_single(
        self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None
    ) -> WireWork:
        """As ``reduce_scatter``, of one tensor's parts."""
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> WireWork:
        """As ``reduce_scatter_single``, of several tensors."""
        names = [_reduction(output, opts) for output in outputs]
        for output, tensor in zip(outputs, inputs, strict=True):
            self._require_multiple(tensor, output)

        def work() -> None:
            for output, tensor, name in zip(outputs, inputs, names, strict=True):
                if not output.numel():
                    continue
                by_rank = tensor.reshape(self._guests, self._ranks, -1).transpose(0, 1)
                own = self._reduce_rows(by_rank.contiguous().reshape(-1), name)
                row = output.new_empty(output.numel())
                how = ReduceScatterOptions()
                how.reduceOp = _operation(name)
                self._column.reduce_scatter_single(row, own, how).wait()
                if name == "AVG":
                    row /= self._world
                output.copy_(row.view(output.shape))

        tensors = [*outputs, *inputs]
        return self._issue(f"reduce_scatter {names}", tensors, work, outputs, shape=outputs)

    def reduce(self, tensors: Tensors, opts: Any = None) -> WireWork:
        """Reduce over all ranks, in one rank."""
        root = root_of(opts)
        names = [_reduction(tensor, opts) for tensor in tensors]

        def work() -> None:
            for tensor, name in zip(tensors, names, strict=True):
                row = tensor.clone().contiguous().reshape(-1)
                self._all_reduce(row, name)
                if self._me == root:
                    tensor.copy_(row.view(tensor.shape))

        return self._issue(f"reduce {names} {root}", tensors, work, tensors, shape=tensors)

    # --- Without arithmetic -------------------------------------------------------------------

    def broadcast(self, tensors: Tensors, opts: Any = None) -> WireWork:
        """Send one rank's tensors to all."""
        root = root_of(opts)
        guest, rank = divmod(root, self._ranks)

        def work() -> None:
            for tensor in tensors:
                row = _row(tensor)
                if self._guest.rank == rank:
                    how = BroadcastOptions()
                    how.rootRank = guest
                    self._column.broadcast([row], how).wait()
                self._guest.broadcast(row, rank)
                _restore(tensor, row)

        return self._issue(f"broadcast {root}", tensors, work, tensors, shape=tensors)

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> WireWork:
        """Gather every rank's tensor in every rank."""
        for output, tensor in zip(outputs, inputs, strict=True):
            self._require_each(output, tensor)

        def work() -> None:
            for output, tensor in zip(outputs, inputs, strict=True):
                for each, row in zip(output, self._gather(tensor), strict=True):
                    each.copy_(row.view(each.shape))

        tensors = [*inputs, *(each for output in outputs for each in output)]
        return self._issue("all_gather", tensors, work, outputs, shape=inputs)

    def allgather_coalesced(
        self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None
    ) -> WireWork:
        """As ``allgather``, of several tensors; the outputs are lists by rank."""
        return self.allgather([list(each) for each in zip(*outputs, strict=True)], inputs, opts)

    def all_gather_single(
        self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None
    ) -> WireWork:
        """Gather every rank's tensor in one tensor."""
        return self.all_gather_single_coalesced([output], [tensor], opts)

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> WireWork:
        """As ``all_gather_single``, of several tensors."""
        for output, tensor in zip(outputs, inputs, strict=True):
            self._require_multiple(output, tensor)

        def work() -> None:
            for output, tensor in zip(outputs, inputs, strict=True):
                output.copy_(self._gather(tensor).reshape(output.shape))

        return self._issue("all_gather", [*outputs, *inputs], work, outputs, shape=inputs)

    def _gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Elements of every rank: a row for each, in the order of ranks."""
        own = _row(tensor)
        column = own.new_empty(self._guests * len(own))
        self._column.all_gather_single(column, own).wait()
        whole = own.new_empty(self._ranks, self._guests, len(own))
        self._guest.gather_all(whole, column)
        return whole.transpose(0, 1).reshape(self._world, len(own))

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> WireWork:
        """Gather every rank's tensor in one rank."""
        root = root_of(opts)
        if self._me == root:
            for output, tensor in zip(outputs, inputs, strict=True):
                self._require_each(output, tensor)
        guest, within = divmod(root, self._ranks)
        how = BroadcastOptions()
        how.rootRank = guest

        def work() -> None:
            for number, tensor in enumerate(inputs):
                own = _row(tensor)
                rows = own.new_empty(self._ranks * len(own))
                self._guest.gather_all(rows, own)
                if self._guest.rank != within:
                    continue
                every = [torch.empty_like(rows) for _ in range(self._guests)]
                self._column.gather([every] if self._me == root else [], [rows], how).wait()
                if self._me == root:
                    whole = torch.cat(every).view(self._world, len(own))
                    for each, row in zip(outputs[number], whole, strict=True):
                        each.copy_(row.view(each.shape))

        tensors = [*inputs, *(each for output in outputs for each in output)]
        return self._issue(f"gather {root}", tensors, work, outputs, shape=inputs)

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> WireWork:
        """Send each rank its tensor of one rank's list."""
        root = root_of(opts)
        guest, within = divmod(root, self._ranks)
        if self._me == root:
            for output, parts in zip(outputs, inputs, strict=True):
                self._require_each(parts, output)

        def work() -> None:
            for number, output in enumerate(outputs):
                count = output.numel()
                rows = output.new_empty(self._ranks * count)
                if self._guest.rank == within:
                    how = BroadcastOptions()
                    how.rootRank = guest
                    parts: list[list[torch.Tensor]] = []
                    if self._me == root:
                        whole = torch.cat([_row(part) for part in inputs[number]])
                        parts = [list(whole.view(self._guests, -1))]
                    self._column.scatter([rows], parts, how).wait()
                self._guest.broadcast(rows, within)
                mine = rows.view(self._ranks, count)[self._guest.rank]
                output.copy_(mine.view(output.shape))

        tensors = [*outputs, *(each for parts in inputs for each in parts)]
        return self._issue(f"scatter {root}", tensors, work, outputs, shape=outputs)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> WireWork:
        """Send rank j the tensor j, and receive its tensor for this rank."""
        for tensors in (outputs, inputs):
            require_count(len(tensors), self._world)
        require_size(inputs[self._me], outputs[self._me])
        own = self._guest.ranks

        def work() -> None:
            across = [rank for rank in range(self._world) if rank not in own]
            rows = {rank: _row(outputs[rank]) for rank in range(self._world)}
            moving = [self._direct.recv([rows[rank]], rank, 0) for rank in across]
            moving += [self._direct.send([_row(inputs[rank])], rank, 0) for rank in across]
            sent = [_row(inputs[rank]).view(torch.uint8) for rank in own]
            sizes = [len(rows[rank]) * rows[rank].element_size() for rank in own]
            room = torch.empty(sum(sizes), dtype=torch.uint8, device=sent[0].device)
            self._guest.exchange_uneven(room, torch.cat(sent), sizes, [len(each) for each in sent])
            for rank, got in zip(own, torch.split(room, sizes), strict=True):
                rows[rank].copy_(got.clone().view(rows[rank].dtype))
            for each in moving:
                each.wait()
            for rank, row in rows.items():
                _restore(outputs[rank], row)

        return self._issue("all_to_all", [*outputs, *inputs], work, outputs)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_sizes: Sequence[int],
        input_sizes: Sequence[int],
        opts: Any = None,
    ) -> WireWork:
        """As ``alltoall``, of one tensor's parts along its first dimension."""
        return self.alltoall(
            split(output, output_sizes, self._world), split(tensor, input_sizes, self._world), opts
        )

    def barrier(self, opts: Any = None) -> WireWork:
        """Wait until all ranks are here."""

        def work() -> None:
            self._guest.meet()
            self._column.barrier().wait()
            self._guest.meet()

        return self._issue("barrier", [], work, None)

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """As ``barrier``, waited for: a missing rank is named by the error anyway."""
        self.barrier().wait(timeout or timedelta(0))

    # --- Two ranks ----------------------------------------------------------------------------

    def send(self, tensors: Tensors, destination: int, tag: int) -> Any:
        """Send tensors to a rank."""
        if destination in self._guest.ranks:
            return self._messages.send(list(tensors), destination - self._guest.first, tag)
        return self._pairs.send(tensors, destination, tag)

    def recv(self, tensors: Tensors, source: int, tag: int) -> Any:
        """Receive tensors of a rank."""
        if source in self._guest.ranks:
            return self._messages.recv(list(tensors), source - self._guest.first, tag)
        return self._pairs.recv(tensors, source, tag)

    def recv_anysource(self, *words: Any) -> NoReturn:
        """Refused: a rank says of whom it receives."""
        self._pairs.recv_anysource(*words)

    # --- Shapes -------------------------------------------------------------------------------

    def _require_each(self, tensors: Tensors, own: torch.Tensor) -> None:
        require_count(len(tensors), self._world)
        for tensor in tensors:
            require_size(tensor, own)

    def _require_multiple(self, whole: torch.Tensor, part: torch.Tensor) -> None:
        if whole.numel() != part.numel() * self._world or whole.dtype != part.dtype:
            raise UsageError(
                "a tensor does not divide into the parts of all ranks",
                check="shape",
                got=whole.numel(),
                expected=part.numel() * self._world,
            )

    # Names before PyTorch 2.13.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


def _row(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in a row: the tensor's own memory where it is one."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)


def _restore(tensor: torch.Tensor, row: torch.Tensor) -> None:
    """Write a row back where it is a copy."""
    if row.data_ptr() != tensor.data_ptr() and row.numel():
        tensor.detach().copy_(row.view(tensor.shape))


def _reduction(tensor: torch.Tensor, opts: Any) -> str:
    """Name of the reduction. Raises ``UsageError`` as ``reduction_of``."""
    return reduction_of(getattr(opts, "reduceOp", dist.ReduceOp.SUM), tensor.dtype).name


def _operation(name: str) -> Any:
    """What a column does of a reduction: a mean is divided at its end, by all ranks."""
    return getattr(dist.ReduceOp, "SUM" if name == "AVG" else name)
