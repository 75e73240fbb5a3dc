"""The script for a machine with a GPU: what ended is kept, what failed is told and tried again.

An interpreter of the test's own stands in: it answers as the parts do, with the status it is told.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PARTS = {"machine", "border", "bits", "ratio", "delivery", "ranks", "pads", "travelling"}
Play = Callable[[str], tuple[int, int, dict[str, Any]]]
"""Call the script with one part that fails; exit status, programs that ran, what was written."""
STAND_IN = """\
#!/bin/sh
[ "$1" = - ] && exec {python} "$@"
case "$*" in
*"print(torch.cuda.device_count())"*) echo 0; exit 0 ;;
esac
echo x >> {calls}
case "$*" in *{failing}*) echo 'no such device' >&2; exit 3 ;; esac
echo '{{"told": 1}}'
"""


@pytest.fixture
def play(tmp_path: Path, repository: Path) -> Play:
    calls = tmp_path / "calls"

    def run(failing: str) -> tuple[int, int, dict[str, Any]]:
        program = tmp_path / "python"
        program.write_text(STAND_IN.format(python=sys.executable, calls=calls, failing=failing))
        program.chmod(0o755)
        calls.write_text("")
        done = subprocess.run(
            ["bash", str(repository / "tools" / "gpu_check.sh"), str(tmp_path / "out")],
            env={**os.environ, "PYTHON": str(program)},
            capture_output=True,
            timeout=120,
        )
        joined = json.loads((tmp_path / "out" / "gpu_check.json").read_text())
        return done.returncode, len(calls.read_text().splitlines()), joined

    return run


def test_a_part_that_failed_is_told_and_alone_runs_again(play: Play) -> None:
    status, calls, found = play("split.py")
    assert (status, calls) == (1, len(PARTS))
    assert set(found) == PARTS - {"pads"} | {"pads.failed"}
    assert found["pads.failed"]["exit"] == 3
    assert found["pads.failed"]["errors"] == ["no such device"]
    assert found["ratio"]["answer"] == {"told": 1}
    status, calls, found = play("nothing")
    assert (status, calls) == (0, 1)
    assert set(found) == PARTS
