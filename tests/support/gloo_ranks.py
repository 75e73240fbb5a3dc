"""Ranks as forked processes that meet over loopback by gloo: one guest's, without its borders."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from sealtrain.base.processes import answer_of, pack, pack_error

SECONDS = 60.0


def in_gloo_ranks(world: int, work: Callable[[int], Any]) -> list[Any]:
    """What ``work`` returned or raised in each rank, by rank; ``None`` for one that was killed."""
    memory = os.memfd_create("ranks")
    pipes = []
    for rank in range(world):
        back, there = os.pipe()
        process = os.fork()
        if process == 0:
            os.close(back)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # not a handler of the test runner
            signal.alarm(120)  # a rank that hangs ends
            _live(there, memory, rank, world, work)
        os.close(there)
        pipes.append((process, back))
    os.close(memory)
    results = []
    for process, back in pipes:
        with os.fdopen(back, "rb") as told:
            data = told.read()
        os.waitpid(process, 0)
        results.append(_answer(data))
    return results


def _answer(data: bytes) -> Any:
    if not data:
        return None
    try:
        return answer_of(data)
    except BaseException as error:
        return error


def _live(there: int, memory: int, rank: int, world: int, work: Callable[[int], Any]) -> None:
    status = 0
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    try:
        store: Any = vars(dist)["FileStore"](f"/proc/self/fd/{memory}", world)
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=SECONDS)
        )
        data = pack(work(rank))
        dist.destroy_process_group()
    except BaseException as error:
        data = pack_error(error)
    try:
        with os.fdopen(there, "wb") as told:
            told.write(data)
    except BaseException:
        status = 1
    os._exit(status)
