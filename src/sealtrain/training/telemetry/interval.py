"""Averages over an interval between two logs that several processes shared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["OpenInterval", "mean_since"]

_LATEST = frozenset({"epoch", "grad_norm", "learning_rate", "num_input_tokens_seen", "num_tokens"})
"""Logged values that are no averages."""


@dataclass(frozen=True, slots=True)
class OpenInterval:
    """The steps after ``since`` up to ``until``, which no log has closed yet.

    Attributes:
        since: Step of the log before, 0 without one.
        until: Step at which the process before stopped, above ``since``.
        values: What a log at ``until`` would have said.
    """

    since: int
    until: int
    values: dict[str, float]

    def closed(self, later: Mapping[str, Any], step: int) -> dict[str, float]:
        """What a log of the whole interval says.

        The parts were summed apart, so the last digit of a float32 sum may be another.

        Args:
            later: What a log says of the steps after ``until``.
            step: Where it closes, above ``until``.
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
