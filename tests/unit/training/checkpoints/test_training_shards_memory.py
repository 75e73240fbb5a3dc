"""What a rank takes beside its training for a checkpoint, counted: its shard and a fixed part.

The fixed part is the buffers of the threads that seal and open, whatever the shard.
"""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from collecting import COLLECTING
from rank_threads import in_ranks
from training_world import RUN_ID, checkpoint_store

from sealtrain.training.checkpoints import checkpoint
from sealtrain.training.checkpoints.checkpoint import CheckpointRef

if not COLLECTING:
    import torch
    import torch.distributed.checkpoint.state_dict  # what an import takes is not a checkpoint's
    from tensor_bytes import TensorBytes
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    import sealtrain.training.checkpoints.shardplan  # noqa: F401  # as above
    from sealtrain.training.checkpoints.shardsaver import ShardSaver

SMALL, LARGE = 4 << 20, 20 << 20
FIXED = 24 << 20
ROWS, TENSORS = 512, 16


def shared(world: int, size: int, value: float) -> dict[str, Any]:
    """A state of which each of two ranks holds so many bytes."""
    mesh = init_device_mesh("cpu", (world,))
    columns = 2 * size // TENSORS // 4 // ROWS
    return {
        f"layer{number}": distribute_tensor(
            torch.full((ROWS, columns), value + number), mesh, [Shard(0)]
        )
        for number in range(TENSORS)
    }


class PythonBytes:
    """As a context: what Python's own objects of the whole process take at the most."""

    def __enter__(self) -> None:
        tracemalloc.start()

    def __exit__(self, *_: object) -> None:
        self.most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()


def save(folder: Path, world: int, size: int) -> tuple[CheckpointRef, list[int]]:
    """A checkpoint, and the most bytes of tensors that each rank made for it."""
    store = checkpoint_store(folder)

    def work(rank: int) -> tuple[Any, int]:
        state, saver = shared(world, size, 1.0), ShardSaver(store, RUN_ID)
        with TensorBytes() as counted:
            wanted = CheckpointRef(counter=1, step=1) if rank == 0 else None
            saver.save(wanted, state)
            index = saver.settle(wait=True, make_room=lambda: None)
        saver.close()
        assert index is not None
        return index.to_state(), counted.most

    done = in_ranks(world, work)
    ref = checkpoint.save(store, RUN_ID, 1, 1, {"shards": done[0][0]})
    return ref, [most for _, most in done]


def load(folder: Path, world: int, size: int, ref: CheckpointRef) -> list[int]:
    store = checkpoint_store(folder)

    def work(_rank: int) -> int:
        state, saver = shared(world, size, 0.0), ShardSaver(store, RUN_ID)
        kept = checkpoint.load(store, RUN_ID, ref)["shards"]
        with TensorBytes() as counted:
            saver.load(ref, kept, state)
        saver.close()
        for number in range(TENSORS):
            assert (state[f"layer{number}"].to_local() == 1.0 + number).all()
        return counted.most

    return in_ranks(world, work)


@pytest.mark.claim("C734")
def test_a_rank_seals_and_reads_within_a_tenth_of_its_shard(tmp_path: Path) -> None:
    """Objects of all ranks and threads together count against each rank."""
    python, most = PythonBytes(), {}
    for size in (SMALL, LARGE):
        with python:
            ref, made = save(tmp_path / str(size), 2, size)
        assert all(size <= taken <= 1.01 * size for taken in made)
        most[size] = max(made) + python.most
        for world in (1, 3):
            with python:
                read = load(tmp_path / str(size), world, size, ref)
            # Nothing that grows with the shard: pieces are read to where they belong.
            assert max(read) <= 1 << 20
            assert python.most <= FIXED
    assert most[LARGE] - most[SMALL] <= 1.1 * (LARGE - SMALL)
    assert most[LARGE] <= LARGE + FIXED
