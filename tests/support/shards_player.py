"""One rank of several guests, only the first of which has a store: for a test that starts each.

All seal a checkpoint in shards, and compare what they have back.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def state_of(world: int, *, blank: bool) -> dict[str, Any]:
    """Tensors that all ranks share out."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (world,))
    whole = torch.arange(70, dtype=torch.float32).reshape(14, 5)
    made = {"a": whole, "b": whole.bfloat16()[:3]}
    return {
        name: distribute_tensor(tensor * 0 if blank else tensor, mesh, [Shard(0)])
        for name, tensor in made.items()
    }


class NoStore:
    """Of a guest other than the first: it has what it was sent, and seals nothing."""

    def __init__(self, sent: Any) -> None:
        self.read = sent.read

    def shard_memory(self, size: int) -> None:
        """None, as any store without a keeper."""


def live(rank: int, world: int, here: int, folder: str) -> None:
    """One rank's whole life; a guest has ``here`` ranks."""
    import torch
    import torch.distributed as dist
    from training_world import RUN_ID, checkpoint_store

    from sealtrain.training.checkpoints import checkpoint
    from sealtrain.training.checkpoints.checkpoint import CheckpointRef
    from sealtrain.training.checkpoints.shardsaver import ShardSaver

    os.environ["LOCAL_WORLD_SIZE"] = str(here)
    torch.set_num_threads(1)
    meeting = f"file://{folder}.meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world)
    store = checkpoint_store(Path(folder))
    saver = ShardSaver(store if rank < here else NoStore(store), RUN_ID)  # type: ignore[arg-type]
    wanted = state_of(world, blank=False)
    saver.save(CheckpointRef(counter=1, step=1) if rank == 0 else None, wanted)
    index = saver.settle(wait=True, make_room=lambda: None)
    assert index is not None
    if rank == 0:
        checkpoint.save(store, RUN_ID, 1, 1, {"shards": index.to_state()})
    dist.barrier()
    ref = checkpoint.newest(store, None)
    assert ref is not None
    state = state_of(world, blank=True)
    saver.load(ref, checkpoint.load(store, RUN_ID, ref)["shards"], state)
    for name, tensor in wanted.items():
        assert torch.equal(state[name].to_local(), tensor.to_local())
    saver.close()
    dist.destroy_process_group()
