"""Training leaves nothing in the clear: no file, no word on stdout or stderr, no way to a hub."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from polling import wait_until
from remains import Remains, remains_of, started
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

pytestmark = pytest.mark.long

OURS = ("owner", "sealed", "checkpoints")


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Remains:
    """What is left after sealing and an uninterrupted training."""
    return remains_of("learner_victim", tmp_path_factory.mktemp("left"), "whole", timeout=200)


@pytest.mark.nightly
@pytest.mark.claim("C4")
def test_only_the_store_and_the_owner_leave_files(left: Remains) -> None:
    assert left.places() == set(OURS)
    assert {path.suffix for path in (left.folder / "checkpoints").rglob("*")} == {".sealed"}


@pytest.mark.nightly
@pytest.mark.claim("C4")
def test_no_file_but_the_owners_holds_a_record(left: Remains) -> None:
    assert left.holding(CANARY) == {"owner"}


@pytest.mark.nightly
@pytest.mark.claim("C4")
def test_nothing_else_is_ever_opened_for_writing(left: Remains) -> None:
    assert left.opened_outside(OURS) == set()
    assert len(left.opened_for_a_try()) <= 1


@pytest.mark.claim("C23")
@pytest.mark.nightly
def test_killed_and_resumed_it_ends_with_the_same_weights(left: Remains, tmp_path: Path) -> None:
    process = started("learner_victim", tmp_path, "whole", "slow")
    try:
        second = "checkpoint-00000002-*.sealed"
        wait_until(
            lambda: any((tmp_path / "checkpoints").glob(second)) or process.poll() is not None
        )
        assert process.poll() is None, process.communicate()
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    after = remains_of("learner_victim", tmp_path, "whole", timeout=200)
    whole, resumed = left.answer, after.answer
    assert resumed["weights"] == whole["weights"]
    assert resumed["history"] == whole["history"][-len(resumed["history"]) :]
    assert 0 < len(resumed["history"]) < len(whole["history"])
    assert after.holding(CANARY) == {"owner"}


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
        "import huggingface_hub.constants as constants; import sealtrain.training; "
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
