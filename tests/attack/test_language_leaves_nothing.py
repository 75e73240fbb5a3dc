"""Sentence Transformers writes texts into model cards, TRL too; none come out of a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from training_world import CANARY

VICTIM = Path(__file__).resolve().parents[1] / "support" / "language_victim.py"
PLACES = ("HOME", "TMPDIR", "HF_HOME", "XDG_CACHE_HOME", "TORCH_HOME", "TORCHINDUCTOR_CACHE_DIR")
OURS = ("owner", "sealed", "checkpoints", "base")


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder after training every way, and what the process said of itself."""
    folder = tmp_path_factory.mktemp("left")
    for place in (*PLACES, "cwd"):
        (folder / place).mkdir()
    environment = {
        **{name: value for name, value in os.environ.items() if name != "CI"},
        **{place: str(folder / place) for place in PLACES},
        "PYTHONPATH": os.pathsep.join([str(VICTIM.parent), *sys.path]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(VICTIM), str(folder)],
        cwd=folder / "cwd",
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    (line,) = done.stdout.splitlines()
    return folder, json.loads(line)


@pytest.mark.claim("C4")
def test_only_sealed_files_are_left(left: tuple[Path, dict[str, Any]]) -> None:
    folder, answer = left
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.relative_to(folder).parts[0] for path in files} == set(OURS)
    assert {path.suffix for path in (folder / "checkpoints").rglob("*") if path.is_file()} == {
        ".sealed"
    }
    assert len(set(answer["weights"].values())) == 5


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
def test_nothing_else_is_opened_for_writing_and_nobody_is_called(
    left: tuple[Path, dict[str, Any]],
) -> None:
    folder, answer = left
    allowed = tuple(str(folder / name) for name in OURS)
    strange = {
        path
        for path in answer["opened"]
        # Python tries once whether it may write to the temporary folder, with four fixed bytes.
        if not path.startswith((*allowed, "/dev/null")) and Path(path).parent != folder / "TMPDIR"
    }
    assert strange == set()
    assert sum(Path(path).parent == folder / "TMPDIR" for path in answer["opened"]) <= 1
    assert answer["called"] == []
