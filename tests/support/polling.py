"""Waiting for what happens in another thread or process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

_POLL_SECONDS = 0.01


def wait_until(condition: Callable[[], Any], seconds: float = 120.0) -> Any:
    """Return the first true value of ``condition``.

    Args:
        condition: Asked again and again; what it raises ends the wait.
        seconds: How long it may take.

    Raises:
        AssertionError: The condition did not hold in time.
    """
    until = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < until, f"waited {seconds:.0f} s in vain"
        time.sleep(_POLL_SECONDS)
    return value
