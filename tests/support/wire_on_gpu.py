"""Ranks whose tensors are a GPU's, on one GPU: ``python wire_on_gpu.py collectives|trained``.

A process of its own: a rank that was forked after CUDA was asked for anything cannot use it.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from wire_world import all_gather_single, ranks, reduce_scatter_single

from sealtrain_nodes.wire.meeting import Wire


def on_device(device: str) -> dict[str, list[float]]:
    """Results of collectives that follow the work of a busy stream."""
    rank, world = dist.get_rank(), dist.get_world_size()
    own = torch.full((300_001,), float(rank + 1), device=device)
    for _ in range(64):
        own = own * 1.5 / 1.5  # queued, not done, when the operation is issued
    summed = own.clone()
    work = dist.all_reduce(summed, async_op=True)
    work.wait()
    half = torch.full((70_001,), rank + 0.5, dtype=torch.bfloat16, device=device)
    dist.all_reduce(half)
    whole = torch.empty(world * 5, device=device)
    all_gather_single(whole, own[:5].contiguous())
    part = torch.empty(3, device=device)
    reduce_scatter_single(part, torch.arange(3.0 * world, device=device))
    column = torch.arange(12.0, device=device).reshape(3, 4).t()[:, 1]
    dist.broadcast(column, world - 1)
    named = {"sum": summed[:3], "half": half[:3], "whole": whole, "part": part, "column": column}
    return {name: tensor.float().cpu().tolist() for name, tensor in named.items()}


def collectives(rank: int, wire: Wire) -> bool:
    """Whether a GPU's tensors come out as the CPU's."""
    torch.cuda.set_device(0)
    return on_device("cpu") == on_device("cuda")


def trained(rank: int, wire: Wire) -> list[bool]:
    """Whether DDP and FSDP learn, and each weight is rank 0's."""
    torch.cuda.set_device(0)
    found = []
    for sharded in (False, True):
        torch.manual_seed(1)
        model: Any = torch.nn.Sequential(torch.nn.Linear(64, 257), torch.nn.Linear(257, 64)).cuda()
        if sharded:
            fully_shard(model, mesh=init_device_mesh("cuda", (wire.world,)))
        else:
            model = DistributedDataParallel(model, device_ids=[0], bucket_cap_mb=0.02)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        made = torch.Generator().manual_seed(rank)
        losses = []
        for _ in range(6):
            rows = torch.randn(8, 64, generator=made).cuda()
            loss = (model(rows) - rows).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        found.append(losses[-1] < losses[0])
        for parameter in model.parameters():
            whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
            first = whole.detach().clone()
            dist.broadcast(first, 0)
            found.append(torch.equal(first, whole))
    return found


def main() -> None:
    """Print what every rank found, or the error that ended it."""
    found = ranks(2, {"collectives": collectives, "trained": trained}[sys.argv[1]])
    print(
        json.dumps([repr(value) if isinstance(value, BaseException) else value for value in found])
    )


if __name__ == "__main__":
    main()
