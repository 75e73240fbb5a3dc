"""Several ranks train as one does: same losses, same weights, also over an interruption.

Two ranks add two terms, which has no order, so they agree with one rank to the last bit where the
gradient is not clipped; how the norm of shared out gradients is summed is the backend's affair.
"""

from __future__ import annotations

import hashlib
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from language_world import cpt
from remains import ended
from training_world import (
    CANARY,
    checkpoint_store,
    run,
    seal_records,
    sources_of,
    write_records,
)

pytestmark = [pytest.mark.nightly, pytest.mark.slow, pytest.mark.timeout(900)]
TRAINER = {"max_grad_norm": 0.0}
ZERO: list[dict[str, Any]] = [
    {"name": "deepspeed", "zero_stage": 0},
    {"name": "deepspeed", "zero_stage": 1, "offload": "cpu"},
    {"name": "deepspeed", "zero_stage": 2, "ranks": 2},
    {"name": "deepspeed", "zero_stage": 3, "ranks": 2},
]
"""Stages of DeepSpeed, which ``make learning`` installs and ``make test`` does not."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "owner").mkdir()
    (folder / "sealed").mkdir()
    write_records(folder / "owner")
    return folder


@pytest.fixture(scope="module")
def alone(world: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One process, with the batch of two made of two parts."""
    recipe = cpt(trainer=TRAINER | {"gradient_accumulation_steps": 2})
    paths = {path.stem: path for path in (world / "owner").iterdir()}
    sealed = seal_records(paths, world / "sealed")
    store = checkpoint_store(tmp_path_factory.mktemp("alone"))
    ran = run(recipe, sources_of(recipe, sealed), store)
    done = ran.trained
    return {
        "files": {name: hashlib.sha256(data).hexdigest() for name, data in done.files.items()},
        "history": [[step, values] for step, values in ran.history],
        "metrics": done.metrics,
        "rows": done.samples_seen,
        "steps": done.steps,
        "tokens": done.tokens,
        "tokens_sha256": done.tokens_sha256,
    }


def ranks(world: Path, name: str, backend: dict[str, Any], job: str = "") -> dict[str, Any]:
    """Train in ranks of a run of their own; under one name, go on from where it stopped."""
    (world / name).mkdir(exist_ok=True)
    parts = {"gradient_accumulation_steps": 2 // backend.get("ranks", 1)}
    changes = {"phase": "cpt", "trainer": TRAINER | parts, "backend": backend}
    done = ended(
        "ranks_victim", world / name, json.dumps(changes), job, timeout=200, OMP_NUM_THREADS="1"
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


def same_as_one(said: dict[str, Any], alone: dict[str, Any]) -> None:
    rest = alone.keys() - {"history"}
    assert {name: said[name] for name in rest} == {name: alone[name] for name in rest}
    assert said["left"] == []


def only_sealed_files(folder: Path) -> None:
    written = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.suffix for path in written} == {".sealed"}
    assert not [path for path in written if CANARY.encode() in path.read_bytes()]


@pytest.mark.claim("C24")
def test_two_copies_are_one_rank(world: Path, alone: dict[str, Any]) -> None:
    said = ranks(world, "copies", {"name": "trl", "ranks": 2})
    same_as_one(said, alone)
    assert said["history"] == alone["history"]
    assert said["world_size"] == "2"
    assert set(said["listening"]) == {"0100007F"}  # loopback, and nothing else
    only_sealed_files(world / "copies")


@pytest.mark.claim("C23")
@pytest.mark.parametrize(
    "backend",
    [{"name": "fsdp", "ranks": 2}, *ZERO],
    ids=lambda backend: "-".join(map(str, backend.values())),
)
def test_a_model_shared_out_stopped_and_resumed_is_one_rank(
    world: Path, alone: dict[str, Any], backend: dict[str, Any]
) -> None:
    if find_spec(backend["name"]) is None and backend["name"] == "deepspeed":
        pytest.skip("DeepSpeed is not installed: pip install 'sealtrain[deepspeed]'")
    name = "-".join(map(str, backend.values()))
    lapses = backend.get("ranks") == 2
    first = ranks(world, name, backend, "lapses" if lapses else "stops")
    assert first.get("error") == ("lease-stale" if lapses else None)
    second = ranks(world, name, backend)
    assert (first["checkpoints"], second["checkpoints"]) == ([3], [6, 8])
    history = first["history"] + second["history"]
    if backend.get("zero_stage") == 3:  # adds up in another order: the last bits are its own
        whole = ranks(world, f"{name}-whole", backend | {"ranks": 1})
        assert [step for step, _ in history] == [step for step, _ in alone["history"]]
        for (_, mine), (_, its) in zip(history, alone["history"], strict=True):
            assert mine == pytest.approx(its, rel=1e-6)
        assert second["metrics"] == pytest.approx(alone["metrics"], rel=1e-6)
        alone = alone | {"files": whole["files"], "metrics": second["metrics"]}
    else:
        assert history == alone["history"]
    same_as_one(second, alone)
    assert set(first["listening"]) == {"0100007F"}
    only_sealed_files(world / name)


@pytest.mark.claim("C153")
@pytest.mark.parametrize("name", ["trl", "fsdp"])
def test_two_ranks_then_one_then_two_are_one_rank(
    world: Path, alone: dict[str, Any], name: str
) -> None:
    folder = world / f"resized-{name}"
    folder.mkdir()

    def on(number: int, job: str = "", **backend: Any) -> dict[str, Any]:
        given = {"name": name, "ranks": 2, "resume_ranks": [1]} | backend
        changes = {"phase": "cpt", "trainer": TRAINER, "backend": given, "on": number}
        done = ended(
            "ranks_victim", folder, json.dumps(changes), job, timeout=200, OMP_NUM_THREADS="1"
        )
        assert done.returncode == 0, done.stderr
        said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return said

    two = on(2, "stops")
    refused = on(1, ranks=1, resume_ranks=[])
    one = on(1, "stops6")
    again = on(2)
    assert refused["error"] == "checkpoint-refused"
    assert [said["checkpoints"] for said in (two, one, again)] == [[3], [6], [8]]
    assert two["history"] + one["history"] + again["history"] == alone["history"]
    same_as_one(again, alone)
    only_sealed_files(folder)
