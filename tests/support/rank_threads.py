"""Ranks as threads of one process: what ranks say to each other, without processes and libraries.

PyTorch's own tests have such a group. It gathers, broadcasts and reduces; it sends nothing from one
rank to another.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def in_ranks(world: int, work: Callable[[int], Any]) -> list[Any]:
    """What each rank returns, by rank. Raises what the first of them raised."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.multi_threaded_pg import (
        ProcessLocalGroup,
        _install_threaded_pg,
        _uninstall_threaded_pg,
    )

    results: list[Any] = [None] * world
    errors: list[BaseException] = []
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    _install_threaded_pg()
    store = dist.HashStore()

    def live(rank: int) -> None:
        try:
            dist.init_process_group(backend="threaded", rank=rank, world_size=world, store=store)
            results[rank] = work(rank)
        except BaseException as error:
            errors.append(error)
            ProcessLocalGroup.exception_handle(error)
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()

    threads = [threading.Thread(target=live, args=(rank,)) for rank in range(world)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        ProcessLocalGroup.reset()
        _uninstall_threaded_pg()
        torch._C._distributed_c10d._set_thread_isolation_mode(False)
    if errors:
        raise errors[0]
    return results
