"""The stand-in for the interpreter answers as it does, and ends with what it stands for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from polling import wait_until
from processes import runs
from stage import interpreter
from warm import WARM, light, process_of
from warm_places import VARIABLE

pytestmark = pytest.mark.skipif(not WARM, reason="commands are started anew")

LEAVES = """\
import atexit, sys
atexit.register(print, "last")
print(sys.argv[1:], sys.stdin.read())
sys.exit(3)
"""
HELD = """\
import os, sys
with open(sys.argv[1] + ".new", "w") as file:
    file.write(str(os.getpid()))
os.rename(sys.argv[1] + ".new", sys.argv[1])
sys.stdin.read()
"""
HOLDS = f"""\
import time
from pathlib import Path
from warm import Warm
print(Path(Warm("toy", {HELD!r}, alone=False, given={{}}).address).read_text(), flush=True)
time.sleep(60)
"""
WAITS = """\
import os, time
print(os.getpid(), flush=True)
time.sleep(60)
"""


def test_it_answers_as_the_interpreter_does(tmp_path: Path) -> None:
    script = tmp_path / "leaves.py"
    script.write_text(LEAVES)
    for words in (
        ["-m", "sealtrain", "--version"],
        ["-P", "-m", "sealtrain", "explain", "approvals-missing", "--json"],
        ["-c", "import sys; print(sys.argv); sys.exit(7)", "a"],
        [str(script), "a", "b"],
    ):
        answers = [
            subprocess.run([python, *words], input="typed", capture_output=True, text=True)
            for python in (interpreter(trains=False), sys.executable)
        ]
        own, real = [(done.returncode, done.stdout) for done in answers]
        assert own == real


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_its_command_ends_with_it(tmp_path: Path, number: signal.Signals) -> None:
    script = tmp_path / "waits.py"
    script.write_text(WAITS)
    command = [interpreter(trains=False), str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as outside:
        assert outside.stdout is not None
        inside = int(outside.stdout.readline())
        # The command may speak before its outside has noted whose it is.
        wait_until(lambda: process_of(outside.pid) == inside)
        assert inside != outside.pid
        outside.send_signal(number)
        assert outside.wait(20) == -number
        wait_until(lambda: not Path(f"/proc/{inside}").exists())


def test_another_worker_finds_the_same_warm_process() -> None:
    command = [sys.executable, "-c", "from warm import light; print(light().address)"]
    done = subprocess.run(command, capture_output=True, text=True, env=surroundings())
    assert done.stdout.strip() == light().address


def test_a_warm_process_ends_with_the_one_that_holds_it(tmp_path: Path) -> None:
    own = {name: value for name, value in surroundings().items() if name != VARIABLE}
    command = [sys.executable, "-c", HOLDS]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=own | {"TMPDIR": str(tmp_path)}
    ) as holder:
        assert holder.stdout is not None
        held = psutil.Process(int(holder.stdout.readline()))
        assert runs(held)
        holder.kill()
        wait_until(lambda: not runs(held))


def surroundings() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
