"""TRL writes model cards, caches and warnings when it learns from preferences; none come out."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from preference_world import merging_tokenizer, preferring, write_preferences
from training_world import CANARY, checkpoint_store, run, seal_records, sources_of

VICTIM = Path(__file__).resolve().parents[1] / "support" / "preference_victim.py"
PLACES = ("HOME", "TMPDIR", "HF_HOME", "XDG_CACHE_HOME", "TORCH_HOME", "TORCHINDUCTOR_CACHE_DIR")
OURS = ("owner", "sealed", "checkpoints", "tokenizer")


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
        timeout=200,
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


@pytest.mark.claim("C4")
def test_a_question_that_trl_quotes_in_a_warning_is_heard_by_nobody(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    sealed = dict(seal_records(write_preferences(tmp_path), tmp_path))
    merging_tokenizer(tmp_path / "tokenizer")
    model = preferring("dpo").to_dict()["model"] | {"tokenizer": {"path": "tokenizer"}}
    recipe = preferring("dpo", model=model, trainer={"max_steps": 2})
    quoted: list[str] = []

    def listen(record: logging.LogRecord) -> bool:
        quoted.append(record.getMessage())
        return True

    from accelerate.logging import MultiProcessAdapter

    trl = logging.getLogger("trl.trainer.dpo_trainer")
    trl.addFilter(listen)
    try:
        run(
            recipe,
            sources_of(recipe, sealed),
            checkpoint_store(tmp_path / "checkpoints"),
            base_dir=tmp_path,
        )
        assert quoted == []
        assert caplog.records == []
        assert capfd.readouterr() == ("", "")
        # The same warning is there to be heard, were TRL not silenced.
        MultiProcessAdapter.warning_once.cache_clear()
        trl.setLevel(logging.WARNING)
        run(
            recipe,
            sources_of(recipe, sealed),
            checkpoint_store(tmp_path / "loud"),
            base_dir=tmp_path,
        )
    finally:
        trl.setLevel(logging.NOTSET)
        trl.removeFilter(listen)
    assert any("left out of the training sequence" in message for message in quoted)
