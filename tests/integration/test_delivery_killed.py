"""A run is killed while its model is delivered: nothing of it is a model, and the run goes on."""

from __future__ import annotations

import copy
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from collecting import COLLECTING
from polling import wait_until
from run_processes import keeper_of, of_life
from stage import OWNERS, RECIPE, Stage, stage

from sealtrain.cli.programs import SideProgram
from sealtrain.errors import SealtrainError

if not COLLECTING:
    import torch
    from nodes_world import Nodes, recipe_of, weights

pytestmark = [
    pytest.mark.long,
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.timeout(900),
    pytest.mark.claim("C774"),
]

LARGE = RECIPE["model"]["config"] | {
    "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 4, "num_attention_heads": 4,
}  # fmt: skip
MODEL_BYTES = 50_000_000
"""At least: many blocks, of which each rank has some."""


def large_recipe(nodes: int, *, ranks: int) -> dict[str, Any]:
    shared_out: dict[str, Any] = {
        "model": RECIPE["model"] | {"config": LARGE},
        "backend": {"name": "fsdp", "sharding_strategy": "FULL_SHARD"},
    }
    recipe = recipe_of(nodes, ranks=ranks, steps=2, **copy.deepcopy(shared_out))
    recipe["trainer"] |= {"per_device_train_batch_size": 1, "save_steps": 1, "max_length": 32}
    return recipe


def stop_in_delivery(part: SideProgram, out: Path, rank: int) -> int:
    """Stop a process once its run's model is on its way; returns how much of it is there.

    Args:
        part: The command whose keeper takes the model.
        out: Of that command.
        rank: The process to stop.
    """
    keeper = keeper_of(of_life(part.pid)[0])
    until = time.monotonic() + 500
    while not (there := waiting_bytes(keeper, out)):
        assert not part.gone, "\n".join(part.read_stderr())
        assert time.monotonic() < until
        time.sleep(0.001)
    os.kill(rank, signal.SIGSTOP)
    while (now := waiting_bytes(keeper, out)) != there:  # what was under way comes
        there = now
        time.sleep(1)
    return there


def waiting_bytes(keeper: int, out: Path) -> int:
    """How much of files without a name a process has in a folder."""
    total = 0
    for place in Path(f"/proc/{keeper}/fd").iterdir():
        try:
            target = str(place.readlink())
            if target.startswith(f"{out}/") and target.endswith(" (deleted)"):
                total += place.stat().st_size
        except OSError:  # closed meanwhile
            continue
    return total


def require_no_model(world: Stage, out: Path, rows: list[bytes]) -> None:
    """Nothing of a model is there to open or to read."""
    assert not (out / "manifest.json").exists()
    assert not list(out.rglob("*.safetensors*"))
    refused = world.try_run(
        "open", out, "--identity", world.identity(OWNERS[0]), "--out", out.parent / "taken"
    )
    assert refused.code != 0
    assert not (out.parent / "taken").exists()
    for path in out.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert not any(row in content for row in rows), path


def rows_of(model: dict[str, Any]) -> list[bytes]:
    """A piece of each matrix, as a reader of the disk would look for it."""
    return [each.numpy().tobytes()[:64] for each in model.values() if each.dim() > 1]


def test_a_rank_that_is_killed_in_a_delivery_leaves_no_model_and_the_run_is_resumed(
    tmp_path: Path,
) -> None:
    with stage(tmp_path) as world:
        world.anew = True  # ranks are forked before anything is loaded
        alone = Nodes(world, "alone", large_recipe(1, ranks=2))
        with world.part(*world.train_words(alone.folder, "whole")) as part:
            part.wait_for_end(within=400)
        whole = weights(alone.opened("whole"))
        assert sum(4 * each.numel() for each in whole.values()) > MODEL_BYTES
        out = tmp_path / "run"
        with world.part(*world.train_words(alone.folder, "run")) as part:
            wait_until(lambda: len(of_life(part.pid)) == 2 or part.gone, seconds=300)
            _, second = of_life(part.pid)
            there = stop_in_delivery(part, out, second)
            assert 0 < there < MODEL_BYTES
            os.kill(second, signal.SIGKILL)
            with pytest.raises(SealtrainError) as caught:
                part.wait_for_end(within=200)
        assert caught.value.code == "rank-lost"
        require_no_model(world, out, rows_of(whole))
        with world.part("resume", out) as part:
            part.wait_for_end(within=400)
        resumed = weights(alone.opened("run"))
        assert resumed.keys() == whole.keys()
        assert all(torch.equal(resumed[name], whole[name]) for name in whole)


def test_a_node_that_is_killed_in_a_delivery_is_replaced_and_the_model_is_whole(
    tmp_path: Path,
) -> None:
    with stage(tmp_path) as world:
        world.anew = True  # as an operator starts them: each workload is below its command
        both = Nodes(world, "both", large_recipe(2, ranks=1))
        with both.lead("whole") as (lead, place), both.join(1, place, out="w1") as other:
            lead.wait_for_end(within=400)
            other.wait_for_end(within=60)
        whole = weights(both.opened("whole"))
        out = tmp_path / "run"
        with both.lead("run", wait_seconds=300) as (lead, place):
            with both.join(1, place, out="n1") as other:
                wait_until(lambda: of_life(other.pid) or other.gone, seconds=300)
                wait_until(lambda: of_life(lead.pid) or lead.gone, seconds=300)
                there = stop_in_delivery(lead, out, of_life(other.pid)[0])
                assert 0 < there < MODEL_BYTES
                assert other.kill() == -signal.SIGKILL
            wait_until(lambda: "node-lost" in "\n".join(lead.read_stderr()))
            require_no_model(world, out, rows_of(whole))
            wait_until(lambda: both.place(lead) != place)
            with both.join(1, both.place(lead), out="n2") as other:
                assert lead.wait_for_end(within=400)["steps"] == 2
                other.wait_for_end(within=60)
        run = weights(both.opened("run"))
        assert run.keys() == whole.keys()
        assert all(torch.equal(run[name], whole[name]) for name in whole)
        verdict = world.run("verify", out / "manifest.json", "--trust", both.trust())
        assert all(check["outcome"] == "passed" for check in verdict["checks"])
