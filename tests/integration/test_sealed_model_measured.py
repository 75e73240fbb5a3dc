"""A model travels sealed from the run that made it to a clean room of others that measures it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stage import RECIPE, Stage, stage

pytestmark = [pytest.mark.long, pytest.mark.slow]

TRAINING: dict[str, Any] = RECIPE | {
    "phase": "classify",
    "name": "risk",
    "datasets": [{"owner": "clinic-a", "name": "notes", "role": "train"}],
    "columns": {"text": "prompt", "label": "completion"},
    "labels": [" a", " b"],
    "release_policy": {"metrics": ["loss"], "round_to": 4, "model": {"recipients": ["clinic-a"]}},
    "trainer": {"max_steps": 3, "max_length": 48, "seed": 3},
}
MEASURING: dict[str, Any] = {
    name: value for name, value in TRAINING.items() if name not in ("peft", "trainer")
} | {
    "phase": "evaluate",
    "name": "clean-room",
    "model": {"sealed": "risk"},
    "datasets": [
        {"owner": "clinic-a", "name": "risk", "role": "model"},
        {"owner": "clinic-b", "name": "notes", "role": "test"},
    ],
    "trainer": {"max_length": 48},
    "release_policy": {
        "metrics": ["accuracy", "majority"],
        "round_to": 4,
        "model": {"recipients": ["clinic-b"]},
    },
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("room")) as made:
        yield made


@pytest.fixture(scope="module")
def trained(world: Stage) -> Path:
    """The model as training leaves it: sealed to clinic-a."""
    folder = world.propose("training", TRAINING)
    world.approve(folder, "clinic-a", "clinic-b")
    world.run(*world.train_words(folder, "trained"))
    return world.folder / "trained" / "model"


@pytest.fixture(scope="module")
def room(world: Stage, trained: Path) -> Path:
    folder = world.propose("room", MEASURING, sources={"clinic-a.risk": trained})
    world.approve(folder, "clinic-a", "clinic-b")
    return folder


@pytest.fixture(scope="module")
def measured(world: Stage, room: Path) -> Any:
    return world.run(*world.train_words(room, "measured"))


def trust(world: Stage, room: Path) -> Path:
    out = world.folder / "room-trust.yaml"
    if not out.exists():
        world.run(
            "trust", "new", "--consortium", "consortium.json",
            "--deployment", room / "app-compose.json", "--policy", "policy.yaml",
            "--broker", world.broker, "--out", out,
        )  # fmt: skip
    return out


@pytest.mark.nightly
def test_its_manifest_names_the_model_by_its_root(world: Stage, room: Path, measured: Any) -> None:
    assert set(measured["metrics"]) == {"accuracy", "majority"}
    manifest = world.folder / "measured" / "manifest.json"
    report = world.run("verify", manifest, "--trust", trust(world, room))
    assert {check["outcome"] for check in report["checks"]} == {"passed"}
    html = world.folder / "report.html"
    world.run("report", manifest, "--trust", trust(world, room), "--out", html)
    claimed = world.run("inspect", room / "sealed" / "clinic-a.risk.sealed")["claimed"]
    assert claimed["root"] in html.read_text()


@pytest.mark.nightly
@pytest.mark.claim("C35")
def test_the_open_model_lies_nowhere(
    world: Stage, trained: Path, measured: Any, tmp_path: Path
) -> None:
    world.run("open", trained, "--identity", world.identity("clinic-a"), "--out", tmp_path / "open")
    weights = (tmp_path / "open" / "model.safetensors").read_bytes()
    needles = [weights[at : at + 24] for at in range(len(weights) // 2, len(weights) - 24, 997)]
    needles = [needle for needle in needles if len(set(needle)) > 12]
    assert len(needles) > 10
    held = [path for path in world.folder.rglob("*") if path.is_file()]
    assert held
    for path in held:
        data = path.read_bytes()
        assert not any(needle in data for needle in needles), path


@pytest.mark.nightly
@pytest.mark.claim("C10")
def test_another_sealing_of_the_model_gets_no_key(
    world: Stage, trained: Path, room: Path, measured: Any, tmp_path: Path
) -> None:
    data = tmp_path / "sealed"
    shutil.copytree(room / "sealed", data)
    shutil.rmtree(data / "clinic-a.risk.sealed")
    world.run(
        "seal", trained, "--name", "risk", "--identity", world.identity("clinic-a"),
        "--deployment", room / "app-compose.json", "--broker", world.broker,
        "--out", data / "clinic-a.risk.sealed",
    )  # fmt: skip
    words = world.train_words(room, "swapped")[1:]
    words[words.index("--data") + 1] = data
    answer = world.try_run("train", *words)
    assert (answer.code, answer.error) == (3, "dataset-mismatch")
    assert not (world.folder / "swapped").exists()


@pytest.mark.nightly
@pytest.mark.claim("C111")
def test_a_file_of_another_place_is_not_sealed_with_it(
    world: Stage, trained: Path, room: Path, tmp_path: Path
) -> None:
    mixed = tmp_path / "run" / "model"
    shutil.copytree(trained.parent, mixed.parent)
    (mixed / "config.json.sealed").write_bytes((mixed / "tokenizer.json.sealed").read_bytes())
    words = (
        "seal", mixed, "--name", "risk", "--identity", world.identity("clinic-a"),
        "--deployment", room / "app-compose.json", "--broker", world.broker,
        "--out", tmp_path / "risk.sealed",
    )  # fmt: skip
    answer = world.try_run(*words)
    assert (answer.code, answer.error) == (3, "subject-mismatch")
    answer = world.try_run(*words, "--no-manifest")
    assert (answer.code, answer.error) == (3, "wrong-context")
    assert not (tmp_path / "risk.sealed").exists()


@pytest.mark.nightly
def test_who_is_no_recipient_cannot_seal_it(
    world: Stage, trained: Path, room: Path, tmp_path: Path
) -> None:
    answer = world.try_run(
        "seal", trained, "--name", "risk", "--identity", world.identity("clinic-b"),
        "--deployment", room / "app-compose.json", "--broker", world.broker,
        "--out", tmp_path / "risk.sealed",
    )  # fmt: skip
    assert (answer.code, answer.error) == (3, "no-stanza")
