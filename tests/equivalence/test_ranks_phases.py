"""Each phase in two ranks ends with the weights of one rank, or the specification says why not.

Records are the same for any division, so only what draws random numbers in each rank, or looks at a
batch as a whole, may differ (spec/recipe.md §2.13).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from ranks_compared import in_ranks, same_as_one_rank
from ranks_matrix import BACKENDS, refusal
from ranks_world import PLAYS, recipe_of, reopened, seal_all
from remains import ended
from training_world import Ran, checkpoint_store, run, sources_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.claim("C150")]
DDP = BACKENDS["DDP"]
QUICK = ["classify", "dpo-lora", "embed", "evaluate", "ppo"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return seal_all(tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="module")
def alone(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Ran]:
    """Plays in one rank, each once."""
    folder = tmp_path_factory.mktemp("alone")

    @cache
    def played(name: str) -> Ran:
        recipe = recipe_of(name)
        sources = sources_of(recipe, reopened(world, name))
        return run(recipe, sources, checkpoint_store(folder / name), base_dir=world)

    return played


@pytest.mark.nightly
def test_two_copies_are_one_rank(world: Path, alone: Callable[[str], Ran]) -> None:
    done = in_ranks(world, DDP, *QUICK)
    for name in QUICK:
        same_as_one_rank(done[name], name, world, "trl", alone(name))


@pytest.mark.nightly
@pytest.mark.parametrize("named", BACKENDS)
def test_every_phase_that_a_backend_accepts_is_one_rank(
    world: Path, named: str, alone: Callable[[str], Ran]
) -> None:
    backend = BACKENDS[named]
    if backend["name"] == "deepspeed" and find_spec("deepspeed") is None:
        pytest.skip("DeepSpeed is not installed: pip install 'sealtrain[deepspeed]'")
    names = [name for name in PLAYS if refusal(name, backend) is None]
    done = in_ranks(world, backend, *names, timeout=600)
    apart = {}
    for name in names:
        try:
            same_as_one_rank(done[name], name, world, backend["name"], alone(name))
        except AssertionError as error:  # all that differ, not the first
            apart[name] = str(error)
    assert not apart


@pytest.mark.nightly
def test_two_ranks_resumed_are_two_ranks_uninterrupted(world: Path) -> None:
    names = ["dpo", "embed", "ppo", "grpo", "vlm", "sft-best"]
    once = in_ranks(world, DDP, *names, timeout=400)
    again = in_ranks(world, DDP, *(f"{name}+resumed" for name in names), timeout=400)
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
        answer: dict[str, str] = json.loads(done.stdout.splitlines()[-1])  # DeepSpeed prints
        return answer

    made = said(2, "make")
    assert {ranks: said(ranks, "restore") for ranks in numbers} == dict.fromkeys(numbers, made)
