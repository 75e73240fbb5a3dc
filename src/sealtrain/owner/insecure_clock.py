"""A clock that a file sets, for rehearsals: days pass in seconds. It proves nothing about time.

Only a scheduler of a recipe that runs on the simulator alone takes one. Signatures, leases and
approvals go by the machine's own clock all the same: only due times are read from this one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sealtrain.base.clock import Clock, from_rfc3339, system_clock
from sealtrain.base.files import read_regular
from sealtrain.errors import DataInvalid, UsageError

if TYPE_CHECKING:
    from sealtrain.recipe.lockfile import Lock

_MAX_BYTES: Final = 64
_POLL_SECONDS: Final = 0.25
_LONGEST_SECONDS: Final = 300


def clock_of(insecure_file: Path | None) -> Clock:
    """The clock of due times: the machine's, or one that a file sets.

    Args:
        insecure_file: Its whole content is a time, RFC 3339.
    """
    return system_clock if insecure_file is None else lambda: _read(insecure_file)


def require_simulated(lock: Lock) -> None:
    """Return if a recipe may take a clock that a file sets.

    Raises:
        UsageError: It may run elsewhere than on the simulator.
    """
    if lock.recipe.hardware.platforms != ("simulator",):
        raise UsageError(
            "a simulated clock is for recipes that run on the simulator alone",
            check="--insecure-simulated-clock",
            got=", ".join(lock.recipe.hardware.platforms),
            expected="simulator",
        )


def waiting(insecure_file: Path | None) -> Callable[[float], None]:
    """Waits for at most so many seconds, less where the clock may have been set meanwhile."""
    longest = _LONGEST_SECONDS if insecure_file is None else _POLL_SECONDS
    return lambda seconds: time.sleep(max(0.05, min(seconds, longest)))


def _read(file: Path) -> int:
    try:
        return from_rfc3339(read_regular(file, _MAX_BYTES).decode("ascii").strip())
    except (UnicodeDecodeError, DataInvalid) as error:
        raise UsageError(
            "the file of the simulated clock holds no time", check="--insecure-simulated-clock"
        ) from error
