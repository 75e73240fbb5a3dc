"""Two nodes of two ranks share a model out and seal shards; other nodes of other ranks go on."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from collecting import COLLECTING
from training_world import RUN_ID, checkpoint_store
from variants import variants

from sealtrain.training.checkpoints import checkpoint
from sealtrain.training.checkpoints.checkpoint import CheckpointRef
from sealtrain_nodes.wire.meeting import Wire

if not COLLECTING:
    import torch
    from torch.distributed.checkpoint.state_dict import (
        get_model_state_dict,
        get_optimizer_state_dict,
    )
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from wire_world import World, ranks

    from sealtrain.training.checkpoints.shardsaver import ShardSaver
    from sealtrain.training.distributed.sharded import choose_mesh

pytestmark = [pytest.mark.claim("C762"), pytest.mark.long]

PARTS, STEPS, HALF = 12, 4, 2
"""Parts of a step, steps of the run, and those before it is interrupted."""
WIDTH, HIDDEN = 16, 33
Weights = dict[str, Any]


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    yield
    while World.made:
        World.made.pop().close()


def shared_out(nodes: int, world: int) -> tuple[Any, Any]:
    """Model and optimizer, as the recipe's hybrid sharding shares them out."""
    torch.manual_seed(1)
    model: Any = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, HIDDEN), torch.nn.GELU(), torch.nn.Linear(HIDDEN, WIDTH)
    )
    shape = choose_mesh("HYBRID_SHARD", guests=nodes, ranks=world)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def step_on(model: Any, optimizer: Any, step: int, rank: int, world: int) -> None:
    """One step of the same parts, whoever takes which."""
    for part in range(rank, PARTS, world):
        rows = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(100 * step + part))
        loss = (model(rows) - rows).square().mean() * world / PARTS
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def state_of(model: Any, optimizer: Any) -> dict[str, Any]:
    return {
        "model": get_model_state_dict(model),
        "optimizer": get_optimizer_state_dict(model, optimizer),
    }


def begin(
    rank: int, _wire: Wire, *, folder: Path, nodes: int, world: int, steps: int
) -> tuple[Weights, Any]:
    """Train from the start, then seal shards; the weights, and the index of what was sealed."""
    model, optimizer = shared_out(nodes, world)
    for step in range(steps):
        step_on(model, optimizer, step, rank, world)
    saver = ShardSaver(checkpoint_store(folder), RUN_ID)
    wanted = CheckpointRef(counter=1, step=steps, previous="")
    saver.save(wanted if rank == 0 else None, state_of(model, optimizer))
    index = saver.settle(wait=True, make_room=lambda: None)
    saver.close()
    assert index is not None
    return whole(model), index.to_state()


def go_on(
    rank: int, _wire: Wire, *, folder: Path, nodes: int, world: int, ref: CheckpointRef
) -> Weights:
    """Begin from the shards, and train to the end of the run."""
    model, optimizer = shared_out(nodes, world)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    step_on(model, optimizer, 0, rank, world)  # so that there are moments to read into
    state, store = state_of(model, optimizer), checkpoint_store(folder)
    saver = ShardSaver(store, RUN_ID)
    found = saver.load(ref, checkpoint.load(store, RUN_ID, ref)["shards"], state)
    saver.close()
    for name, tensor in model.state_dict().items():
        tensor.copy_(state["model"][name])
    moments = found["optimizer"]["state"]
    for name, parameter in model.named_parameters():
        optimizer.state[parameter] = dict(moments[name])
    for group in optimizer.param_groups:
        group["lr"] = 1e-2
    for step in range(ref.step, STEPS):
        step_on(model, optimizer, step, rank, world)
    return whole(model)


def whole(model: Any) -> Weights:
    return {name: tensor.full_tensor().clone() for name, tensor in model.state_dict().items()}


def sealed_by_four(folder: Path) -> tuple[CheckpointRef, Weights]:
    """Shards of two nodes of two ranks in the middle, and the weights of those never stopped."""
    how: dict[str, Any] = {"nodes": 2, "world": 4}
    for name in ("whole", "half"):
        (folder / name).mkdir()
    uninterrupted = ranks(4, partial(begin, folder=folder / "whole", steps=STEPS, **how), each=2)
    half = ranks(4, partial(begin, folder=folder / "half", steps=HALF, **how), each=2)
    assert all(isinstance(found, tuple) for found in (*uninterrupted, *half)), half
    store = checkpoint_store(folder / "half")
    ref = checkpoint.save(store, RUN_ID, 1, HALF, {"shards": half[0][1]}, previous="")
    return ref, uninterrupted[0][0]


@pytest.mark.parametrize(("nodes", "each"), variants([(3, 1), (2, 2)], each_time=[(3, 1)]))
def test_other_nodes_of_other_ranks_go_on_from_sealed_shards(
    tmp_path: Path, nodes: int, each: int
) -> None:
    """The same numbers to the last bit; others but for rounding: a step is added up otherwise."""
    ref, expected = sealed_by_four(tmp_path)
    given: dict[str, Any] = {"folder": tmp_path / "half", "ref": ref, "nodes": nodes}
    world = nodes * each
    found = ranks(world, partial(go_on, world=world, **given), each=each)
    assert all(isinstance(weights, dict) for weights in found), found
    for weights in found:
        assert weights.keys() == expected.keys()
        for name, tensor in expected.items():
            if (nodes, each) == (2, 2):
                assert torch.equal(weights[name], tensor), name
            else:
                torch.testing.assert_close(weights[name], tensor, rtol=1e-3, atol=1e-5)
