"""The metrics that may leave the guest: those that the release policy names, rounded."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sealtrain.recipe.terms import ReleasePolicy

Release = Callable[[int, dict[str, float | None]], None]


class MetricGate:
    """Releases the named metrics and counts the others.

    Attributes:
        withheld: How often each other metric was offered. Names only.
        besides: Reads every offer and adds measurements to it; stays inside the guest.
    """

    def __init__(self, policy: ReleasePolicy, *release: Release) -> None:
        """Guard ``release`` with ``policy``."""
        self._policy = policy
        self._release = release
        self._left_at: dict[str, int] = {}
        self.withheld: Counter[str] = Counter()
        self.besides: Callable[[int, Mapping[str, float]], Mapping[str, float]] | None = None

    def follow(self, history: Iterable[Mapping[str, Any]]) -> None:
        """Release nothing again that a run released before it was resumed.

        Args:
            history: ``{"step", "values"}`` of what was released.
        """
        for point in history:
            for name in point["values"]:
                self._left_at[name] = max(self._left_at.get(name, -1), point["step"])

    def offer(self, step: int, values: Mapping[str, float]) -> dict[str, float | None]:
        """Release the metrics that may leave at this step.

        Args:
            step: Optimizer step.
            values: Measurements by name.

        Returns:
            The released metrics. A metric leaves once a step, even if it is offered again, also
            after other steps: what counts steps may be a stranger's code.
        """
        if self.besides is not None:
            values = {**self.besides(step, values), **values}
        allowed = self.filter(values)
        if step % self._policy.every_n_steps:
            return {}
        allowed = {
            name: value for name, value in allowed.items() if self._left_at.get(name, -1) < step
        }
        if allowed:
            self._left_at |= dict.fromkeys(allowed, step)
            for told in self._release:
                told(step, allowed)
        return allowed

    def filter(self, values: Mapping[str, float]) -> dict[str, float | None]:
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
