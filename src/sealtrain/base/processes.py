"""Processes that are forked from this one, and what they answer."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import select
import signal
import threading
import warnings
from collections.abc import Callable
from typing import Any, Final

__all__ = [
    "answer_of",
    "end_with",
    "end_with_parent",
    "end_with_starter",
    "forked",
    "packed",
    "packed_error",
]

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


def forked() -> int:
    """``os.fork``: 0 in the child, the child's process id in this process.

    Python 3.12 warns of forking beside threads, because what they hold stays held in the child. A
    child made here uses none of it: what it does is bounded, and it ends by ``os._exit``.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def packed(value: Any) -> bytes:
    """Pack a value for ``answer_of``."""
    return pickle.dumps(value)


def packed_error(error: BaseException) -> bytes:
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


class _Raised:
    def __init__(
        self, kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]
    ) -> None:
        self.kind, self.args, self.state = kind, args, state
