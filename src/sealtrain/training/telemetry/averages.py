"""Averages of what a run reports, over the steps since it reported last."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

__all__ = ["Account"]


class Account:
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
        """Plain data for ``restore``: an interval can be continued by another process, exactly."""
        return {"sums": dict(self._sums), "counts": dict(self._counts)}

    def restore(self, state: Mapping[str, Mapping[str, float]]) -> None:
        """Continue the interval that ``state`` was taken of."""
        self._sums.update(state["sums"])
        self._counts.update({name: int(count) for name, count in state["counts"].items()})

    def close(self) -> dict[str, float]:
        """Averages so far, and begin again."""
        averages = {name: total / self._counts[name] for name, total in self._sums.items()}
        self._sums.clear()
        self._counts.clear()
        return averages
