"""Until when the keys of a run may be used, in every process that was forked from the run.

A lease is measured by two clocks, and the earlier end counts:

- the guest's wall clock, against ``not_after`` of the receipt;
- seconds since the question for it was sent, against the lease's length by the broker's own clock.
  That clock never goes back and goes on while the machine sleeps, so setting the wall clock back
  gains nothing. Setting it forward ends the lease early.

The ends lie in anonymous memory that is shared with forked processes: ranks and readers that
decrypt aside learn of a renewal without being told. Every key of the run is lent under ``require``
(``sealing.datakey``): no key of a lapsed lease is used, whoever holds it.
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

__all__ = ["Lease", "seconds_awake_and_asleep"]

_ENDS: Final = struct.Struct("=dd")


def seconds_awake_and_asleep() -> float:
    """Seconds from a fixed moment; never goes back, counts on while the machine is suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Lease:
    """The lease of one run. Before the first ``extend`` it has ended."""

    def __init__(
        self, clock: Clock, *, elapsed: Callable[[], float] = seconds_awake_and_asleep
    ) -> None:
        """Share the ends with whatever is forked from now on.

        Args:
            clock: The guest's wall clock.
            elapsed: Seconds, never going back.
        """
        self._clock = clock
        self._elapsed = elapsed
        self._ends = mmap.mmap(-1, _ENDS.size)
        self._write(-math.inf, -math.inf)
        self._over = False
        self.seconds = 0.0

    def moment(self) -> float:
        """Now, by the clock that never goes back. Take it before asking for keys or a renewal."""
        return self._elapsed()

    def extend(self, not_after: int, seconds: float, asked: float) -> None:
        """Take the end that a broker gave.

        Args:
            not_after: First second at which the keys must not be used, by the broker's clock.
            seconds: From the broker's decision to that end, by the broker's clock.
            asked: ``moment()`` before the question was sent, so before the decision.
        """
        self.seconds = seconds
        if not self._over:
            self._write(float(not_after), asked + seconds)

    def end(self) -> None:
        """End it now and for good, in all processes: no key is used any more."""
        self._over = True
        self._write(-math.inf, -math.inf)

    def left(self) -> float:
        """Seconds until the end by the clock that is nearer to it; not positive after it."""
        by_wall, by_elapsed = _ENDS.unpack_from(self._ends)
        return min(float(by_wall) - self._clock(), float(by_elapsed) - self._elapsed())

    def require(self) -> None:
        """Return while the keys may be used.

        Raises:
            LeaseStale: They may not be used any longer.
        """
        if self.left() > 0:
            return
        by_wall = _ENDS.unpack_from(self._ends)[0]
        raise LeaseStale(
            "the lease on the keys has ended",
            check="lease",
            got=to_rfc3339(self._clock()),
            expected=f"before {to_rfc3339(int(by_wall))}" if math.isfinite(by_wall) else None,
            hint="sealtrain resume asks for the keys again",
        )

    def _write(self, by_wall: float, by_elapsed: float) -> None:
        # Each end is one aligned word. A reader between the two sees one old and one new end, both
        # of which the broker gave.
        _ENDS.pack_into(self._ends, 0, by_wall, by_elapsed)
