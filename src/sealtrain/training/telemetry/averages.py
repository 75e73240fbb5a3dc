"""Averages of reported values: over the steps since the last report, and over all ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class Averages:
    """Sums and counts by name."""

    def __init__(self) -> None:
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._counts: defaultdict[str, int] = defaultdict(int)

    def add(self, values: Mapping[str, float]) -> None:
        """Take one measurement of each name."""
        for name, value in values.items():
            self._sums[name] += value
            self._counts[name] += 1

    def state(self) -> dict[str, dict[str, float]]:
        """Plain data for ``restore``: another process can continue the interval exactly."""
        return {"sums": dict(self._sums), "counts": dict(self._counts)}

    def restore(self, state: Mapping[str, Mapping[str, float]]) -> None:
        """Continue the interval that ``state`` was taken of."""
        self._sums.update(state["sums"])
        self._counts.update({name: int(count) for name, count in state["counts"].items()})

    def close(self) -> dict[str, float]:
        """Return the averages so far, and begin again."""
        averages = {name: total / self._counts[name] for name, total in self._sums.items()}
        self._sums.clear()
        self._counts.clear()
        return averages


_LATEST = frozenset({"epoch", "grad_norm", "learning_rate", "num_input_tokens_seen", "num_tokens"})
"""Logged values that are not averages."""


@dataclass(frozen=True, slots=True)
class OpenInterval:
    """The steps after ``since`` up to ``until``, which no log has closed yet.

    Attributes:
        since: Step of the previous log, 0 without one.
        until: Step at which the previous process stopped, above ``since``.
        values: Values of a log at ``until``.
    """

    since: int
    until: int
    values: dict[str, float]

    def close(self, later: Mapping[str, Any], step: int) -> dict[str, float]:
        """Values of a log over the whole interval.

        The parts were summed apart, so the last digit of a float32 sum may differ.

        Args:
            later: Values of a log over the steps after ``until``.
            step: Step at which the interval closes, above ``until``.
        """
        steps, more = self.until - self.since, step - self.until
        return {
            name: (before * steps + float(later[name]) * more) / (steps + more)
            for name, before in self.values.items()
            if name in later and name not in _LATEST
        }


def mean_since(logged: float, step: int, since: int) -> float:
    """Mean loss of the steps after ``since``, from a mean that divided by all ``step`` steps.

    The sum was a float32 number, so rounding to that type finds it exactly.
    """
    import numpy as np

    return float(np.float32(logged * step)) / (step - since)
