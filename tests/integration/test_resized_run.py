"""A killed run goes on with another number of ranks: by ``sealtrain resume``, and by a run ticket.

Ranks hold copies of the model, or share it out and seal a shard of each checkpoint.

Nothing draws random numbers here (no dropout), so the adapter is that of the uninterrupted run,
up to rounding: each number of ranks adds the four parts of a step in another order. That two parts
agree to the last bit is tested in ``equivalence/test_ranks_exact.py``.
"""

from __future__ import annotations

import base64
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from collecting import COLLECTING
from polling import wait_until
from stage import MACHINE, OWNERS, RECIPE, Stage, stage

if not COLLECTING:
    from safetensors.torch import load_file

pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.timeout(900),
    pytest.mark.claim("C153", "C739"),
]

RESIZED = RECIPE | {
    "name": "resized",
    "peft": {"method": "lora", "r": 2, "target_modules": ["q_proj", "v_proj"]},
    "model": RECIPE["model"] | {"dtype": "float32"},
    "trainer": RECIPE["trainer"]
    | {"max_steps": 0, "num_train_epochs": 1.6}  # 192 of 120 records: 24 steps
    | {"save_steps": 4, "per_device_train_batch_size": 2}
    | {"gradient_accumulation_steps": 2, "max_grad_norm": 0.0},
}


@pytest.fixture(scope="module", params=["trl", "fsdp"])
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def world(backend: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("resized")) as made:
        made.anew = True  # ranks are forked before anything is loaded
        yield made


@pytest.fixture(scope="module")
def folder(world: Stage, backend: str) -> Path:
    named = {"backend": {"name": backend, "ranks": 2, "resume_ranks": [1, 4]}}
    made = world.propose("resized", RESIZED | named)
    world.approve(made, *OWNERS)
    return made


@pytest.fixture(scope="module")
def whole(world: Stage, folder: Path) -> dict[str, Any]:
    """The adapter of a run that nobody killed."""
    world.run(*world.train_words(folder, "whole"))
    return adapter(world, world.folder / "whole")


def adapter(world: Stage, run: Path) -> dict[str, Any]:
    out = run.parent / f"{run.name}-opened"
    world.run("open", run / "model", "--identity", world.identity("clinic-a"), "--out", out)
    weights: dict[str, Any] = load_file(out / "adapter_model.safetensors")
    return weights


def same(own: dict[str, Any], whole: dict[str, Any]) -> None:
    assert own.keys() == whole.keys()
    apart = {name: float((tensor - own[name]).abs().max()) for name, tensor in whole.items()}
    assert max(apart.values()) < 1e-4, apart


def world_size(run: Path) -> str:
    envelope = json.loads((run / "manifest.json").read_text())
    statement = json.loads(base64.b64decode(envelope["bundle"]["dsseEnvelope"]["payload"]))
    size: str = statement["predicate"]["run"]["environment"]["world_size"]
    return size


def sealed(run: Path) -> set[str]:
    return {path.name for path in (run / "checkpoints").glob("checkpoint-*.sealed")}


def killed(world: Stage, run: Path, *words: str | Path) -> None:
    """Start a command, and end it with SIGKILL once it has sealed a further checkpoint."""
    before = sealed(run)
    with world.part(*words) as part:
        wait_until(lambda: sealed(run) - before or part.gone)
        assert part.kill() == -signal.SIGKILL


def shards(run: Path) -> set[str]:
    """How many shards the checkpoints have, by name."""
    return {path.stem[-4:] for path in run.glob("checkpoints/rank-*/shard-*.sealed")}


def test_one_rank_finishes_what_two_began(
    world: Stage, backend: str, folder: Path, whole: dict[str, Any]
) -> None:
    run = world.folder / "one"
    killed(world, run, *world.train_words(folder, "one"))
    assert shards(run) == ({"0002"} if backend == "fsdp" else set())
    refused = world.try_run("resume", run, "--ranks", "3")
    assert (refused.code, refused.error) == (2, "recipe-invalid")
    world.run("resume", run, "--ranks", "1")
    assert world_size(run) == "1"
    same(adapter(world, run), whole)


def test_four_ranks_then_two_finish_what_two_began(
    world: Stage, folder: Path, whole: dict[str, Any]
) -> None:
    run = world.folder / "four"
    killed(world, run, *world.train_words(folder, "four"))
    killed(world, run, "resume", run, "--ranks", "4")
    world.run("resume", run)
    assert world_size(run) == "2"
    same(adapter(world, run), whole)


def test_a_ticket_names_the_ranks_that_go_on(
    world: Stage, folder: Path, whole: dict[str, Any]
) -> None:
    def deployed(ranks: str) -> list[str | Path]:
        ticket = world.folder / f"ticket-{ranks}.json"
        world.run(
            "deploy", "ticket", "--role", "train", "--broker", world.broker,
            "--data", folder / "sealed", "--base", folder, "--wait", "60", "--restarts", "1",
            *(("--ranks", ranks) if ranks else ()), "--out", ticket,
        )  # fmt: skip
        return [
            "deploy", "run", "--deployment", folder / "app-compose.json", "--ticket", ticket,
            "--folder", world.folder / "deployed", "--simulator", "root", *MACHINE,
        ]  # fmt: skip

    run = world.folder / "deployed" / "out"
    killed(world, run, *deployed(""))
    refused = world.try_run(*deployed("3"))
    assert (refused.code, refused.error) == (2, "recipe-invalid")
    world.run(*deployed("1"))
    assert world_size(run) == "1"
    same(adapter(world, run), whole)
