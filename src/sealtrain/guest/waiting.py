"""Wait for a lease that lapsed, without a key in memory.

The run has a process of its own. When that process ends because its lease ended, its memory is
gone; a checkpoint is sealed. After a pause another process asks for the keys again and resumes from
that checkpoint, as ``sealtrain resume`` would: bit for bit. The process that waits never holds a
key or a record.

The run waits out refusals that owners or operators can take back, and services that did not answer
(``SealtrainError.retry``). The limit counts from the end of the lease, and anew once the run has
sealed a newer checkpoint.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sealtrain.base.processes import answer_of, end_with_parent, packed, packed_error
from sealtrain.errors import RankLost, SealtrainError
from sealtrain.guest.settings import holds_run

if TYPE_CHECKING:
    from sealtrain.guest.closing import Outcome

__all__ = ["until_released"]

Waits = Callable[[SealtrainError, float], None]
"""Called with the reason of the wait and the seconds until the run asks again."""

_FIRST_PAUSE: Final = 5.0
_LONGEST_PAUSE: Final = 300.0
_GRACE_SECONDS: Final = 10.0


def until_released(
    begin: Callable[[], Outcome],
    again: Callable[[], Outcome],
    *,
    out: Path,
    seconds: float,
    waits: Waits,
    first_pause: float = _FIRST_PAUSE,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Outcome:
    """Run, and resume each time the brokers grant a new lease in time.

    Args:
        begin: Starts or resumes the run; called in a process of its own.
        again: Resumes it; called in a process of its own.
        out: The run's folder.
        seconds: How long to wait for the keys before giving up.
        waits: Called at each pause.
        first_pause: Seconds; each pause after it is twice as long, up to five minutes.
        monotonic: Clock that counts ``seconds``.
        sleep: Waits so many seconds.

    Raises:
        SealtrainError: The run's last error, if waiting does not help or took too long.
        RankLost: The run's process is gone.
    """
    work, until, reached, pause = begin, 0.0, "", first_pause
    while True:
        try:
            return _apart(work)
        except SealtrainError as error:
            if error.retry == "never":
                raise
            got_to, now = _newest(out), monotonic()
            if not until or got_to > reached:
                until, reached, pause = now + seconds, got_to, first_pause
            if not holds_run(out) or now >= until:
                raise
            rest = min(pause, until - now)
            waits(error, rest)
        sleep(rest)
        work, pause = again, min(2 * pause, _LONGEST_PAUSE)


def _newest(out: Path) -> str:
    """Name of the newest checkpoint; later ones sort behind earlier ones."""
    return max((one.name for one in (out / "checkpoints").glob("checkpoint-*")), default="")


def _apart(work: Callable[[], Outcome]) -> Outcome:
    """Do ``work`` in a forked process; returns its result or raises its error."""
    here, there = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(
        target=_serve, args=(work, here, there), name="sealtrain-run"
    )
    process.start()
    there.close()
    answer: Any = None
    try:
        with contextlib.suppress(EOFError):
            answer = answer_of(here.recv_bytes())
        process.join()
    finally:
        if process.is_alive():  # interrupted here; a terminal interrupts both processes
            process.join(_GRACE_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
        here.close()
    if isinstance(answer, BaseException):
        raise answer
    if answer is None:
        raise RankLost(
            "the process of the run ended without a result",
            check="process",
            got=f"status {process.exitcode}",
            hint="check whether the machine ran out of memory, then: sealtrain resume",
        )
    outcome: Outcome = answer
    return outcome


def _serve(work: Callable[[], Outcome], here: Connection, answers: Connection) -> None:
    here.close()
    if not end_with_parent():
        return
    try:
        answer = packed(work())
    except KeyboardInterrupt:
        answer = packed_error(KeyboardInterrupt())
    except BaseException as error:
        answer = packed_error(error)
    with contextlib.suppress(OSError):  # the reader is gone, and no traceback leaves from here
        answers.send_bytes(answer)
