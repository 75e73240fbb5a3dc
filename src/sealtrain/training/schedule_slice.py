"""A slice of a longer training: some of its steps, with its data and learning rates at those steps.

Between two merges a party trains such a slice. The slice begins with a fresh optimizer, the rows
that the whole training would have reached, and the learning rate of its schedule at that step. So a
slice follows from the recipe, its position and its first weights: a returning party needs no
checkpoint of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSlice:
    """Steps ``first`` … ``first + steps`` of ``total``."""

    first: int
    steps: int
    total: int


def in_stretch(trainer: type[Any], stretch: ScheduleSlice | None) -> type[Any]:
    """``trainer`` itself, or its subclass whose schedule is that of the whole training.

    Args:
        trainer: ``transformers.Trainer`` or a subclass.
        stretch: ``None`` where all steps are done here.
    """
    if stretch is None:
        return trainer
    first, total = stretch.first, stretch.total

    class SliceTrainer(trainer):  # type: ignore[misc]  # a class chosen at run time
        """The trainer, in the middle of a schedule."""

        def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
            scheduler = super().create_scheduler(total, optimizer)
            for _ in range(first):
                scheduler.step()
            return scheduler

    return SliceTrainer
