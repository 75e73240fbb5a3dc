"""A checkpoint in shards: any number of ranks has back what ranks made, and nothing else."""

from __future__ import annotations

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
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    from sealtrain.training.distributed.shardsaver import ShardSaver


def whole() -> dict[str, Any]:
    """A state of a whole model: uneven, tiny, half-wide and empty tensors."""
    return {
        "a": torch.arange(35, dtype=torch.float32).reshape(7, 5),
        "b": torch.arange(12, dtype=torch.bfloat16).reshape(3, 2, 2),
        "one": torch.arange(1, dtype=torch.float64),
        "none": torch.empty(0, 3),
    }


def shared(made: dict[str, Any], world: int) -> dict[str, Any]:
    """The same, as ranks share it out, beside what each has whole."""
    mesh = init_device_mesh("cpu", (world,))
    model = {name: distribute_tensor(tensor, mesh, [Shard(0)]) for name, tensor in made.items()}
    return {
        "model": model | {"tied": model["a"]},
        "optimizer": {
            "state": {"a": {"step": torch.tensor(3.0), "exp_avg": model["a"] * 2}},
            "param_groups": [{"lr": 0.5, "betas": (0.9, 0.99), "params": ["a"]}],
        },
    }


def make(folder: Path, world: int) -> CheckpointRef:
    """Seal a checkpoint in so many ranks."""
    store = checkpoint_store(folder)

    def work(rank: int) -> Any:
        saver = ShardSaver(store, RUN_ID)
        saver.save(CheckpointRef(counter=1, step=9) if rank == 0 else None, shared(whole(), world))
        index = saver.settle(wait=True, make_room=lambda: None)
        saver.close()
        assert index is not None
        return index.to_state()

    kept = in_ranks(world, work)[0]
    return checkpoint.save(store, RUN_ID, 1, 9, {"shards": kept})


def load(folder: Path, world: int, ref: CheckpointRef) -> list[dict[str, Any]]:
    """What so many ranks have of it, whole again."""
    store = checkpoint_store(folder)

    def work(_rank: int) -> dict[str, Any]:
        blank = {name: torch.full_like(tensor, 77) for name, tensor in whole().items()}
        state, saver = shared(blank, world), ShardSaver(store, RUN_ID)
        kept = checkpoint.load(store, RUN_ID, ref)["shards"]
        found = saver.load(ref, kept, state)
        saver.close()
        moments = found["optimizer"]["state"]["a"]
        return {
            "groups": found["optimizer"]["param_groups"],
            "step": moments["step"],
            "moment": moments["exp_avg"].full_tensor(),
            **{name: state["model"][name].full_tensor() for name in (*whole(), "tied")},
        }

    return in_ranks(world, work)


@pytest.mark.parametrize(("made_in", "loaded_in"), [(1, 1), (2, 2), (2, 1), (1, 2), (3, 2)])
def test_any_number_of_ranks_has_it_back(made_in: int, loaded_in: int, tmp_path: Path) -> None:
    ref = make(tmp_path, made_in)
    wanted = whole()
    for found in load(tmp_path, loaded_in, ref):
        assert found["groups"] == [{"lr": 0.5, "betas": (0.9, 0.99), "params": ["a"]}]
        assert found["step"] == 3.0
        assert torch.equal(found["moment"], wanted["a"] * 2)
        assert torch.equal(found["tied"], wanted["a"])
        for name, tensor in wanted.items():
            assert torch.equal(found[name], tensor), name
