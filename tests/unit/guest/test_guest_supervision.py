"""A run is started again by a process that never held a key."""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import signal
import stat
import struct
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from polling import wait_until
from variants import variants

from sealtrain.client.errors import BrokerUnreachable
from sealtrain.consortium.errors import ApprovalsMissing
from sealtrain.errors import AcceleratorUnreachable, SealtrainError
from sealtrain.guest.errors import RunStopped
from sealtrain.guest.run_end import Outcome
from sealtrain.guest.sandbox.seccomp import refuse_calls
from sealtrain.guest.signals import SAME_SECONDS, softly
from sealtrain.guest.supervision import Beside, Endurance, supervise
from sealtrain.release.errors import DatasetWithdrawn
from sealtrain.sealing.errors import RecordInvalid
from sealtrain.training.errors import PeerUnreachable, RankLost
from sealtrain_together.errors import DealerUnreachable, TooFewParties

pytestmark = pytest.mark.long

MISSING = ApprovalsMissing("not renewed", check="approvals", owner="clinic-c", hint="resume")


def done(steps: int, out: Path = Path("elsewhere")) -> Outcome:
    return Outcome(
        run_id="ab" * 16,
        simulated=True,
        steps=steps,
        metrics={"loss": 0.5, "perplexity": None},
        history=[{"step": 1, "loss": 0.75}],
        model=out / "model",
        manifest=out / "manifest.json",
    )


class Story(Beside):
    """Attempts at one run, counted in its folder, since each has a process of its own."""

    def __init__(self, out: Path, *chapters: Any, checkpoints: bool = False) -> None:
        self.out, self.chapters, self.checkpoints = out, chapters, checkpoints
        (out / "checkpoints").mkdir(parents=True)
        (out / "run.json").write_text("{}")
        self.waited: list[tuple[str, float]] = []
        self.now = 1.0

    def attempt(self, _stored: Any = None) -> Any:
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

    def told(
        self,
        seconds: float = 5.0,
        *,
        monotonic: Callable[[], float] | None = None,
        **more: Any,
    ) -> Any:
        return supervise(
            self.attempt,
            self.attempt,
            out=self.out,
            endures=Endurance(seconds=seconds, first_pause=0.01, **more),
            beside=self,
            monotonic=monotonic or (lambda: self.now),
            sleep=self.sleep,
        )

    def waits(self, error: SealtrainError, seconds: float) -> None:
        self.waited.append((error.code, seconds))

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_it_asks_again_in_new_processes_until_the_keys_are_released(tmp_path: Path) -> None:
    gone = BrokerUnreachable("gone", check="broker")
    story = Story(tmp_path, MISSING, MISSING, gone, done(7))
    assert story.told() == done(7, tmp_path)
    assert story.waited == [
        ("approvals-missing", 0.01),
        ("approvals-missing", 0.02),
        ("broker-unreachable", 0.04),
    ]
    processes = [*story.processes, os.getpid()]
    assert len(set(processes)) == 5


@pytest.mark.claim("C275")
@pytest.mark.parametrize(
    "kind",
    variants(
        [AcceleratorUnreachable, DealerUnreachable, PeerUnreachable, TooFewParties],
        each_time=[AcceleratorUnreachable, TooFewParties],
    ),
)
def test_it_waits_for_the_machines_of_others_as_long_as_it_was_told(
    tmp_path: Path, kind: type[SealtrainError]
) -> None:
    gone = kind("gone")
    story = Story(tmp_path / "back", gone, gone, done(7))
    assert story.told(seconds=5.0).steps == 7
    assert [code for code, _ in story.waited] == [kind.code] * 2
    with pytest.raises(kind):
        Story(tmp_path / "away", gone).told(seconds=5.0)
    with pytest.raises(kind):
        Story(tmp_path / "not told to", gone, done(7)).told(seconds=0.0)


@pytest.mark.claim("C64")
def test_nothing_of_the_run_is_left_in_the_process_that_waits(tmp_path: Path) -> None:
    held: list[str] = []
    story = Story(tmp_path, lambda: held.append("key") or done(len(held)))
    assert story.told().steps == 1
    assert held == []


def told_to_end() -> Any:
    """Tells the supervisor to end, and does what the run does then."""

    def softly(_number: int, _frame: object) -> None:
        raise RunStopped("told to end", check="signal")

    signal.signal(signal.SIGTERM, softly)
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(20)
    raise AssertionError("the signal was not passed on")


