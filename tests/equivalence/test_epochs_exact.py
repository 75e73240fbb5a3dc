"""A run of so many epochs is the run of so many steps, to the bit, also when it is resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from training_world import (
    checkpoint_store,
    classify,
    measured,
    run,
    seal_records,
    sft,
    sources_of,
    write_records,
)

from sealtrain.training.checkpoints.checkpoint import newest

pytestmark = [pytest.mark.slow, pytest.mark.claim("C739")]
RECORDS = 11  # of each of two owners; 1.5 epochs are 33 records, 9 steps of four


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("epochs")
    (folder / "owner").mkdir()
    (folder / "sealed").mkdir()
    return seal_records(write_records(folder / "owner", RECORDS), folder / "sealed")


@pytest.mark.parametrize("recipe", [sft, classify], ids=["trainer", "loop"])
def test_epochs_end_where_their_steps_end(
    recipe: Any, sealed: dict[str, Any], tmp_path: Path
) -> None:
    by_steps = recipe(trainer={"max_steps": 9})
    by_epochs = recipe(trainer={"max_steps": 0, "num_train_epochs": 1.5})
    sources = sources_of(by_epochs, sealed)
    whole = run(by_steps, sources, checkpoint_store(tmp_path / "steps"))
    once, again = checkpoint_store(tmp_path / "once"), checkpoint_store(tmp_path / "again")
    counted = run(by_epochs, sources, once)
    assert counted.trained.steps == 9
    assert measured(counted) == measured(whole)
    assert counted.history == whole.history  # the learning rate fell as far in each step
    first = run(by_epochs, sources, again, stop_at=3)
    second = run(by_epochs, sources, again, resume=newest(again, None))
    assert measured(second) == measured(whole)
    assert first.history + second.history == whole.history
