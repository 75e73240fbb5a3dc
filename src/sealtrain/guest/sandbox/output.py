"""Silence: library code prints, logs and warns to nowhere, and the guest counts how often.

Text could quote a record. Python's streams are replaced, and the descriptors 1 and 2 under them
lead to nowhere, because code in C, C++ and Rust prints there directly. (A pipe read by a thread
could count that output too, but would deadlock when native code prints while it holds the
interpreter.)
"""

from __future__ import annotations

import ctypes
import io
import logging
import os
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

_LEVELS = ((40, "logged.error"), (30, "logged.warning"), (0, "logged.info"))


class OutputTally:
    """Counts of dropped output and refused calls, by event. It holds names of events only."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.RLock()

    def note(self, event: str) -> None:
        """Count one."""
        with self._lock:
            self._counts[event] += 1

    def add(self, counts: Mapping[str, int]) -> None:
        """Add counts of another process, whose names the caller knows."""
        with self._lock:
            self._counts.update(counts)

    @property
    def counts(self) -> dict[str, int]:
        """Event → how often, sorted by name."""
        with self._lock:
            return dict(sorted(self._counts.items()))


@contextmanager
def hush(tally: OutputTally, *, for_good: bool = False) -> Iterator[TextIO]:
    """Silence the process.

    Args:
        tally: Counts what was dropped.
        for_good: Leave descriptors 1 and 2 leading nowhere also after the block, and give Python
            new streams to the terminal: text that native code still buffers never comes out.

    Yields:
        The terminal, for sealtrain's own progress bar. Closed after the block.
    """
    streams = sys.stdout, sys.stderr
    for stream in streams:
        _flush(stream)
    kept = os.dup(1), os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
    sys.stdout, sys.stderr = _CountedLines(tally, "printed"), _CountedLines(tally, "printed")
    terminal = _text(os.dup(kept[1]))
    try:
        with _count_output(tally):
            yield terminal
    finally:
        terminal.close()
        ctypes.CDLL(None).fflush(None)  # C's buffered text goes nowhere, too
        for descriptor, saved in zip((1, 2), kept, strict=True):
            if not for_good:
                os.dup2(saved, descriptor)
                os.close(saved)
        sys.stdout, sys.stderr = (_text(descriptor) for descriptor in kept) if for_good else streams


@contextmanager
def _count_output(tally: OutputTally) -> Iterator[None]:
    """Count log records, warnings and uncaught exceptions instead of printing them."""
    root, handler = logging.getLogger(), _Counting(tally)
    before = root.handlers[:], logging.lastResort, logging.raiseExceptions
    hooks = sys.excepthook, threading.excepthook, sys.unraisablehook
    root.handlers[:] = [handler]
    logging.lastResort, logging.raiseExceptions = None, False
    sys.excepthook = _dropping(tally, "exception.uncaught")
    threading.excepthook = _dropping(tally, "exception.thread")
    sys.unraisablehook = _dropping(tally, "exception.unraisable")
    with warnings.catch_warnings():
        warnings.showwarning = _dropping(tally, "warned")
        try:
            yield
        finally:
            root.handlers[:], logging.lastResort, logging.raiseExceptions = before
            sys.excepthook, threading.excepthook, sys.unraisablehook = hooks


def _dropping(tally: OutputTally, event: str) -> Callable[..., None]:
    def drop(*_: Any, **__: Any) -> None:
        tally.note(event)

    return drop


class _Counting(logging.Handler):
    def __init__(self, tally: OutputTally) -> None:
        super().__init__()
        self._tally = tally

    def emit(self, record: logging.LogRecord) -> None:
        """Count the record and never format it."""
        self._tally.note(next(name for level, name in _LEVELS if record.levelno >= level))


class _CountedLines(io.TextIOBase):
    """A stream that counts lines and keeps none."""

    encoding = "utf-8"

    def __init__(self, tally: OutputTally, event: str) -> None:
        self._tally = tally
        self._event = event

    @property
    def buffer(self) -> _BinarySink:
        """For code that writes bytes."""
        return _BinarySink(self._tally, self._event)

    def writable(self) -> bool:
        """Anything may be written."""
        return True

    def write(self, text: str, /) -> int:
        """Count the lines."""
        for _ in range(text.count("\n")):
            self._tally.note(self._event)
        return len(text)


class _BinarySink(io.RawIOBase):
    def __init__(self, tally: OutputTally, event: str) -> None:
        self._tally = tally
        self._event = event

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._tally.note(self._event)
        return len(memoryview(data).cast("B"))


def _text(descriptor: int) -> TextIO:
    return os.fdopen(descriptor, "w", buffering=1, encoding="utf-8", errors="replace")


def _flush(stream: TextIO | None) -> None:
    if stream is not None and not stream.closed:
        stream.flush()
