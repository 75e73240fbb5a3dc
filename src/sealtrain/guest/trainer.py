"""``SealedRun`` of a script: the callback for trainers of Transformers, attached to the run.

By itself, because it imports Transformers' trainer, which a plain loop of PyTorch does without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sealtrain.guest.script import running
from sealtrain.training.checkpoints.callback import RunCallback
from sealtrain.training.checkpoints.loop import expect_dealt

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

    from sealtrain.training.checkpoints.run_context import Evaluation


class SealedRun(RunCallback):
    """Trainer callback of this run: sealed checkpoints, exact resume, run log, released metrics."""

    def __init__(self, evaluation: Evaluation | None = None) -> None:
        """Attach to the run.

        Args:
            evaluation: Measures a model, metrics by name; called every ``trainer.eval_steps`` of
                the recipe. Early stopping and the choice of the best weights compare its metrics.

        Raises:
            UsageError: Not inside a run.
        """
        script = running()
        script.context.evaluation = evaluation
        super().__init__(script.context)
        script.callback = self
        self._script = script

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **objects: Any
    ) -> TrainerControl:
        """Try whether the model could be sealed, then restore the checkpoint if there is one."""
        expect_dealt(objects["train_dataloader"])
        self._script.try_saving(objects["model"], objects.get("processing_class"))
        return super().on_train_begin(args, state, control, **objects)
