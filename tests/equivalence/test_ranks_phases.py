"""Each phase in two ranks ends with the weights of one rank, or the specification says why not.

Records are the same for any division, so only what draws random numbers in each rank, or looks at a
batch as a whole, may differ (spec/recipe.md §2.13).
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from ranks_world import (
    PLAYS,
    evaluation,
    grpo,
    ppo,
    recipe_of,
    reopened,
    rloo,
    seal_all,
    summary,
)
from remains import ended
from safetensors.torch import load, load_file
from training_world import checkpoint_store, run, sources_of

pytestmark = [pytest.mark.slow, pytest.mark.claim("C150")]
DDP = {"name": "trl", "ranks": 2}
QUICK = ["classify", "dpo-lora", "embed", "evaluate", "ppo"]
# Each rank draws its own answers; pairs of unmatched answers are those of a rank's batch.
OTHER = {"grpo", "grpo-lora", "rloo", "kto"}
# Sums over all ranks' embeddings have another order than sums over one batch.
ROUNDED = {"embed", "embed-cached", "embed-lora"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return seal_all(tmp_path_factory.mktemp("ranks"))


def in_ranks(world: Path, backend: dict[str, Any], *names: str) -> dict[str, dict[str, Any]]:
    done = ended(
        "ranks_player", world, json.dumps(backend), *names, timeout=280, OMP_NUM_THREADS="1"
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line.pop("name"): line for line in lines}


def same_as_one_rank(said: dict[str, Any], name: str, world: Path, backend: str, to: Path) -> None:
    recipe = recipe_of(name)
    sources = sources_of(recipe, reopened(world, name))
    ran = run(recipe, sources, checkpoint_store(to / name), base_dir=world)
    alone = json.loads(json.dumps(summary(ran)))
    counts = ("rows", "steps", "tokens")
    assert {key: said[key] for key in counts} == {key: alone[key] for key in counts}
    assert [step for step, _ in said["history"]] == [step for step, _ in alone["history"]]
    if name in OTHER:
        assert said["files"].keys() == alone["files"].keys()
        return
    logged = [values for _, values in said["history"]] + [said["metrics"]]
    expected = [values for _, values in alone["history"]] + [alone["metrics"]]
    for mine, its in zip(logged, expected, strict=True):
        # TRL takes this mean over the batches of each rank, which have different weights.
        mine.pop("rewards_margins", None), its.pop("rewards_margins", None)
        assert mine == pytest.approx(its, rel=1e-4, abs=1e-6)
    if name in ROUNDED or backend == "deepspeed":
        files = ran.trained.files
        (weights,) = [data for key, data in files.items() if key.endswith(".safetensors")]
        theirs = load_file(world / "out" / f"{name}-{backend}.weights")
        own = load(weights)
        assert theirs.keys() == own.keys()
        for key, tensor in own.items():
            assert (tensor - theirs[key]).abs().max() < 5e-4, key
    else:
        assert said["files"] == alone["files"]


def test_two_copies_are_one_rank(world: Path, tmp_path: Path) -> None:
    done = in_ranks(world, DDP, *QUICK)
    for name in QUICK:
        same_as_one_rank(done[name], name, world, "trl", tmp_path)


@pytest.mark.nightly
def test_two_copies_are_one_rank_in_every_phase(world: Path, tmp_path: Path) -> None:
    names = [name for name in PLAYS if name not in QUICK]
    done = in_ranks(world, DDP, *names)
    for name in names:
        same_as_one_rank(done[name], name, world, "trl", tmp_path)


SHARED_OUT = [
    name
    for name, play in PLAYS.items()
    if play.made not in (ppo, grpo, rloo, evaluation)
    and name not in ("sft-best", "sft-qlora", "sft-prompts")
]


@pytest.mark.nightly
@pytest.mark.parametrize(
    "backend",
    [
        {"name": "fsdp", "ranks": 2},
        {"name": "deepspeed", "zero_stage": 2, "ranks": 2},
        {"name": "deepspeed", "zero_stage": 3, "ranks": 2},
    ],
    ids=lambda backend: "-".join(map(str, backend.values())),
)
def test_a_model_shared_out_is_one_rank(
    world: Path, backend: dict[str, Any], tmp_path: Path
) -> None:
    if backend["name"] == "deepspeed" and find_spec("deepspeed") is None:
        pytest.skip("DeepSpeed is not installed: pip install 'sealtrain[deepspeed]'")
    cannot = {"embed-cached"} if backend["name"] == "deepspeed" else set()
    if backend.get("zero_stage") == 3:
        cannot |= {"dpo", "kto", "apo"}
    names = [one for one in SHARED_OUT if one not in cannot]
    done = in_ranks(world, backend, *names)
    for name in names:
        same_as_one_rank(done[name], name, world, backend["name"], tmp_path)


@pytest.mark.nightly
def test_two_ranks_resumed_are_two_ranks_uninterrupted(world: Path) -> None:
    names = ["dpo", "embed", "ppo", "grpo", "vlm", "sft-best"]
    once = in_ranks(world, DDP, *names)
    again = in_ranks(world, DDP, *(f"{name}+resumed" for name in names))
    assert {name.removesuffix("+resumed"): said for name, said in again.items()} == once


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("backend", "numbers"), [("fsdp", [4]), ("fsdp", [1]), ("trl", [1, 4])], ids=str
)
def test_the_state_of_two_ranks_is_whole_for_any_number_of_ranks(
    backend: str, numbers: list[int], tmp_path: Path
) -> None:
    def said(ranks: int, action: str) -> dict[str, str]:
        words = json.dumps({"name": backend, "ranks": ranks})
        done = ended("ranks_states", tmp_path, words, action, timeout=200, OMP_NUM_THREADS="1")
        assert done.returncode == 0, done.stderr
        answer: dict[str, str] = json.loads(done.stdout)
        return answer

    made = said(2, "make")
    assert {ranks: said(ranks, "restore") for ranks in numbers} == dict.fromkeys(numbers, made)