def test_it_passes_on_that_it_is_told_to_end_and_starts_no_other_process(tmp_path: Path) -> None:
    story = Story(tmp_path, told_to_end, done(1))
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(RunStopped) as caught:
        story.told(restarts=3)
    assert caught.value.check == "signal"
    assert len(story.processes) == 1
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_while_the_process_starts_is_passed_on_to_it(tmp_path: Path) -> None:
    """A thread of a library takes it, although the main one blocks it then."""
    rest, starts_slowly = threading.Event(), [True]
    thread = threading.Thread(target=rest.wait)
    thread.start()
    os.register_at_fork(after_in_parent=lambda: starts_slowly and time.sleep(0.3))
    try:
        story = Story(tmp_path, told_to_end, done(1))
        with pytest.raises(RunStopped, check=carries(check="signal")):
            story.told(restarts=3)
        assert len(story.processes) == 1
    finally:
        starts_slowly.clear()
        rest.set()
        thread.join()


def test_a_process_that_does_not_heed_the_signal_is_not_started_again(tmp_path: Path) -> None:
    def dies() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(20)

    story = Story(tmp_path, dies, done(1))
    with pytest.raises(RankLost):
        story.told(restarts=3)
    assert len(story.processes) == 1


def test_one_signal_to_the_whole_group_is_one_request_to_end(tmp_path: Path) -> None:
    """The process gets it directly and from the supervisor, in any order and in between."""
    asked: list[str] = []

    def works() -> None:
        with softly(lambda: asked.append("end")):
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getppid(), signal.SIGTERM)
            os.kill(os.getppid(), signal.SIGTERM)
            time.sleep(0.5)  # until the supervisor has passed on what it would
            os.kill(os.getpid(), signal.SIGTERM)
            if asked == ["end"]:
                raise RunStopped("told to end", check="signal")
        raise AssertionError(asked)

    story = Story(tmp_path, works, done(1))
    with pytest.raises(RunStopped):
        story.told(restarts=3)
    assert len(story.processes) == 1


def test_a_later_signal_kills_a_process_that_goes_on(tmp_path: Path) -> None:
    now = mmap.mmap(-1, 8)  # seconds, shared with the process

    def works() -> None:
        asked: list[int] = []
        with softly(lambda: asked.append(now[0]), monotonic=lambda: 0.0):
            os.kill(os.getppid(), signal.SIGTERM)
            wait_until(lambda: asked, 20)
            now[0] = int(SAME_SECONDS)
            os.kill(os.getppid(), signal.SIGTERM)
            time.sleep(20)

    story = Story(tmp_path, works, done(1))
    with pytest.raises(RankLost):
        story.told(restarts=3, monotonic=lambda: float(now[0]))
    assert len(story.processes) == 1


