"""A demo that a signal ends leaves no server behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from polling import wait_until
from variants import variants

pytestmark = pytest.mark.long

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


@pytest.mark.parametrize("ending", variants([signal.SIGTERM, signal.SIGKILL], each_time=[]))
def test_no_server_outlives_its_demo(ending: signal.Signals, tmp_path: Path) -> None:
    with (tmp_path / "demo.log").open("wb") as log:
        demo = subprocess.Popen(
            [sys.executable, "-m", "sealtrain", "demo", "--out", str(tmp_path / "out")],
            stdout=log,
            stderr=log,
        )

    def serving() -> dict[psutil.Process, str] | None:
        assert demo.poll() is None
        started = below(demo.pid)
        are_there = all(any(name in words for words in started.values()) for name in _SERVERS)
        return started if are_there else None

    started = wait_until(serving, _WITHIN_S)
    demo.send_signal(ending)
    demo.wait(_WITHIN_S)
    _, left = psutil.wait_procs(list(started), timeout=_GONE_S)
    for process in left:
        process.kill()
    assert left == []
