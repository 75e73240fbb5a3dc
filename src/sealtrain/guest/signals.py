"""SIGTERM to the processes of a run: the first asks for a checkpoint, a later one ends the process.

A signal to a process group, a control group or a container reaches a process several times: once
directly, and once from each process that passes it on. So a signal counts again only after a while.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

SAME_SECONDS: Final = 2.0
"""Signals that come within this time are one request."""


class Requests:
    """Requests to end, of which each may come as several signals."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Count from none.

        Args:
            monotonic: Clock that counts seconds.
        """
        self._monotonic = monotonic
        self._first: float | None = None

    def __bool__(self) -> bool:
        """Whether there was one."""
        return self._first is not None

    def note_signal(self) -> bool | None:
        """Note a signal: whether it is a later request, ``None`` for the first one once more."""
        now = self._monotonic()
        if self._first is None:
            self._first = now
            return False
        return True if now - self._first >= SAME_SECONDS else None


@contextmanager
def softly(
    end: Callable[[], None], *, monotonic: Callable[[], float] = time.monotonic
) -> Iterator[None]:
    """While inside, SIGTERM calls ``end``, and a later one ends the process.

    In the main thread of a process that serves only the run. Where a signal came, it stays so
    afterwards: the process is about to end.

    Args:
        end: Asks for the end.
        monotonic: Clock that counts seconds: which signals are one request.
    """
    requests = Requests(monotonic)

    def act(number: int, _frame: object) -> None:
        match requests.note_signal():
            case False:
                end()
            case True:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)

    before = signal.signal(signal.SIGTERM, act)
    try:
        yield
    finally:
        if not requests:
            signal.signal(signal.SIGTERM, before)


def interrupt_once(number: int, _frame: object) -> None:
    """Leave as with Ctrl-C; another signal does not disturb that.

    Raises:
        KeyboardInterrupt: Always.
    """
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
