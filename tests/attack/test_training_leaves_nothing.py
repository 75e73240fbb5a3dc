"""Training leaves nothing in the clear: no file, no word on stdout or stderr, no way to a hub."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from training_world import (
    CANARY,
    checkpoint_store,
    classify,
    run,
    seal_records,
    sft,
    sources_of,
    write_records,
)

from sealtrain.errors import SealtrainError

VICTIM = Path(__file__).resolve().parents[1] / "support" / "training_victim.py"
PLACES = ("HOME", "TMPDIR", "HF_HOME", "XDG_CACHE_HOME", "TORCH_HOME", "TORCHINDUCTOR_CACHE_DIR")


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    """The victim, with every place a library may write to inside ``folder``."""
    for place in (*PLACES, "cwd"):
        (folder / place).mkdir(exist_ok=True)
    environment = {
        **os.environ,
        **{place: str(folder / place) for place in PLACES},
        "PYTHONPATH": os.pathsep.join([str(VICTIM.parent), *sys.path]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", str(VICTIM), str(folder), *words],
        cwd=folder / "cwd",
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert err == ""
    (line,) = out.splitlines()
    answer: dict[str, Any] = json.loads(line)
    return answer


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder after sealing and an uninterrupted training, and what the process said."""
    folder = tmp_path_factory.mktemp("left")
    return folder, finish(start(folder))


@pytest.mark.claim("C4")
def test_only_the_store_and_the_owner_leave_files(left: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = left
    places = {path.relative_to(folder).parts[0] for path in folder.rglob("*") if path.is_file()}
    assert places == {"owner", "sealed", "checkpoints"}
    assert {path.suffix for path in (folder / "checkpoints").rglob("*")} == {".sealed"}


@pytest.mark.claim("C4")
def test_no_file_but_the_owners_holds_a_record(left: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = left
    holding = {
        path.relative_to(folder).parts[0]
        for path in folder.rglob("*")
        if path.is_file() and CANARY.encode() in path.read_bytes()
    }
    assert holding == {"owner"}


@pytest.mark.claim("C4")
def test_nothing_else_is_ever_opened_for_writing(left: tuple[Path, dict[str, Any]]) -> None:
    folder, answer = left
    allowed = tuple(str(folder / name) for name in ("owner", "sealed", "checkpoints"))
    strange = {
        path
        for path in answer["opened"]
        # Python tries once whether it may write to the temporary folder, with four fixed bytes.
        if not path.startswith((*allowed, "/dev/null")) and Path(path).parent != folder / "TMPDIR"
    }
    assert strange == set()
    assert sum(Path(path).parent == folder / "TMPDIR" for path in answer["opened"]) <= 1


@pytest.mark.claim("C23")
def test_killed_and_resumed_it_ends_with_the_same_weights(
    left: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    _, whole = left
    process = start(tmp_path, "slow")
    try:
        deadline = time.monotonic() + 120
        while not list((tmp_path / "checkpoints").glob("checkpoint-00000002-*.sealed")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    resumed = finish(start(tmp_path))
    assert resumed["weights"] == whole["weights"]
    assert resumed["history"] == whole["history"][-len(resumed["history"]) :]
    assert 0 < len(resumed["history"]) < len(whole["history"])
    clear = [
        path
        for path in tmp_path.rglob("*")
        if path.is_file()
        and path.relative_to(tmp_path).parts[0] != "owner"
        and CANARY.encode() in path.read_bytes()
    ]
    assert clear == []


def test_nothing_is_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sealed = seal_records(write_records(tmp_path), tmp_path)
    for recipe in (sft(), classify()):
        run(recipe, sources_of(recipe, dict(sealed)), checkpoint_store(tmp_path / recipe.phase))
    assert capfd.readouterr() == ("", "")


@pytest.mark.claim("C21")
def test_only_metrics_the_policy_names_come_out(tmp_path: Path) -> None:
    sealed = dict(seal_records(write_records(tmp_path), tmp_path))
    policy = sft().release_policy.to_dict() | {"metrics": ["loss"]}
    recipe = sft(release_policy=policy)
    ran = run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path / "checkpoints"))
    assert {name for _, values in ran.history for name in values} == {"loss"}
    assert set(ran.trained.metrics) == {"loss"}
    assert {"accuracy", "majority", "grad_norm", "learning_rate"} <= set(ran.trained.withheld)


def test_a_label_the_recipe_does_not_know_is_refused_without_quoting_it(tmp_path: Path) -> None:
    sealed = dict(seal_records(write_records(tmp_path), tmp_path))
    recipe = classify(labels=["yes", "no"])
    with pytest.raises(SealtrainError) as refusal:
        run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path / "checkpoints"))
    assert "benign" not in str(refusal.value.to_dict())


def test_libraries_are_offline_even_when_imported_before() -> None:
    program = (
        "import huggingface_hub.constants as constants; import sealtrain.training.quiet; "
        "print(constants.HF_HUB_OFFLINE, constants.HF_HUB_DISABLE_TELEMETRY)"
    )
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("HF_", "DO_NOT"))
    }
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True", "True"]


def test_the_trainers_own_folder_stays_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed = dict(seal_records(write_records(tmp_path), tmp_path))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    seen: list[list[Path]] = []
    recipe = sft()
    run(
        recipe,
        sources_of(recipe, sealed),
        checkpoint_store(tmp_path / "checkpoints"),
        on_checkpoint=lambda ref: seen.append([p for p in scratch.rglob("*") if p.is_file()]),
    )
    assert seen == [[]] * 3
    assert list(scratch.iterdir()) == []
