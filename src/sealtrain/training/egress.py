"""Which numbers may leave the guest: those the release policy names, rounded, when it says."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping

from sealtrain.recipe.terms import ReleasePolicy

__all__ = ["MetricGate"]

Release = Callable[[int, dict[str, float | None]], None]


class MetricGate:
    """Passes named metrics on and counts what it withholds.

    Attributes:
        withheld: How often each other metric wanted to leave. Names only.
    """

    def __init__(self, policy: ReleasePolicy, release: Release) -> None:
        """Guard ``release`` with ``policy``."""
        self._policy = policy
        self._release = release
        self.withheld: Counter[str] = Counter()

    def offer(self, step: int, values: Mapping[str, float]) -> dict[str, float | None]:
        """Let out what may leave at this step.

        Args:
            step: Optimizer step.
            values: Measurements by name.

        Returns:
            What left.
        """
        allowed = self.filtered(values)
        if step % self._policy.every_n_steps:
            allowed = {}
        if allowed:
            self._release(step, allowed)
        return allowed

    def filtered(self, values: Mapping[str, float]) -> dict[str, float | None]:
        """The named metrics of ``values``, rounded; not-finite ones become null.

        A slash in a trainer's name (``rewards/margins``) is an underscore in a policy's.
        """
        allowed: dict[str, float | None] = {}
        for written, value in values.items():
            name = written.replace("/", "_")
            if name not in self._policy.metrics:
                self.withheld[name] += 1
            elif math.isfinite(value):
                allowed[name] = round(value, self._policy.round_to)
            else:
                allowed[name] = None
        return allowed
