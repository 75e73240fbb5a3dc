"""Ctrl-C and SIGTERM end a block that starts processes, at whatever moment they come.

Python raises ``KeyboardInterrupt`` wherever it is. In a hook of fork, which ``subprocess`` runs for
every process that is tied to this one, what is raised is printed and forgotten: the signal would be
lost. So a signal that comes there is heeded a little later.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Final, Self

_AGAIN_S: Final = 0.1


class Ending:
    """A block in the main thread that signals end with ``KeyboardInterrupt``; elsewhere nothing.

    Where a part that got the same signal ended first, its error gives way to the interrupt.
    """

    def __init__(self) -> None:
        self._before: dict[int, signal._HANDLER] = {}
        self._told = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._handle(signal.SIGTERM)
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                self._handle(signal.SIGINT)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.calm()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
        if self._told and kind is not None and not issubclass(kind, KeyboardInterrupt):
            raise KeyboardInterrupt from error

    def calm(self) -> None:
        """Raise nothing more for a signal that came: what was started is being ended."""
        if signal.SIGALRM in self._before:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _handle(self, number: int) -> None:
        self._before[number] = signal.signal(number, self._end)

    def _end(self, _number: int, frame: FrameType | None) -> None:
        self._told = True
        if not _starts_process(frame):
            raise KeyboardInterrupt
        if signal.SIGALRM not in self._before:
            self._handle(signal.SIGALRM)
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)


def _starts_process(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "_execute_child":  # of subprocess.Popen
            return True
        frame = frame.f_back
    return False
