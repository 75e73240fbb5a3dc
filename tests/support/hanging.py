"""End a process of pytest that hangs where no timeout reaches, with the traces of its threads.

pytest-timeout raises once in a test. What hangs after that, in a teardown, is ended by Python's
faulthandler, whose watchdog is a thread. Pytest has one begin and end with every test, and waits
for both: on a busy machine that takes longer than most tests. Here it is set again once a minute.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import time
from collections.abc import Callable

import pytest

_AGAIN_S = 60.0


def add_option(parser: pytest.Parser) -> None:
    """Let the configuration say how many seconds are too long."""
    parser.addini("hang_seconds", "seconds after which a process that plays no new test ends")


def end_what_hangs(config: pytest.Config) -> None:
    """Watch the tests of this process, and of those forked from it."""
    if seconds := float(config.getini("hang_seconds") or 0):
        config.pluginmanager.register(Watch(seconds), "hanging")


class Watch:
    """A plugin of pytest.

    Args:
        seconds: How long a test may take, its setup and teardown included.
        again: Seconds after which the watchdog is set again; a test may take so many more.
        monotonic: What seconds are counted by.
    """

    def __init__(
        self,
        seconds: float,
        *,
        again: float = _AGAIN_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._until = seconds + again
        self._again = again
        self._monotonic = monotonic
        self._set = (0, 0.0)
        assert sys.__stderr__ is not None
        self._stderr = os.dup(sys.__stderr__.fileno())

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        """Set the watchdog for the test that begins, unless it was set a moment ago."""
        process, at = self._set
        now = self._monotonic()
        if process != os.getpid() or now > at + self._again:
            faulthandler.dump_traceback_later(self._until, exit=True, file=self._stderr)
            self._set = (os.getpid(), now)

    def pytest_sessionfinish(self) -> None:
        """Let the process end in its time."""
        faulthandler.cancel_dump_traceback_later()
