"""Time as an argument: functions take ``now`` (seconds since 1970), programs pass a ``Clock``."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache

from sealtrain.errors import DataInvalid

Clock = Callable[[], int]
"""Returns the present as whole seconds since 1970-01-01 UTC."""


def system_clock() -> int:
    """The machine's clock, whole seconds since the epoch."""
    return int(time.time())


@lru_cache(maxsize=16)  # many texts name the same second
def to_rfc3339(seconds: int) -> str:
    """``1760000000`` → ``"2025-10-09T08:53:20Z"``."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@lru_cache(maxsize=4096)  # every release parses the same approvals
def from_rfc3339(text: str) -> int:
    """Inverse of ``to_rfc3339``; no other spelling is accepted.

    Raises:
        DataInvalid: Another spelling, or no such date.
    """
    try:
        seconds = int(datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp())
    except ValueError as error:
        raise DataInvalid("not a time", got=text, expected="YYYY-MM-DDTHH:MM:SSZ") from error
    if to_rfc3339(seconds) != text:
        raise DataInvalid("not a time", got=text, expected="YYYY-MM-DDTHH:MM:SSZ")
    return seconds
