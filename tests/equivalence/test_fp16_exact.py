"""``fp16`` on a CPU: it computes in float16, and the scale of the loss survives a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from training_world import (
    RUN_ID,
    checkpoint_store,
    measured,
    run,
    seal_records,
    sft,
    sources_of,
    write_records,
)

from sealtrain.training.checkpoints import checkpoint
from sealtrain.training.checkpoints.checkpoint import newest

pytestmark = pytest.mark.slow
# So large that a gradient overflows in the third step, which halves the scale.
HOT = {"fp16": True, "learning_rate": 0.5}


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("fp16")
    (folder / "owner").mkdir()
    (folder / "sealed").mkdir()
    return seal_records(write_records(folder / "owner"), folder / "sealed")


def scaler_in(store: Any) -> dict[str, Any]:
    kept: dict[str, Any] = checkpoint.load(store, RUN_ID, newest(store, None))["scaler"]
    return kept


@pytest.mark.claim("C23")
def test_a_resumed_run_scales_as_the_uninterrupted_one(
    sealed: dict[str, Any], tmp_path: Path
) -> None:
    recipe = sft(trainer=HOT)
    sources = sources_of(recipe, sealed)
    once, again = checkpoint_store(tmp_path / "once"), checkpoint_store(tmp_path / "again")
    whole = run(recipe, sources, once)
    first = run(recipe, sources, again, stop_at=3)
    assert (scaler_in(again)["scale"], scaler_in(again)["_growth_tracker"]) == (32768.0, 0)
    second = run(recipe, sources, again, resume=newest(again, None))
    assert scaler_in(again) == scaler_in(once)
    assert scaler_in(once)["scale"] == 32768.0
    assert measured(second) == measured(whole)
    assert first.history + second.history == whole.history


def test_a_cpu_does_not_train_float32_instead(sealed: dict[str, Any], tmp_path: Path) -> None:
    losses = {}
    for precision in ({}, {"bf16": True}, {"fp16": True}):
        recipe = sft(trainer={"max_steps": 2, "save_steps": 2, **precision})
        name = next(iter(precision), "fp32")
        ran = run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path / name))
        losses[name] = ran.history[0][1]["loss"]
    assert len(set(losses.values())) == 3
    assert losses["fp16"] == pytest.approx(losses["fp32"], abs=1e-4)
