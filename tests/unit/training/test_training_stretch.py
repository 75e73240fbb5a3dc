"""Stretches put together have the rates and the rows of the whole training."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from collecting import COLLECTING
from training_world import numbered, source_of

from sealtrain.training.schedule_slice import ScheduleSlice, in_stretch

if not COLLECTING:
    import torch
    from transformers import Trainer, TrainingArguments

    from sealtrain.training.context import TrainingContext

STEPS, PART, BATCH = 12, 4, 3


def rates(folder: Path, stretch: ScheduleSlice | None, steps: int) -> list[float]:
    """Learning rate of each step that a trainer does."""
    model = torch.nn.Linear(2, 1)
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        learning_rate=0.5,
        lr_scheduler_type="cosine",
        warmup_steps=0.25,
        use_cpu=True,
        report_to="none",
    )
    trainer: Any = in_stretch(Trainer, stretch)(model=model, args=arguments)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = trainer.create_scheduler(steps, optimizer)
    told = []
    for _ in range(steps):
        told.append(float(scheduler.get_last_lr()[0]))
        optimizer.step()
        scheduler.step()
    return told


@pytest.mark.filterwarnings("ignore:Detected call of:UserWarning")
def test_rates_go_on_where_the_stretch_before_ended(tmp_path: Path) -> None:
    whole = rates(tmp_path, None, STEPS)
    parts = [
        rate
        for first in range(0, STEPS, PART)
        for rate in rates(tmp_path, ScheduleSlice(first=first, steps=PART, total=STEPS), PART)
    ]
    assert parts == pytest.approx(whole)
    assert whole[0] < max(whole) > whole[-1], "the schedule rises and falls"


def workplace(stretch: ScheduleSlice | None) -> Any:
    trainer = SimpleNamespace(
        seed=5, data_seed=None, per_device_train_batch_size=BATCH, gradient_accumulation_steps=2
    )
    return TrainingContext(
        recipe=SimpleNamespace(trainer=trainer),
        base_dir=Path(),
        scratch=Path(),
        train_sources=[source_of(numbered([20, 13]))],
        test_sources=[],
        context=SimpleNamespace(streams=[]),  # type: ignore[arg-type]
        stretch=stretch,
    )


def rows(stretch: ScheduleSlice | None, steps: int) -> list[Any]:
    stream = workplace(stretch).training_stream({"id": "id"})
    reader = stream.rows()
    return [next(reader)["id"] for _ in range(steps * BATCH * 2)]


def test_rows_go_on_where_the_stretch_before_ended() -> None:
    whole = rows(None, STEPS)
    parts = [
        row
        for first in range(0, STEPS, PART)
        for row in rows(ScheduleSlice(first=first, steps=PART, total=STEPS), PART)
    ]
    assert parts == whole
