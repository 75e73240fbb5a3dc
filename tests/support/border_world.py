"""Runs a job of ``border_victim`` in a process of its own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from remains import ended


def started(
    folder: Path, job: str, *modes: str, listener: int = 9
) -> subprocess.CompletedProcess[str]:
    """The ended process; its run's folder is ``folder/run``, ``folder/outside`` is not its own."""
    (folder / "run").mkdir(exist_ok=True)
    where = {"LISTENER": str(listener), "TMPDIR": str(folder)}
    victim = "border_victim", folder / "run", job
    return ended(*victim, *modes, timeout=240, forked=True, **where)


def answer_of(folder: Path, job: str, *modes: str, listener: int = 9) -> dict[str, Any]:
    """What a job found, and how the border was held."""
    done = started(folder, job, *modes, listener=listener)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
