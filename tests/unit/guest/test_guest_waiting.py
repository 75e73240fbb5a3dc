"""A lapsed lease is waited for by a process that never held a key."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sealtrain.errors import (
    ApprovalsMissing,
    BrokerUnreachable,
    DatasetWithdrawn,
    RankLost,
    RecordInvalid,
    SealtrainError,
)
from sealtrain.guest.waiting import until_released

MISSING = ApprovalsMissing("not renewed", check="approvals", owner="clinic-c", hint="resume")


class Story:
    """Attempts at one run, counted in its folder, since each has a process of its own."""

    def __init__(self, out: Path, *chapters: Any, checkpoints: bool = False) -> None:
        self.out, self.chapters, self.checkpoints = out, chapters, checkpoints
        (out / "checkpoints").mkdir(parents=True)
        (out / "run.json").write_text("{}")
        self.waited: list[tuple[str, float]] = []
        self.now = 1.0

    def attempt(self) -> Any:
        tries = len(list(self.out.glob("try-*")))
        (self.out / f"try-{tries}-{os.getpid()}").touch()
        if self.checkpoints:
            (self.out / "checkpoints" / f"checkpoint-{tries:08d}-0.sealed").touch()
        chapter = self.chapters[min(tries, len(self.chapters) - 1)]
        if isinstance(chapter, BaseException):
            raise chapter
        return chapter() if callable(chapter) else chapter

    @property
    def processes(self) -> list[int]:
        return [int(path.name.split("-")[2]) for path in sorted(self.out.glob("try-*"))]

    def told(self, seconds: float = 5.0) -> Any:
        return until_released(
            self.attempt,
            self.attempt,
            out=self.out,
            seconds=seconds,
            waits=lambda error, pause: self.waited.append((error.code, pause)),
            first_pause=0.01,
            monotonic=lambda: self.now,
            sleep=self.sleep,
        )

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_it_asks_again_in_new_processes_until_the_keys_are_released(tmp_path: Path) -> None:
    gone = BrokerUnreachable("gone", check="broker")
    story = Story(tmp_path, MISSING, MISSING, gone, "done")
    assert story.told() == "done"
    assert story.waited == [
        ("approvals-missing", 0.01),
        ("approvals-missing", 0.02),
        ("broker-unreachable", 0.04),
    ]
    processes = [*story.processes, os.getpid()]
    assert len(set(processes)) == 5


@pytest.mark.claim("C64")
def test_nothing_of_the_run_is_left_in_the_process_that_waits(tmp_path: Path) -> None:
    held: list[str] = []
    story = Story(tmp_path, lambda: held.append("key") or len(held))
    assert story.told() == 1
    assert held == []


def test_it_gives_up_with_the_last_refusal(tmp_path: Path) -> None:
    story = Story(tmp_path, MISSING)
    with pytest.raises(ApprovalsMissing) as caught:
        story.told(seconds=0.2)
    assert (caught.value.owner, caught.value.hint, caught.value.exit_code) == (
        "clinic-c", "resume", 3
    )  # fmt: skip
    pauses = [0.01, 0.02, 0.04, 0.08, 0.05]
    assert story.waited == [("approvals-missing", pytest.approx(one)) for one in pauses]


def test_the_limit_counts_anew_once_the_run_got_further(tmp_path: Path) -> None:
    story = Story(tmp_path, *[MISSING] * 6, "done", checkpoints=True)
    assert story.told(seconds=0.005) == "done"
    assert [pause for _, pause in story.waited] == pytest.approx([0.005] * 6)


@pytest.mark.parametrize(
    "error",
    [DatasetWithdrawn("for good"), RecordInvalid("a record")],
    ids=lambda error: error.code,
)
def test_what_waiting_does_not_help_is_raised_at_once(
    error: SealtrainError, tmp_path: Path
) -> None:
    story = Story(tmp_path, error)
    with pytest.raises(type(error)):
        story.told()
    assert story.waited == []


def test_a_run_that_never_began_is_not_waited_for(tmp_path: Path) -> None:
    story = Story(tmp_path, MISSING)
    (tmp_path / "run.json").unlink()
    with pytest.raises(ApprovalsMissing):
        story.told()
    assert len(story.processes) == 1


def test_a_process_that_is_killed_is_no_lapse(tmp_path: Path) -> None:
    story = Story(tmp_path, lambda: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(RankLost):
        story.told()


VICTIM = """
import signal, sys, time
from pathlib import Path
from sealtrain.guest.waiting import until_released
# A shell that starts these tests in the background leaves them deaf to Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
out = Path(sys.argv[1])
def work():
    import os
    (out / "child").write_text(str(os.getpid()))
    time.sleep(60)
try:
    until_released(work, work, out=out, seconds=60, waits=lambda *_: None)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize(
    ("number", "group", "code"),
    [
        (signal.SIGINT, True, 130),
        (signal.SIGKILL, False, -signal.SIGKILL),
    ],
    ids=["Ctrl-C at a terminal", "killed"],
)
def test_however_it_ends_no_process_with_keys_stays(
    number: signal.Signals, group: bool, code: int, tmp_path: Path
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", VICTIM, str(tmp_path)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    child = int(wait_for(lambda: (tmp_path / "child").is_file() and text_of(tmp_path / "child")))
    (os.killpg if group else os.kill)(process.pid, number)
    _, said = process.communicate(timeout=20)
    assert (process.returncode, said) == (code, "")
    wait_for(lambda: not Path(f"/proc/{child}/stat").exists() or "Z" in stat_of(child))


def text_of(path: Path) -> str:
    return path.read_text()


def stat_of(process: int) -> str:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def wait_for(condition: Callable[[], Any]) -> Any:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        if value := condition():
            return value
        time.sleep(0.01)
    raise AssertionError("waited in vain")
