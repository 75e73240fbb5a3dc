"""Programs written for torchrun, in ranks that are connected already.

    undo = adopted(rank=0, world=2, backend="sealtrain")

Such a program reads RANK, LOCAL_RANK and WORLD_SIZE and makes its process group itself. In a rank
of several nodes the group exists: its connections were proven before the sandbox closed, and no
other could be made now. So while the ranks are joined:

1. ``init_process_group`` gives the existing group, once; after ``destroy_process_group`` it makes a
   new one over the same connections. Address, store and method of a meeting are not looked at: the
   ranks have met.
2. ``new_group`` makes its group over the same connections.
3. Backends that name a kind of transport (gloo, nccl) mean these connections. One that would bring
   a transport of its own (mpi, ucc, any other) is refused, and so are a rank or a number of ranks
   that are not those of this process.

``torchrun`` and torch elastic start programs and open ports, which a run forbids; starting again
after a loss is the run's own affair (spec/nodes.md §4).
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, Final

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from sealtrain.errors import UsageError

_TRANSPORTS: Final = frozenset({"gloo", "nccl"})
_NAMES: Final = ("init_process_group", "new_group")


def adopt_group(*, rank: int, world: int, backend: str) -> Callable[[], None]:
    """Let programs of this process find the group that exists.

    Args:
        rank: Of this process.
        world: Number of ranks.
        backend: Name of the backend of all groups from now on.

    Returns:
        Undoes it.
    """
    begin, make = dist.init_process_group, dist.new_group
    of_begin, of_make = inspect.signature(begin), inspect.signature(make)
    found = False

    @functools.wraps(begin)
    def init_process_group(*words: Any, **named: Any) -> None:
        nonlocal found
        asked = of_begin.bind(*words, **named).arguments
        _require_transport(asked.get("backend"), backend)
        for what, own in (("rank", rank), ("world_size", world)):
            if asked.get(what, -1) not in (-1, own):
                raise UsageError(
                    "a program takes this process for another rank than it is",
                    check=what,
                    got=asked[what],
                    expected=own,
                )
        first, found = not found, True
        if first and dist.is_initialized():
            return
        # Where a group exists, this is PyTorch's own refusal of a second one.
        timeout = asked.get("timeout")
        begin(backend, store=HashStore(), rank=rank, world_size=world, timeout=timeout)

    @functools.wraps(make)
    def new_group(*words: Any, **named: Any) -> Any:
        asked = of_make.bind(*words, **named).arguments
        _require_transport(asked.get("backend"), backend)
        asked.pop("device_id", None)  # NCCL would connect it now
        return make(**asked | {"backend": backend})

    replaced = dict(zip(_NAMES, ((begin, init_process_group), (make, new_group)), strict=True))
    _replace(replaced)

    def undo() -> None:
        _replace({name: (new, old) for name, (old, new) in replaced.items()})

    return undo


def _require_transport(named: Any, own: str) -> None:
    for pair in str(named or own).lower().split(","):
        name = pair.rpartition(":")[2]
        if name not in _TRANSPORTS | {own}:
            raise UsageError(
                "ranks of several nodes have no other connections than their own",
                check="backend",
                got=name,
                expected=", ".join(sorted(_TRANSPORTS)),
            )


def _replace(functions: dict[str, tuple[Any, Any]]) -> None:
    """Put functions into the place of others in every module that holds them."""
    for module in list(sys.modules.values()):
        known: Any = getattr(module, "__dict__", None)
        for name, (old, new) in functions.items() if isinstance(known, dict) else ():
            if known.get(name) is old:
                known[name] = new
