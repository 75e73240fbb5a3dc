"""A demo that a signal ends leaves no server behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

_WITHIN_S = 60
_GONE_S = 10
"""A demo that nothing ends takes longer."""
_SERVERS = ("broker serve", "simulator serve")


def below(demo: int) -> dict[psutil.Process, str]:
    """The processes of a demo, with their command lines."""
    found = {}
    for process in psutil.Process(demo).children(recursive=True):
        try:
            found[process] = " ".join(process.cmdline())
        except psutil.Error:
            continue
    return found


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_no_server_outlives_its_demo(ending: signal.Signals, tmp_path: Path) -> None:
    with (tmp_path / "demo.log").open("wb") as log:
        demo = subprocess.Popen(
            [sys.executable, "-m", "sealtrain", "demo", "--out", str(tmp_path / "out")],
            stdout=log,
            stderr=log,
        )
    until = time.monotonic() + _WITHIN_S
    while True:
        assert demo.poll() is None
        assert time.monotonic() < until, "no server was started"
        started = below(demo.pid)
        if all(any(name in words for words in started.values()) for name in _SERVERS):
            break
        time.sleep(0.05)
    demo.send_signal(ending)
    demo.wait(_WITHIN_S)
    _, left = psutil.wait_procs(list(started), timeout=_GONE_S)
    for process in left:
        process.kill()
    assert left == []
