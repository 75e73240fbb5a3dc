"""State that belongs to the process that made it: a counter, and the key that it is used up under.

A fork copies both. Parent and child would then seal two messages with one number under one key,
which shows the difference of the messages and lets others forge more. So such state remembers its
process and refuses in every other one: that of a child, a child's child, and a process that got
the same id in another namespace. A state that is only read needs none of this.
"""

from __future__ import annotations

import os

from sealtrain.errors import ForkRefused, SealtrainError

_forks = 0
"""Forks between the first process of this program and this one."""


def _count_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_count_fork)


def _this_process() -> tuple[int, int]:
    """The id alone may come again; a fork by a native library is not counted."""
    return os.getpid(), _forks


class OneProcess:
    """The process that made this object.

    Args:
        what: Names the state in the error.
        refusal: Class of the error.
    """

    __slots__ = ("_maker", "_refusal", "_what")

    def __init__(self, what: str, *, refusal: type[SealtrainError] = ForkRefused) -> None:
        self._what, self._refusal = what, refusal
        self._maker = _this_process()

    @property
    def here(self) -> bool:
        """Whether that process is this one."""
        return self._maker == _this_process()

    def require(self) -> None:
        """Go on in that process only; to be called before any lock, which a fork may leave held.

        Raises:
            ForkRefused: This is another process; or the class that was given.
        """
        if self._maker != _this_process():
            raise self._refusal(
                f"a forked process asked for {self._what} of the process it came from",
                check="process",
                hint="begin in each process by itself, after forking",
            )
