"""The lease on the keys of a run, shared by every process that was forked from the run.

The guest measures a lease by two clocks, and the earlier end counts:

- the guest's wall clock, against ``not_after`` of the receipt;
- seconds since the guest sent its request, against the lease's length by the broker's own clock.
  This second clock never goes back and counts on while the machine sleeps, so setting the wall
  clock back gains nothing. Setting it forward ends the lease early.

Both ends lie in anonymous memory that is shared with forked processes, so ranks and prefetch
processes see a renewal without a message. Every key of the run is lent under ``require``
(``sealing.datakey``): no process uses a key of a lapsed lease.
"""

from __future__ import annotations

import math
import mmap
import struct
import time
from collections.abc import Callable
from typing import Final

from sealtrain.base.clock import Clock, to_rfc3339
from sealtrain.errors import LeaseStale

_ENDS: Final = struct.Struct("=dd")


def seconds_awake_and_asleep() -> float:
    """Seconds from a fixed moment; never goes back, counts on while the machine is suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class RunLease:
    """The lease of one run. Before the first ``extend`` it has ended."""

    def __init__(
        self,
        clock: Clock,
        *,
        elapsed: Callable[[], float] = seconds_awake_and_asleep,
        latest: int | None = None,
    ) -> None:
        """Share the ends with every process that is forked from now on.

        Args:
            clock: The guest's wall clock.
            elapsed: Seconds, never going back.
            latest: First second after the retention of the data, by the manifests that the guest
                read. A broker that knows a later manifest may lend for longer, and this end stays:
                the run's manifest names those that the guest read.
        """
        self._latest = latest
        self._clock = clock
        self._elapsed = elapsed
        self._ends = mmap.mmap(-1, _ENDS.size)
        self._write(-math.inf, -math.inf)
        self._over = False
        self.seconds = 0.0

    def moment(self) -> float:
        """Now, by the clock that never goes back. Read it before asking for keys or a renewal."""
        return self._elapsed()

    def extend(self, not_after: int, seconds: float, asked: float) -> None:
        """Set the end that a broker granted.

        Args:
            not_after: First second at which the keys must not be used, by the broker's clock.
            seconds: From the broker's decision to that end, by the broker's clock.
            asked: ``moment()`` before the guest sent its request, so before the decision.
        """
        if self._latest is not None and not_after > self._latest:
            seconds -= not_after - self._latest
            not_after = self._latest
        self.seconds = seconds
        if not self._over:
            self._write(float(not_after), asked + seconds)

    def end(self) -> None:
        """End the lease now and for good: no process uses a key any more."""
        self._over = True
        self._write(-math.inf, -math.inf)

    def seconds_left(self) -> float:
        """Seconds until the end by the clock that reaches it first; not positive after it."""
        by_wall, by_elapsed = _ENDS.unpack_from(self._ends)
        return min(float(by_wall) - self._clock(), float(by_elapsed) - self._elapsed())

    def require(self) -> None:
        """Return if the keys may be used.

        Raises:
            LeaseStale: The lease has ended.
        """
        if self.seconds_left() > 0:
            return
        by_wall = _ENDS.unpack_from(self._ends)[0]
        raise LeaseStale(
            "the lease on the keys has ended",
            check="lease",
            got=to_rfc3339(self._clock()),
            expected=f"before {to_rfc3339(int(by_wall))}" if math.isfinite(by_wall) else None,
            hint="ask the brokers for the keys again: sealtrain resume",
        )

    def _write(self, by_wall: float, by_elapsed: float) -> None:
        # Each end is an aligned word. A reader between the two writes sees an old and a new end,
        # and the broker granted both.
        _ENDS.pack_into(self._ends, 0, by_wall, by_elapsed)
