"""Ranks as threads of one process: what ranks say to each other, without processes and libraries.

PyTorch's own tests have such a group. It gathers, broadcasts and reduces; it sends nothing from one
rank to another. Its module has no other door than the names that PyTorch's tests use.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any


def in_ranks(world: int, work: Callable[[int], Any]) -> list[Any]:
    """What each rank returns, by rank. Raises what the first of them raised."""
    import torch.distributed as dist

    threads_group = vars(import_module("torch.testing._internal.distributed.multi_threaded_pg"))
    isolate = vars(import_module("torch._C._distributed_c10d"))["_set_thread_isolation_mode"]
    group = threads_group["ProcessLocalGroup"]
    results: list[Any] = [None] * world
    errors: list[BaseException] = []
    isolate(True)
    threads_group["_install_threaded_pg"]()
    store = dist.HashStore()

    def live(rank: int) -> None:
        try:
            dist.init_process_group(backend="threaded", rank=rank, world_size=world, store=store)
            results[rank] = work(rank)
        except BaseException as error:
            errors.append(error)
            group.exception_handle(error)
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
        group.reset()
        threads_group["_uninstall_threaded_pg"]()
        isolate(False)
    if errors:
        raise errors[0]
    return results
