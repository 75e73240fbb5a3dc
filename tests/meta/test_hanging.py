"""A process that plays no new test for too long ends, and says where its threads are."""

from __future__ import annotations

import faulthandler
import os
import subprocess
import sys
from pathlib import Path

import hanging
import pytest

HANGS = """
import time
from hanging import Watch

def sleeping():
    time.sleep(60)

Watch(0.1, again=0.1).pytest_runtest_logstart()
sleeping()
"""


def test_a_process_that_hangs_ends_and_says_where() -> None:
    folder = Path(hanging.__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", HANGS], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "in sleeping" in done.stderr


def test_the_watchdog_is_set_once_a_minute_and_in_each_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times: list[float] = []
    clock = iter([0, 59, 61, 90, 91])
    monkeypatch.setattr(
        faulthandler, "dump_traceback_later", lambda seconds, **_more: times.append(seconds)
    )
    watch = hanging.Watch(100, monotonic=lambda: next(clock))
    for forks in (0, 0, 0, 0, 1):
        with monkeypatch.context() as patched:
            patched.setattr(os, "getpid", lambda forks=forks: 1 + forks)
            watch.pytest_runtest_logstart()
    assert times == [160, 160, 160]