@pytest.mark.parametrize("later", [False, True])
def test_a_run_without_a_supervisor_counts_requests_too(later: bool) -> None:
    program = textwrap.dedent(
        f"""
        import os, signal
        from sealtrain.guest.signals import SAME_SECONDS, softly
        asked, now = [], [0.0]
        with softly(lambda: asked.append("end"), monotonic=lambda: now[0]):
            for _ in range(3):
                os.kill(os.getpid(), signal.SIGTERM)
            if {later}:
                now[0] += SAME_SECONDS
                os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)  # late, while the process leaves
        print(asked)
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == (-signal.SIGTERM if later else 0)
    assert done.stdout.strip() == ("" if later else "['end']")


def test_a_group_that_is_told_to_end_before_the_run_trains_leaves_as_with_ctrl_c(
    tmp_path: Path,
) -> None:
    def waits() -> None:
        try:
            os.kill(os.getppid(), signal.SIGTERM)
            time.sleep(20)
        finally:  # what is left in order meanwhile
            os.kill(os.getpid(), signal.SIGTERM)
            (tmp_path / "left-in-order").touch()

    story = Story(tmp_path, waits, done(1))
    with pytest.raises(KeyboardInterrupt):
        story.told(restarts=3)
    assert len(story.processes) == 1
    assert (tmp_path / "left-in-order").exists()


def test_it_ends_when_told_so_in_a_pause(tmp_path: Path) -> None:
    story = Story(tmp_path, MISSING)
    story.sleep = lambda _seconds: os.kill(os.getpid(), signal.SIGTERM)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        story.told()
    assert len(story.processes) == 1


def test_it_gives_up_with_the_last_refusal(tmp_path: Path) -> None:
    story = Story(tmp_path, MISSING)
    with pytest.raises(ApprovalsMissing) as caught:
        story.told(seconds=0.2)
    assert (caught.value.owner, caught.value.hint, caught.value.exit_code) == (
        "clinic-c", "resume", 3
    )  # fmt: skip
    pauses = [0.01, 0.02, 0.04, 0.08, 0.05]
    assert story.waited == [("approvals-missing", pytest.approx(pause)) for pause in pauses]


def test_the_limit_counts_anew_once_the_run_got_further(tmp_path: Path) -> None:
    story = Story(tmp_path, *[MISSING] * 6, done(1), checkpoints=True)
    assert story.told(seconds=0.005).steps == 1
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


def test_the_first_keys_of_a_run_are_waited_for_on_request(tmp_path: Path) -> None:
    story = Story(tmp_path, MISSING, done(3))
    (tmp_path / "run.json").unlink()
    assert story.told(before_run=True).steps == 3
    assert story.waited == [("approvals-missing", 0.01)]


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_is_killed_is_no_lapse(tmp_path: Path) -> None:
    story = Story(tmp_path, killed)
    with pytest.raises(RankLost):
        story.told()
    assert len(story.processes) == 1


def test_a_process_that_is_killed_is_started_again_so_often(tmp_path: Path) -> None:
    story = Story(tmp_path, killed, killed, done(5))
    assert story.told(restarts=2).steps == 5
    assert story.waited == [("rank-lost", 0.01), ("rank-lost", 0.02)]


def test_a_process_that_dies_before_its_next_checkpoint_each_time_is_given_up(
    tmp_path: Path,
) -> None:
    story = Story(tmp_path, killed)
    with pytest.raises(RankLost):
        story.told(restarts=2)
    assert len(story.processes) == 3
    assert set(story.waited) == {("rank-lost", 0.01), ("rank-lost", 0.02)}


class Keeping(Story):
    """Has a checkpoint in its store a while after it was asked for it."""

    stores = True
    asked = 0

    def has_stored(self, counter: int) -> bool:
        self.asked += 1
        return counter == 4 and self.asked > 1


def test_the_run_learns_when_its_checkpoint_is_in_the_store(tmp_path: Path) -> None:
    def work(stored: Callable[[int, float], bool]) -> Outcome:
        return done(1000 + stored(4, 20.0))

    story = Keeping(tmp_path)
    endures = Endurance(seconds=0)
    assert supervise(work, work, out=tmp_path, endures=endures, beside=story).steps == 1001


def test_the_run_goes_on_when_its_checkpoint_is_not_in_the_store_in_time(tmp_path: Path) -> None:
    def work(stored: Callable[[int, float], bool]) -> Outcome:
        return done(1000 + stored(5, 0.05))

    story = Keeping(tmp_path)
    endures = Endurance(seconds=0)
    assert supervise(work, work, out=tmp_path, endures=endures, beside=story).steps == 1000


def open_pipes() -> list[int]:
    """Numbers of this process's open pipes and sockets."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(entry.readlink()).startswith(("pipe:", "socket:")):
                found.append(int(entry.name))
    return found


class Trap:
    """What a script could send instead of an outcome, were its bytes taken for objects."""

    def __init__(self, there: Path) -> None:
        self.there = there

    def __reduce__(self) -> Any:
        return Path.touch, (self.there,)


@pytest.mark.parametrize("said", ["pickle", "json"])
@pytest.mark.claim("C134")
def test_nothing_that_the_runs_process_says_runs_in_the_supervisor(
    said: str, tmp_path: Path
) -> None:
    there, before = tmp_path / "escaped", open_pipes()
    data = pickle.dumps(Trap(there)) if said == "pickle" else b'{"outcome": "x"}'

    def work(_stored: Any) -> Outcome:
        for number in set(open_pipes()) - set(before):
            with contextlib.suppress(OSError):
                os.write(number, struct.pack("!i", len(data)) + data)
        os._exit(0)

    endures = Endurance(seconds=0)
    with pytest.raises(SealtrainError):
        supervise(work, work, out=tmp_path, endures=endures, beside=Beside())
    assert not there.exists()


class Ticking(Beside):
    """Counts what the supervisor does beside a run."""

    stores = True

    def __init__(self) -> None:
        self.ticks = 0

    def tick(self) -> None:
        self.ticks += 1

    def has_stored(self, counter: int) -> bool:
        return True


HALVES = {
    "a header without bytes": struct.pack("!i", 8),
    "half a header": b"\0\0",
    "half a message": struct.pack("!i", 8) + b"1234",
    "a longer form of the header": struct.pack("!i", -1) + struct.pack("!Q", 8),
    "a message that is too long": struct.pack("!i", 1 << 30),
    "a length below zero": struct.pack("!i", -5),
}


@pytest.mark.parametrize(
    "half", variants(HALVES, each_time=["half a header", "a longer form of the header"])
)
@pytest.mark.claim("C64")
def test_a_message_that_never_ends_holds_no_supervisor(half: str, tmp_path: Path) -> None:
    before, beside = open_pipes(), Ticking()

    def work(_stored: Any) -> Outcome:
        for number in set(open_pipes()) - set(before):
            with contextlib.suppress(OSError):
                os.write(number, HALVES[half])
        while True:  # killed, not waited for
            time.sleep(1.0)

    endures = Endurance(seconds=0, message_seconds=2.5, end_seconds=0.1)
    with pytest.raises(RankLost):
        supervise(work, work, out=tmp_path, endures=endures, beside=beside)
    if half in ("a header without bytes", "half a header", "half a message"):
        assert beside.ticks >= 1  # until it was too late


@pytest.mark.claim("C64")
def test_a_process_that_closes_its_pipes_and_lives_on_is_killed(tmp_path: Path) -> None:
    before = open_pipes()

    def work(_stored: Any) -> Outcome:
        for number in set(open_pipes()) - set(before):
            os.close(number)
        while True:
            time.sleep(1.0)

    endures = Endurance(seconds=0, end_seconds=0.1)
    with pytest.raises(RankLost):
        supervise(work, work, out=tmp_path, endures=endures, beside=Beside())


@pytest.mark.claim("C64")
def test_a_process_that_reads_no_answer_holds_no_supervisor(tmp_path: Path) -> None:
    before, beside = open_pipes(), Ticking()

    def work(_stored: Any) -> Outcome:
        asks = list(set(open_pipes()) - set(before))
        until = time.monotonic() + 3.0
        while time.monotonic() < until:
            for number in asks:
                with contextlib.suppress(OSError):
                    if stat.S_ISSOCK(os.fstat(number).st_mode):
                        os.write(number, struct.pack("!i", 8) + (7).to_bytes(8))
        return done(7)

    outcome = supervise(work, work, out=tmp_path, endures=Endurance(seconds=0), beside=beside)
    assert outcome.steps == 7


VICTIM = """
import signal, sys, time
from pathlib import Path
from sealtrain.guest.supervision import Beside, Endurance, supervise
# A shell that starts these tests in the background leaves them deaf to Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
out = Path(sys.argv[1])
def work(_):
    import os
    (out / "child").write_text(str(os.getpid()))
    time.sleep(60)
try:
    supervise(work, work, out=out, endures=Endurance(seconds=60), beside=Beside())
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
    child = int(wait_until(lambda: (tmp_path / "child").is_file() and text_of(tmp_path / "child")))
    (os.killpg if group else os.kill)(process.pid, number)
    _, said = process.communicate(timeout=20)
    assert (process.returncode, said) == (code, "")
    wait_until(lambda: not Path(f"/proc/{child}/stat").exists() or "Z" in stat_of(child))


def text_of(path: Path) -> str:
    return path.read_text()


def stat_of(process: int) -> str:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


@pytest.mark.claim("C542")
def test_what_a_run_forked_ends_with_it(tmp_path: Path) -> None:
    read, write = os.pipe()

    def forks() -> Outcome:
        """What a script can do: a child of a child that heeds nothing."""
        if refuse_calls() and os.fork() == 0:
            with contextlib.suppress(PermissionError):  # a session of its own is refused
                os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if os.fork() == 0:
                os.write(write, f"{os.getpid()}\n".encode())
                time.sleep(3600)
            os._exit(0)
        time.sleep(0.2)
        return done(1)

    with os.fdopen(read) as said:
        Story(tmp_path / "run", forks).told()
        os.close(write)
        pids = [int(line) for line in said]
    if not pids:
        pytest.skip("this kernel has no filter of system calls")
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)
