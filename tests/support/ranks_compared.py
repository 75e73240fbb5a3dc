"""Plays in several ranks, beside those of one rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ranks_matrix import NEAR, agreement
from ranks_world import summary
from remains import ended
from training_world import Ran


def in_ranks(
    world: Path,
    backend: dict[str, Any],
    *names: str,
    timeout: int = 280,
    player: str = "ranks_player",
) -> dict[str, dict[str, Any]]:
    """What a player says of each play."""
    done = ended(player, world, json.dumps(backend), *names, timeout=timeout, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line.pop("name"): line for line in lines}


def same_as_one_rank(said: dict[str, Any], name: str, world: Path, backend: str, ran: Ran) -> None:
    """Compare a play with that of one rank, as closely as ``agreement`` says."""
    from safetensors.torch import load, load_file

    alone = json.loads(json.dumps(summary(ran)))
    counts = ("rows", "steps", "tokens")
    assert {key: said[key] for key in counts} == {key: alone[key] for key in counts}
    assert [step for step, _ in said["history"]] == [step for step, _ in alone["history"]]
    how = agreement(name, backend)
    if how == "own":
        assert said["files"].keys() == alone["files"].keys()
        return
    logged = [values for _, values in said["history"]] + [said["metrics"]]
    expected = [values for _, values in alone["history"]] + [alone["metrics"]]
    for mine, its in zip(logged, expected, strict=True):
        # TRL takes this mean over the batches of each rank, which have different weights.
        mine.pop("rewards_margins", None), its.pop("rewards_margins", None)
        assert mine == pytest.approx(its, rel=1e-4, abs=2e-4 if how == "near" else 1e-6)
    if how != "same":
        files = ran.trained.files
        (weights,) = [data for key, data in files.items() if key.endswith(".safetensors")]
        theirs = load_file(world / "out" / f"{name}-{backend}.weights")
        own = load(weights)
        assert theirs.keys() == own.keys()
        for key, tensor in own.items():
            apart = (tensor - theirs[key]).abs()
            assert apart.mean() < NEAR[name] if how == "near" else apart.max() < 5e-4, key
    else:
        assert said["files"] == alone["files"]
