"""Runs a job of ``border_victim`` in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

VICTIM = Path(__file__).with_name("border_victim.py")


def started(
    folder: Path, job: str, *modes: str, listener: int = 9
) -> subprocess.CompletedProcess[str]:
    """The ended process; its run's folder is ``folder/run``, ``folder/outside`` is not its own."""
    (folder / "run").mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, VICTIM, folder / "run", job, *modes],
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join(sys.path),
            "LISTENER": str(listener),
            "TMPDIR": str(folder),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
    )


def answer_of(folder: Path, job: str, *modes: str, listener: int = 9) -> dict[str, Any]:
    """What a job found, and how the border was held."""
    done = started(folder, job, *modes, listener=listener)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
