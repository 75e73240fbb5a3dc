"""Groups among the ranks of one guest, by the engine's own transport: gloo, and NCCL on GPUs.

Both are made, and used once, before the sandbox closes; no rank can listen or connect afterwards.
What they carry stays in the guest: gloo meets over loopback, NCCL over the devices of one machine.

- one carries what ranks do together with other guests (``wire.tiers``), in one thread;
- ``group`` is the one that an engine gets for the ranks of its guest, as FSDP's shards.

Two, because each transport matches operations by the order in which a rank issues them, and the two
are issued by different threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    AllToAllOptions,
    BroadcastOptions,
    HashStore,
    ReduceScatterOptions,
    Work,
)

from sealtrain_nodes.wire.group import NamedGroup
from sealtrain_nodes.wire.tensors import in_order, reduction_of

MEETING_SECONDS: Final = 120.0
_TAG: Final = 1 << 20
"""Of our messages: those of programs have tags of their own."""
_CPU: Final = torch.device("cpu")


Transports = dict[torch.device, tuple[Any, Any]]
"""Kind of a transport, and its connections, by device."""


class GuestGroups:
    """The ranks of this guest, connected to each other.

    Args:
        rank: This one's number within the guest.
        size: Number of the guest's ranks, at least 2.
        first: Number of the guest's first rank among all ranks.
        memory: Anonymous file that all of them inherited, in which they find each other.
        timeout_s: Seconds for each operation.
        device: The rank's accelerator; ``None`` where tensors are the CPU's.

    Raises:
        RuntimeError: The other ranks did not come.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        *,
        first: int,
        memory: int,
        timeout_s: float,
        device: torch.device | None = None,
    ) -> None:
        self.rank, self.size, self.first = rank, size, first
        store: Any = dist.FileStore(  # type: ignore[attr-defined]  # exported all the same
            f"/proc/self/fd/{memory}", size
        )
        store.set_timeout(timedelta(seconds=MEETING_SECONDS))
        timeout = timedelta(seconds=timeout_s)
        made = [
            _transports(f"guest {name}", store, rank, size, timeout, device)
            for name in ("inner", "group")
        ]
        self._inner, self._transports = GuestGroup(rank, size, made[0]), made[1]
        for group in (self._inner, self.group()):
            for used in made[0]:
                group.allreduce([torch.ones(size, device=used)], AllreduceOptions()).wait()

    @property
    def ranks(self) -> tuple[int, ...]:
        """Numbers of this guest's ranks among all ranks."""
        return tuple(range(self.first, self.first + self.size))

    def group(self) -> GuestGroup:
        """PyTorch's group of all ranks of this guest, over the same connections each time."""
        return GuestGroup(self.rank, self.size, self._transports)

    # --- Bytes, for collectives of several guests ---------------------------------------------

    def exchange(self, out: torch.Tensor, given: torch.Tensor) -> None:
        """Send rank j row j of ``given`` and fill row j of ``out`` with what it sends."""
        self.exchange_uneven(out, given, [], [])

    def exchange_uneven(
        self, out: torch.Tensor, given: torch.Tensor, back: Sequence[int], sent: Sequence[int]
    ) -> None:
        """As ``exchange``, of one row of bytes each, cut into parts of these sizes by rank."""
        self._inner.alltoall_base(
            _bytes(out), _bytes(given), list(back), list(sent), AllToAllOptions()
        ).wait()

    def gather_all(self, out: torch.Tensor, own: torch.Tensor) -> None:
        """Fill row j of ``out`` with ``own`` of rank j."""
        if own.numel():
            self._inner.all_gather_single(_bytes(out), _bytes(own)).wait()

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        """Fill the tensor with that of a rank of this guest."""
        if tensor.numel():
            how = BroadcastOptions()
            how.rootRank = root
            self._inner.broadcast([_bytes(tensor)], how).wait()

    def meet(self) -> None:
        """Wait until every rank of this guest is here."""
        self.gather_all(torch.empty(self.size), torch.zeros(1))


_DELEGATED: Final = (
    *("allgather", "allgather_coalesced", "allgather_into_tensor_coalesced"),
    *("all_gather_single_coalesced", "allreduce", "allreduce_coalesced", "alltoall"),
    *("alltoall_base", "all_to_all_single", "barrier", "broadcast", "gather"),
    *("monitored_barrier", "recv", "recv_anysource", "reduce", "reduce_scatter"),
    *("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced", "scatter", "send"),
)
"""Methods that are the transports' own."""


