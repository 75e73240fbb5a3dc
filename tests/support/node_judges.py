"""Questions for the second verifier: one process of Node for each driver, as long as the tests.

A process that starts for each test compiles the verifier again: a third of a second, and as much
again until its code is fast.
"""

from __future__ import annotations

import atexit
import json
import subprocess
import tempfile
import threading
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from programs import need

_END_SECONDS = 10


def node() -> str:
    """The path of Node; skips the test on a machine without one that is new enough."""
    return str(need("node")["node"])


def judge(driver: Path, lines: Iterable[str], *, seconds: float = 300) -> list[Any]:
    """What a driver answers to each line.

    Args:
        driver: A module of this folder that reads a line, writes one of JSON, and keeps nothing.
        lines: The questions.
        seconds: How long all answers may take; the process is killed then.
    """
    return _process(driver).ask([*lines], seconds)


class _NodeProcess:
    def __init__(self, driver: Path) -> None:
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115  # as long as the process
        self._process = subprocess.Popen(
            [node(), "--no-warnings", str(driver)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
        )
        atexit.register(self.end)

    def ask(self, lines: list[str], seconds: float) -> list[Any]:
        """The answers; a process that ended is an error, also for the next who asks."""
        assert self._process.stdout is not None
        writer = threading.Thread(target=self._write, args=(lines,), daemon=True)
        watch = threading.Timer(seconds, self._process.kill)
        watch.daemon = True
        writer.start()
        watch.start()
        try:
            answers = [self._process.stdout.readline() for _ in lines]
        finally:
            watch.cancel()
        writer.join(_END_SECONDS)
        self._said.seek(0)
        assert all(answers), self._said.read()[-2000:] or f"no answer after {seconds} s"
        return [json.loads(answer) for answer in answers]

    def _write(self, lines: list[str]) -> None:
        assert self._process.stdin is not None
        try:
            for line in lines:
                assert "\n" not in line
                self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        except OSError:  # it ended: the one who reads says so
            return

    def end(self) -> None:
        """Let it end, as it does when nothing more can be asked."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait(_END_SECONDS)
        self._process.stdout.close()
        self._said.close()


_process = cache(_NodeProcess)
