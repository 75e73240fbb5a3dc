"""A cap on how often the broker does what costs it disk or a quote."""

from __future__ import annotations

import threading

from sealtrain.errors import LimitExceeded

__all__ = ["Throttle"]


class Throttle:
    """At most so many calls in any calendar minute of the broker's clock. Thread-safe."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._lock = threading.Lock()
        self._minute = -1
        self._taken = 0

    def take(self, now: int) -> None:
        """Count one call.

        Args:
            now: Seconds since the epoch.

        Raises:
            LimitExceeded: This minute is used up.
        """
        with self._lock:
            if now // 60 != self._minute:
                self._minute, self._taken = now // 60, 0
            if self._taken >= self._per_minute:
                raise LimitExceeded(
                    "the broker has answered all it answers in one minute",
                    check="rate",
                    got=f"over {self._per_minute} a minute",
                    expected=f"at most {self._per_minute} a minute",
                    hint="try again in a minute",
                )
            self._taken += 1
