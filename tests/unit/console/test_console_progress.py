"""How far a run has come: by its file alone, and without an end that nothing shows."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sealtrain_console.web.progress import Progresses, RunProgress, in_hours

pytestmark = pytest.mark.claim("C691")
START = 1_790_000_000
RUN = {
    "version": 1,
    "run_id": "7e" * 16,
    "lock": "recipe.lock.json",
    "platform": "simulator",
    "guest": "guest.sock",
    "collateral": None,
    "gpu_collateral": None,
    "brokers": [],
    "data": [],
    "base": ".",
}


class Run:
    """A folder of a run that goes on, and a console that watches it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = START
        self.progresses = Progresses(lambda: self.now)
        (folder / "run.json").write_text(json.dumps(RUN))
        self.lock({"recipe": {"trainer": {"max_steps": 300}}})

    def lock(self, document: object) -> None:
        (self.folder / "recipe.lock.json").write_text(json.dumps(document))

    def write(self, *steps: int, after: int = 0, rest: str = "") -> RunProgress:
        """The file with these steps, written so many seconds later, and what is said of it."""
        self.now += after
        lines = [json.dumps({"step": step, "values": {"loss": 1.0}}) + "\n" for step in steps]
        return self.write_text("".join(lines) + rest)

    def write_text(self, text: str) -> RunProgress:
        file = self.folder / "metrics.jsonl"
        file.write_text(text)
        os.utime(file, (self.now, self.now))
        return self.progresses.of(self.folder)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_step_rate_and_remaining_time_come_from_two_looks(run: Run) -> None:
    assert run.progresses.of(run.folder) == RunProgress(step=0, steps=300)
    first = run.write(10)
    assert (first.step, first.steps, first.rate, first.remaining) == (10, 300, None, None)
    second = run.write(10, 60, after=25)
    assert (second.step, second.rate, second.remaining) == (60, 2.0, 120)
    assert second.written == run.now
    # A look at which nothing came changes neither.
    run.now += 20
    assert run.progresses.of(run.folder) == second


def test_a_file_that_stands_still_has_neither_rate_nor_end(run: Run) -> None:
    run.write(10)
    run.write(60, after=25)
    run.now += 301
    quiet = run.progresses.of(run.folder)
    assert (quiet.step, quiet.quiet, quiet.rate, quiet.remaining) == (60, True, None, None)


@pytest.mark.parametrize("steps", [(), (3,)])
def test_a_file_that_is_cut_or_begins_anew_has_no_rate(steps: tuple[int, ...], run: Run) -> None:
    run.write(10)
    assert run.write(60, after=25).rate is not None
    anew = run.write(*steps, after=5)
    assert (anew.step, anew.rate) == (max(steps, default=0), None)


def test_lines_that_say_no_steps_are_passed_over(run: Run) -> None:
    assert run.write(7, rest='{"step": 9, "values"').step == 7
    assert run.write(7, rest='{"step": -1, "values": {}}\n[1]\n{"step": "8"}\n').step == 7
    assert run.write(7, rest="[" * 5000 + "\n").step == 7
    assert run.write_text("x" * 100_000).step == 0


@pytest.mark.parametrize(
    "lock", [[], {}, {"recipe": {"trainer": {"max_steps": "many"}}}, {"recipe": 3}]
)
def test_a_lock_of_another_form_has_no_number_of_steps(lock: object, run: Run) -> None:
    run.lock(lock)
    assert run.write(5).steps is None


def test_a_lock_that_is_gone_or_a_pipe_has_no_number_of_steps(run: Run, tmp_path: Path) -> None:
    (run.folder / "recipe.lock.json").unlink()
    os.mkfifo(run.folder / "recipe.lock.json")
    assert run.write(5).steps is None
    (run.folder / "run.json").unlink()
    assert Progresses(lambda: START).of(run.folder).steps is None
    assert Progresses(lambda: START).of(tmp_path / "nowhere") == RunProgress(step=0)


def test_a_step_behind_the_last_has_no_end(run: Run) -> None:
    run.write(10)
    past = run.write(301, after=10)
    assert (past.steps, past.remaining) == (None, None)


def test_times_are_told_in_the_unit_that_people_use() -> None:
    told = [in_hours(seconds).split()[-1] for seconds in (0, 40, 600, 7200, 400_000)]
    assert told == ["s", "s", "min", "h", "days"]