class GuestGroup(NamedGroup):
    """All ranks of a guest, by the transport of each device.

    Gloo gathers and reduces through copies of the whole. So what a shard needs, all-gather and
    reduce-scatter, are messages here, into their place and in the order of ranks; everything else
    is the transport's own.

    Args:
        rank: This one's number within the guest.
        size: Number of the guest's ranks.
        transports: By device.
    """

    def __init__(self, rank: int, size: int, transports: Transports) -> None:
        super().__init__(rank, size)
        self._gloo = transports[_CPU][1]
        self._native: Any = dist.ProcessGroup(HashStore(), rank, size)
        for device, (kind, backend) in transports.items():
            self._native._register_backend(device, kind, backend)

    def all_gather_single(
        self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None
    ) -> Any:
        """Gather every rank's tensor in one tensor."""
        if tensor.device != _CPU:
            return self._native._allgather_base(output, tensor, opts or AllgatherOptions())
        if not (output.is_contiguous() and tensor.is_contiguous()):
            return self._native._allgather_base(output, tensor, opts or AllgatherOptions())
        rows, own = output.view(-1).view(self.size(), -1), tensor.view(-1)
        works = self._receive(list(rows))
        works += [self._send(own, other) for other in self._others()]
        if rows[self.rank()].data_ptr() != own.data_ptr():
            rows[self.rank()].copy_(own)
        return MessagesWork(works, output)

    def reduce_scatter_single(
        self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None
    ) -> Any:
        """Reduce over all ranks; each rank gets its part."""
        name = reduction_of(getattr(opts, "reduceOp", dist.ReduceOp.SUM), tensor.dtype).name
        if tensor.device != _CPU:
            return self._native._reduce_scatter_base(output, tensor, opts or ReduceScatterOptions())
        rows = tensor.reshape(self.size(), -1)
        room = torch.empty_like(rows)
        works = self._receive(list(room))
        works += [self._send(rows[other], other) for other in self._others()]
        room[self.rank()].copy_(rows[self.rank()])

        def reduce() -> None:
            found = in_order(list(room), name)
            if name == "AVG":
                found /= self.size()
            output.copy_(found.view(output.shape))

        return MessagesWork(works, output, reduce, keeps=rows)

    def _others(self) -> Iterator[int]:
        """The other ranks, the next one first."""
        for step in range(1, self.size()):
            yield (self.rank() + step) % self.size()

    def _receive(self, rows: list[torch.Tensor]) -> list[Any]:
        others = [(self.rank() - step) % self.size() for step in range(1, self.size())]
        return [self._gloo.recv([_bytes(rows[other])], other, _TAG) for other in others]

    def _send(self, row: torch.Tensor, to: int) -> Any:
        return self._gloo.send([_bytes(row)], to, _TAG)

    # Names before PyTorch 2.13.
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single


def _delegate(name: str) -> Callable[..., Any]:
    def call(group: GuestGroup, *words: Any, **named: Any) -> Any:
        return getattr(group._native, name)(*words, **named)

    call.__name__ = name
    return call


# A method that a subclass leaves out is called with the interpreter's lock held, and gloo's own
# threads need the lock while they hold one of gloo's: both would wait for ever.
for _name in _DELEGATED:
    setattr(GuestGroup, _name, _delegate(_name))


class MessagesWork(Work):
    """Messages that were issued.

    Args:
        works: Of the transport.
        result: What they fill.
        finish: Called once, when all have ended.
        keeps: What must live until then.
    """

    def __init__(
        self,
        works: Sequence[Any],
        result: torch.Tensor,
        finish: Callable[[], None] | None = None,
        *,
        keeps: object = None,
    ) -> None:
        super().__init__()
        self._works, self._result = works, result
        self._finish, self._keeps = finish, keeps

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait until all have ended. Raises ``RuntimeError`` as the transport."""
        for work in self._works:
            work.wait(timeout) if timeout else work.wait()
        self._works = ()
        if self._finish is not None:
            self._finish()
        self._finish = self._keeps = None
        return True

    def is_completed(self) -> bool:
        """Whether nothing is under way."""
        return all(work.is_completed() for work in self._works)

    def result(self) -> list[torch.Tensor]:
        """The tensor that they filled."""
        self.wait()
        return [self._result]


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as bytes: a transport that only moves them knows every type."""
    return tensor.detach().reshape(-1).view(torch.uint8)


def _transports(
    name: str, store: Any, rank: int, size: int, timeout: timedelta, device: torch.device | None
) -> Transports:
    """What one group has for each device: its kind, and its connections."""
    from torch._C._distributed_c10d import PrefixStore

    kinds = dist.ProcessGroup.BackendType
    gloo = dist.ProcessGroupGloo(PrefixStore(name, store), rank, size, timeout)
    found: Transports = {_CPU: (kinds.GLOO, gloo)}
    if device is not None:
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        nccl = dist.ProcessGroupNCCL(PrefixStore(f"{name} nccl", store), rank, size, options)
        nccl.eager_connect_single_device(device)
        found[device] = (kinds.NCCL, nccl)
    return found


def is_of_transport(error: BaseException) -> bool:
    """Whether an error is the end of a connection within the guest: another rank has ended.

    Gloo has no class of its own for it; NCCL's errors have.
    """
    if isinstance(error, dist.DistError):
        return True
    return type(error) is RuntimeError and "gloo" in str(error)
