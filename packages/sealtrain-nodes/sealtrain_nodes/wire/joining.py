"""A wire as PyTorch's default process group, under the name of a backend of its own.

    join(wire, timeout_s=1800, guest=groups)   # dist.init_process_group, without a network
    ...                                        # DDP, FSDP2, DeepSpeed, checkpoints
    leave()

Which connections a group has follows from its ranks:

| ranks | connections |
|---|---|
| all ranks of all guests | each guest's own transport, and the wire across (``tiers``) |
| all ranks of one guest | the guest's own transport, connected before the sandbox closed |
| of different guests, no two of the same | the wire |
| a rank alone | none |

Any other group would have to connect now, which the sandbox forbids: it is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from sealtrain.errors import UsageError
from sealtrain_nodes.wire.adoption import adopt_group
from sealtrain_nodes.wire.group import BACKEND, WireGroup
from sealtrain_nodes.wire.guest_groups import GuestGroups
from sealtrain_nodes.wire.meeting import Wire
from sealtrain_nodes.wire.staging import STAGED
from sealtrain_nodes.wire.tiers import IssueLane, TieredGroup


class _JoinedWire:
    """The wire of this process."""

    wire: Wire | None = None
    guest: GuestGroups | None = None
    lane: IssueLane | None = None
    staged: Collection[str] = STAGED
    undo: Callable[[], None] | None = None


def offer(
    wire: Wire, *, guest: GuestGroups | None = None, staged: Collection[str] = STAGED
) -> None:
    """Let groups be made over the wire: ``dist.new_group(backend=BACKEND)``.

    Args:
        wire: Connections to all ranks of other guests.
        guest: Those to the other ranks of this guest; ``None`` where it has one rank.
        staged: Types of devices whose tensors go through memory of their own (``staging``).

    Raises:
        UsageError: This process has a wire already.
    """
    if _JoinedWire.wire is not None:
        raise UsageError("this process has joined a group already", check="wire")
    if BACKEND not in dist.Backend.backend_list:
        dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu", "cuda"])
    _JoinedWire.wire, _JoinedWire.guest, _JoinedWire.staged = wire, guest, staged
    _JoinedWire.lane = None if guest is None else IssueLane(wire.engine)


def join(
    wire: Wire,
    *,
    timeout_s: float,
    guest: GuestGroups | None = None,
    staged: Collection[str] = STAGED,
) -> None:
    """Make the wire PyTorch's default process group, also for programs that make one themselves.

    Args:
        wire: As ``offer``.
        timeout_s: Seconds for each operation of the group.
        guest: As ``offer``.
        staged: As ``offer``.

    Raises:
        UsageError: This process has a wire already.
    """
    offer(wire, guest=guest, staged=staged)
    dist.init_process_group(
        BACKEND,
        store=HashStore(),
        rank=wire.rank,
        world_size=wire.world,
        timeout=timedelta(seconds=timeout_s),
    )
    _JoinedWire.undo = adopt_group(rank=wire.rank, world=wire.world, backend=BACKEND)


def leave() -> None:
    """Dissolve the group and end the wire, so that the peers know that it was meant."""
    wire, _JoinedWire.wire = _JoinedWire.wire, None
    undo, _JoinedWire.undo = _JoinedWire.undo, None
    lane, _JoinedWire.lane, _JoinedWire.guest = _JoinedWire.lane, None, None
    if undo is not None:
        undo()
    if dist.is_initialized() and dist.get_backend() == BACKEND:
        dist.destroy_process_group()
    if lane is not None:
        lane.close()
    if wire is not None:
        wire.close()


def _create(options: Any, _backend_options: object) -> Any:
    wire, guest, lane = _JoinedWire.wire, _JoinedWire.guest, _JoinedWire.lane
    if wire is None:
        raise UsageError(
            "a group of this backend needs a wire", check="wire", hint="join a wire first"
        )
    every = tuple(range(wire.world))
    ranks = tuple(options.global_ranks_in_group) or every
    me, name, timeout = options.group_rank, options.group_id, options.timeout
    if guest is None or lane is None or len(ranks) == 1:
        return WireGroup(lane or wire.engine, ranks, me, name, timeout, staged=_JoinedWire.staged)
    if ranks == every:
        return TieredGroup(
            wire.engine,
            lane,
            guest,
            world=wire.world,
            name=name,
            timeout=timeout,
            staged=_JoinedWire.staged,
        )
    if ranks == guest.ranks:
        return guest.group()
    if len({rank // guest.size for rank in ranks}) == len(ranks):
        return WireGroup(lane, ranks, me, name, timeout, staged=_JoinedWire.staged)
    raise UsageError(
        "ranks of this guest have no connections for a group of their own",
        check="group",
        got=", ".join(f"rank {rank}" for rank in ranks),
        expected="all ranks, all ranks of one guest, or one rank of each of several guests",
        hint="groups within a guest are made before the sandbox closes",
    )
