"""Caps on requests that cost the broker disk or a quote: in total and for each caller."""

from __future__ import annotations

import threading
from collections import Counter

from sealtrain.errors import TooManyRequests


class _Minute:
    """Calls of each caller in the current calendar minute of the broker's clock. Thread-safe."""

    def __init__(self, per_minute: int, *, callers: int, problem: str) -> None:
        self._per_minute = per_minute
        self._callers = callers
        self._problem = problem
        self._lock = threading.Lock()
        self._minute = -1
        self._taken: Counter[str] = Counter()

    def take(self, caller: str, now: int) -> None:
        with self._lock:
            if now // 60 != self._minute:
                self._minute, self._taken = now // 60, Counter()
            if caller not in self._taken and len(self._taken) >= self._callers:
                caller = "others"
            if self._taken[caller] >= self._per_minute:
                raise TooManyRequests(
                    self._problem,
                    check="rate",
                    got=f"over {self._per_minute} a minute",
                    expected=f"at most {self._per_minute} a minute",
                    hint="try again in a minute",
                )
            self._taken[caller] += 1


class Throttle:
    """At most so many calls in any calendar minute of the broker's clock. Thread-safe."""

    def __init__(self, per_minute: int) -> None:
        problem = "the broker has reached its cap of answers in one minute"
        self._calls = _Minute(per_minute, callers=1, problem=problem)

    def take(self, now: int) -> None:
        """Count one call.

        Args:
            now: Seconds since the epoch.

        Raises:
            TooManyRequests: This minute is used up.
        """
        self._calls.take("all", now)


class Shares:
    """At most so many calls of each caller in any calendar minute. Thread-safe.

    Args:
        per_minute: Calls of one caller in a minute.
        whose: What tells callers apart, for messages.
        callers: How many are told apart; the others share one.
    """

    def __init__(self, per_minute: int, whose: str, *, callers: int = 65_536) -> None:
        problem = f"this {whose} has reached its cap of requests in one minute"
        self._calls = _Minute(per_minute, callers=callers, problem=problem)

    def take(self, caller: str, now: int) -> None:
        """Count one call.

        Args:
            caller: Name of the caller.
            now: Seconds since the epoch.

        Raises:
            TooManyRequests: This caller has used up this minute.
        """
        self._calls.take(caller, now)
