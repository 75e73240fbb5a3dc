"""Processes that are forked from this one, and what they answer."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import pickle
import select
import signal
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

_PR_SET_PDEATHSIG: Final = 1


def end_with_parent() -> bool:
    """Have the kernel kill this process, a child made by ``multiprocessing``, when its parent ends.

    Returns:
        ``False`` where the parent ended before the kernel was asked.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    parent = multiprocessing.parent_process()
    return parent is not None and os.getppid() == parent.pid


def end_with_starter() -> Callable[[], None]:
    """Have the kernel kill a program when the thread that starts it ends, however that ends.

    Returns:
        For ``preexec_fn`` of ``subprocess``; the tie stays when the program becomes another one.
    """
    kernel, starter = ctypes.CDLL(None), os.getpid()

    def tie() -> None:
        kernel.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != starter:  # it ended before the kernel was asked
            os._exit(1)

    return tie


def end_with(process: int) -> None:
    """End this process when another one ends.

    Unlike ``end_with_parent`` it needs no leave of that process: the kernel sends no signal of a
    process that a sandbox keeps from signalling others.

    Args:
        process: The other's process id.
    """
    try:
        other = os.pidfd_open(process)
    except ProcessLookupError:
        os._exit(0)

    def wait() -> None:
        select.select([other], [], [])
        os._exit(0)

    threading.Thread(target=wait, name="stop-with", daemon=True).start()


def fork() -> int:
    """``os.fork``: 0 in the child, the child's process id in this process.

    Python 3.12 warns of forking beside threads, because what they hold stays held in the child. A
    child made here uses none of it: what it does is bounded, and it ends by ``os._exit``.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def pack(value: Any) -> bytes:
    """Pack a value for ``answer_of``."""
    return pickle.dumps(value)


def pack_error(error: BaseException) -> bytes:
    """An error for ``answer_of``, with its attributes; of one that cannot be told, its kind."""
    try:
        return pickle.dumps(_Raised(type(error), error.args, vars(error)))
    except Exception:  # an error that cannot be pickled stays in its process
        return pickle.dumps(_Raised(RuntimeError, (type(error).__name__,), {}))


def answer_of(told: bytes) -> Any:
    """What was packed: the value, or the error as an exception that was not raised yet."""
    answer = pickle.loads(told)  # noqa: S301  # from our own child
    if not isinstance(answer, _Raised):
        return answer
    error: BaseException = answer.kind.__new__(answer.kind, *answer.args)
    error.args = answer.args
    vars(error).update(answer.state)
    return error


def usage_of_all() -> tuple[float, int]:
    """Processor seconds of this process and its living descendants, and the largest one's peak.

    The peak is the most memory that any of them had, in bytes. A descendant of which nothing can be
    read counts for nothing.
    """
    import resource  # not on every system that owners work on

    mine = resource.getrusage(resource.RUSAGE_SELF)
    seconds, peak = mine.ru_utime + mine.ru_stime, mine.ru_maxrss * 1024
    parents = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended
            fields = place.read_text("ascii", "replace").rpartition(")")[2].split()
            parents[int(place.parent.name)] = int(fields[1]), int(fields[11]) + int(fields[12])
    ours = [os.getpid()]
    for parent in ours:
        ours += [pid for pid, (above, _ticks) in parents.items() if above == parent]
    for pid in ours[1:]:
        seconds += parents[pid][1] / os.sysconf("SC_CLK_TCK")
        with contextlib.suppress(OSError, ValueError):
            lines = Path(f"/proc/{pid}/status").read_text("ascii", "replace").splitlines()
            found = [int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]
            peak = max([peak, *(size * 1024 for size in found)])  # none of one that has ended
    return seconds, peak


class _Raised:
    def __init__(
        self, kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]
    ) -> None:
        self.kind, self.args, self.state = kind, args, state
