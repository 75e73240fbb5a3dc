"""Which evaluation was the best so far, and whether training should stop: as Transformers decides.

1. An evaluation is the best when it exceeds all before it.
2. It counts against the patience unless it exceeds the best before it by more than the threshold.
3. A measurement that is not a finite number is never better.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sealtrain.recipe.errors import RecipeInvalid

if TYPE_CHECKING:
    from sealtrain.recipe.trainers import TrainerArguments


class BestSoFar:
    """The best evaluation of a run.

    Attributes:
        value: Its measurement, ``None`` before the first.
        step: Its step, 0 before the first.
        failures: Evaluations in a row that counted against the patience.
        stopped: The patience is over.
    """

    def __init__(self, arguments: TrainerArguments) -> None:
        """Compare as the recipe's trainer settings say."""
        self._metric = arguments.metric_for_best_model
        self._patience = arguments.early_stopping_patience
        self._threshold = arguments.early_stopping_threshold
        greater = arguments.greater_is_better
        if greater is None:
            greater = not (self._metric or "").endswith("loss")
        self._sign = 1.0 if greater else -1.0
        self.value: float | None = None
        self.step = 0
        self.failures = 0
        self.stopped = False

    def take(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Compare one evaluation.

        Args:
            step: Optimizer step after which it was measured.
            metrics: Its measurements.

        Returns:
            Whether it is the best so far. Always false when the recipe compares no metric.

        Raises:
            RecipeInvalid: The evaluation does not measure the metric that the recipe compares.
        """
        if self._metric is None:
            return False
        value = self._read_measure(metrics)
        gain = math.inf if self.value is None else self._sign * (value - self.value)
        if not math.isfinite(value):
            gain = -math.inf
        self.failures = 0 if gain > self._threshold else self.failures + 1
        self.stopped = self._patience is not None and self.failures >= self._patience
        if gain > 0:
            self.value, self.step = value, step
        return gain > 0

    def state(self) -> dict[str, Any]:
        """Plain data from which ``restore`` continues."""
        return {
            "value": self.value,
            "step": self.step,
            "failures": self.failures,
            "stopped": self.stopped,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Inverse of ``state``."""
        self.value = state["value"]
        self.step = state["step"]
        self.failures = state["failures"]
        self.stopped = state["stopped"]

    def _read_measure(self, metrics: Mapping[str, float]) -> float:
        name = (self._metric or "").removeprefix("eval_")
        for found in (name, f"eval_{name}"):
            if found in metrics:
                return float(metrics[found])
        raise RecipeInvalid(
            "the evaluation does not measure metric_for_best_model",
            check="trainer.metric_for_best_model",
            got=self._metric,
            expected=" or ".join(sorted(metrics)) or "a phase that evaluates, and test records",
        )
