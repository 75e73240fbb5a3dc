"""A run in a process of its own, and the supervisor that starts it again.

The run's process ends when its lease ends, when it is killed, or when the machine does; its memory
is gone then, and checkpoints are sealed. The supervisor starts another process, which asks for the
keys again and resumes bit for bit. The supervisor never holds a key or a record.

The supervisor is outside of the sandbox that the run's process closes around itself. So it takes
plain data from that process and runs nothing that comes from it: a recipe's script is in there. It
waits for nothing that has begun: a message that is not whole in time counts as none. What the run
forked ends with it.

What ends a process decides what happens next:

====================================  ==========================================================
the process ended with                the supervisor
====================================  ==========================================================
a result                              returns it
a refusal that may be taken back, or  pauses, ever longer, and starts it again, until
a service that did not answer         ``Endurance.seconds`` have passed
no answer: killed, or out of memory   starts it again, ``Endurance.restarts`` times
anything else                         raises it
====================================  ==========================================================

Both limits count anew once the run has sealed a newer checkpoint.

SIGTERM ends the run, whatever the process then says: the supervisor passes it on, so that the
process seals a checkpoint, and starts no other one. The process may also get it directly, as when a
whole process group does (``guest.ending``). A later SIGTERM kills the process.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from sealtrain.base.canonical import parse_json
from sealtrain.base.files import system_failure
from sealtrain.base.models import Hex32, StrictModel, load_model
from sealtrain.base.pipes import Messages
from sealtrain.base.processes import end_with_parent
from sealtrain.errors import DataInvalid, SealtrainError
from sealtrain.guest.guestrun import Stored
from sealtrain.guest.run_end import Outcome
from sealtrain.guest.settings import holds_run
from sealtrain.guest.signals import Requests, interrupt_once
from sealtrain.guest.workload.fork import run_without_orphans
from sealtrain.release.messages import ErrorFields
from sealtrain.sealing.trainedmodel import MODEL_FOLDER, RUN_MANIFEST
from sealtrain.storage.errors import StorageRefused
from sealtrain.training.errors import RankLost

Work = Callable[[Stored | None], Outcome | None]
"""Starts or resumes the run, or plays a part in one that another guest leads, which has no outcome
of its own; gets ``Stored`` where there is an output store."""

FIRST_PAUSE: Final = 5.0
LONGEST_PAUSE: Final = 300.0
"""Seconds; each pause between two tries is twice as long as the one before."""
_GRACE_SECONDS: Final = 10.0
_TICK_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.01
_COUNTER_BYTES: Final = 8
_MAX_ANSWER_BYTES: Final = 64 << 20


class _Result(StrictModel):
    """What the manifest's run came to, as its process says; the paths follow from the folder."""

    run_id: Hex32
    simulated: bool
    steps: Annotated[int, Field(ge=0)]
    metrics: dict[str, float | None]
    history: tuple[dict[str, Any], ...]


class _LastWords(StrictModel):
    """The last words of a run's process: exactly one of them."""

    result: _Result | None = None
    played: bool = False
    error: ErrorFields | None = None
    interrupted: bool = False
    bug: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Endurance:
    """What a supervisor outlives.

    Attributes:
        seconds: How long to wait for keys before giving up.
        restarts: How often to start a process again that ended without an answer.
        before_run: Wait also for the first keys, which begin the run.
        first_pause: Seconds; each pause after it is twice as long, up to five minutes.
        message_seconds: For what the process says to be whole, from its first byte on.
        end_seconds: For the process to end after its last words; then it is killed.
    """

    seconds: float
    restarts: int = 0
    before_run: bool = False
    first_pause: float = FIRST_PAUSE
    message_seconds: float = 60.0
    end_seconds: float = 60.0


class Beside:
    """What a supervisor does beside the run; by itself nothing."""

    stores = False
    """Whether ``has_stored`` is to be asked before a checkpoint is anchored."""

    def starts(self, attempt: int) -> None:
        """A process of the run is about to start, the first with ``attempt`` 1."""

    def tick(self) -> None:
        """About a second has passed while the process works."""

    def has_stored(self, counter: int) -> bool:
        """Whether a checkpoint is in the output store by now."""
        raise AssertionError(f"no store was asked for, and now for checkpoint {counter}")

    def waits(self, error: SealtrainError, seconds: float) -> None:
        """The run is paused for so long, for this reason, and holds no key."""


def supervise(
    begin: Work,
    again: Work,
    *,
    out: Path,
    endures: Endurance,
    beside: Beside,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Outcome | None:
    """Run, and start again as often as it may help; returns what ``Work`` did.

    Args:
        begin: Starts or resumes the run; called in a process of its own.
        again: Resumes it; called in a process of its own.
        out: The run's folder.
        endures: Limits.
        beside: What this process does meanwhile.
        monotonic: Clock that counts seconds.
        sleep: Waits so many seconds.

    Raises:
        SealtrainError: The run's last error, if starting again does not help or took too long; or
            what ``beside`` cannot go on with.
        RankLost: The run's process was lost more often than ``endures.restarts``.
        KeyboardInterrupt: SIGTERM came while no process ran, or one had not begun to train.
    """
    with _Ending(monotonic).handle() as ending:
        work, until, reached, pause = begin, 0.0, "", endures.first_pause
        attempt = lost = 0
        while True:
            attempt += 1
            beside.starts(attempt)
            try:
                with run_without_orphans():
                    return _apart(work, out, endures, beside, ending)
            except StorageRefused:  # where it runs makes no difference
                raise
            except SealtrainError as error:
                if ending.asked:
                    raise
                got_to, now = _newest(out), monotonic()
                if not until or got_to > reached:
                    until, reached = now + endures.seconds, got_to
                    pause, lost = endures.first_pause, 0
                if isinstance(error, RankLost):
                    lost += 1
                    if lost > endures.restarts:
                        raise
                    rest = pause
                else:
                    waitable = error.retry != "never" and (endures.before_run or holds_run(out))
                    if not waitable or now >= until:
                        raise
                    rest = min(pause, until - now)
                beside.waits(error, rest)
            sleep(rest)
            pause = min(2 * pause, LONGEST_PAUSE)
            if holds_run(out):
                work = again


class _Ending:
    """What SIGTERM to the supervisor does."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.process: BaseProcess | None = None
        self.asked = Requests(monotonic)
        self._starting = False
        self._due: list[bool] = []

    @contextlib.contextmanager
    def handle(self) -> Iterator[_Ending]:
        """Handle the signal while inside; a thread other than the main one cannot."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = signal.signal(signal.SIGTERM, self._pass_on)
        try:
            yield self
        finally:
            signal.signal(signal.SIGTERM, before)

    def start(self, process: BaseProcess) -> None:
        """Start a process that the signal is passed on to, once it can heed it."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # also for the new process
        self._starting = True  # a library's thread may take the signal nevertheless
        try:
            process.start()
            self.process = process
        finally:
            self._starting = False
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        while self._due:
            _end(process, now=self._due.pop(0))

    def _pass_on(self, _number: int, _frame: object) -> None:
        repeated = self.asked.note_signal()
        if repeated is None:
            return
        if self._starting and self.process is None:
            self._due.append(repeated)
        elif self.process is None:
            raise KeyboardInterrupt
        else:
            _end(self.process, now=repeated)


def _end(process: BaseProcess, *, now: bool) -> None:
    if now:
        process.kill()
    else:
        process.terminate()


def _newest(out: Path) -> str:
    """Name of the newest checkpoint, or of a lead's state; later ones sort behind earlier ones."""
    found = (*(out / "checkpoints").glob("checkpoint-*"), *(out / "states").glob("state-*"))
    return max((entry.name for entry in found), default="")


def _apart(
    work: Work, out: Path, endures: Endurance, beside: Beside, ending: _Ending
) -> Outcome | None:
    """Do ``work`` in a forked process; returns its result or raises its error."""
    here, there = multiprocessing.Pipe(duplex=False)
    asked, asks = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(
        target=_serve,
        args=(work, (there, asks), (here, asked), beside.stores),
        name="sealtrain-run",
    )
    ending.start(process)
    there.close()
    asks.close()
    told: bytes | None = None
    try:
        told = _last_words(here, asked, beside, endures.message_seconds)
        if not _has_ended(process, endures.end_seconds):
            process.kill()
            process.join()
    except SealtrainError:  # what is done beside it cannot go on, such as storing
        process.terminate()
        raise
    finally:
        ending.process = None
        # Interrupted here; a terminal interrupts both processes.
        if not _has_ended(process, _GRACE_SECONDS):
            process.kill()
            process.join()
        here.close()
        asked.close()
    if told is None:
        raise RankLost(
            "the process of the run ended without a result",
            check="process",
            got=f"status {process.exitcode}",
            hint="check whether the machine ran out of memory, then: sealtrain resume",
        )
    return _outcome(told, out)


def _has_ended(process: BaseProcess, seconds: float) -> bool:
    """Whether a process ends in time.

    ``join`` with a time looks at a pipe that the process can write to, and then waits for ever.
    """
    until = time.monotonic() + seconds
    while process.is_alive():
        if time.monotonic() > until:
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def _last_words(
    here: Connection, asked: Connection, beside: Beside, seconds: float
) -> bytes | None:
    """What the process says in the end, ``None`` for nothing; serves it and the store before."""
    wanted: int | None = None
    answers = Messages(here, _MAX_ANSWER_BYTES, seconds=seconds)
    questions = Messages(asked, _COUNTER_BYTES, seconds=seconds)
    open_ends, ticked = [here, asked], time.monotonic()
    while True:
        wait(open_ends, _TICK_SECONDS)
        try:
            if (said := answers.take()) is not None:
                return said
        except (EOFError, OSError):
            return None
        if asked in open_ends:
            try:
                if (question := questions.take()) is not None:
                    wanted = int.from_bytes(question)
            except (EOFError, OSError):
                open_ends.remove(asked)
        now = time.monotonic()
        if wanted is None:
            if now - ticked >= _TICK_SECONDS:  # bytes that trickle in make it no quicker
                ticked = now
                beside.tick()
        elif beside.has_stored(wanted):
            with contextlib.suppress(OSError):  # the process is gone, or does not read
                asked.send_bytes(wanted.to_bytes(_COUNTER_BYTES))
            wanted = None


def _outcome(told: bytes, out: Path) -> Outcome | None:
    """The result in last words, ``None`` of a part that was played; raises the error in them."""
    answer = load_model(
        _LastWords, parse_json(told, max_bytes=_MAX_ANSWER_BYTES), DataInvalid, "answer of the run"
    )
    if answer.interrupted:
        raise KeyboardInterrupt
    if answer.error is not None:
        raise answer.error.error()
    if answer.played:
        return None
    if answer.result is None:
        raise RuntimeError(answer.bug or "the run's process said nothing")
    outcome = answer.result
    return Outcome(
        run_id=outcome.run_id,
        simulated=outcome.simulated,
        steps=outcome.steps,
        metrics=outcome.metrics,
        history=list(outcome.history),
        model=out / MODEL_FOLDER,
        manifest=out / RUN_MANIFEST,
    )


def _serve(
    work: Work,
    mine: tuple[Connection, Connection],
    others: tuple[Connection, Connection],
    stores: bool,
) -> None:
    answers, asks = mine
    for end in others:
        end.close()
    signal.signal(signal.SIGTERM, interrupt_once)  # until the run heeds it
    if not end_with_parent():
        return
    answer: dict[str, Any]
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        outcome = work(_asking(asks) if stores else None)
        if outcome is None:
            answer = {"played": True}
        else:
            result = outcome.to_dict()
            answer = {"result": {name: result[name] for name in _Result.model_fields}}
    except KeyboardInterrupt:
        answer = {"interrupted": True}
    except SealtrainError as error:
        answer = {"error": error.to_dict()}
    except BaseException as bug:  # its kind, never a value that could be data
        failure = system_failure(bug) if isinstance(bug, OSError) else None
        kind = type(bug).__name__
        answer = {"bug": kind} if failure is None else {"error": failure.to_dict()}
    with contextlib.suppress(OSError):  # the reader is gone, and no traceback leaves from here
        answers.send_bytes(json.dumps(answer, allow_nan=False).encode())


def _asking(asks: Connection) -> Stored:
    """Asks the supervisor, from one thread at a time."""

    def ask_stored(counter: int, within: float) -> bool:
        until = time.monotonic() + within
        asks.send_bytes(counter.to_bytes(_COUNTER_BYTES))
        while asks.poll(max(0.0, until - time.monotonic())):
            if int.from_bytes(asks.recv_bytes(_COUNTER_BYTES)) >= counter:
                return True
        return False

    return ask_stored
