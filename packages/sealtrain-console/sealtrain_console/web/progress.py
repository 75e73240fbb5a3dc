"""How far a run that goes on has come: its step, its rate, and the time that remains.

The file of released metrics holds steps and no times (``spec/console.md`` §2). The rate is what the
console saw: steps that came between two looks, by the times at which the file was written. A file
that grew no further for a while is quiet, and no rate or end is told of it.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sealtrain.base.clock import Clock, system_clock
from sealtrain.base.files import read_bounded
from sealtrain.base.limits import MAX_DEPLOYMENT_BYTES
from sealtrain.errors import SealtrainError
from sealtrain.guest.settings import holds_run, load_run
from sealtrain_console.web.runfolders import METRICS_FILE

_TAIL_BYTES: Final = 32 << 10
_MOST_SAMPLES: Final = 16
_MOST_RUNS: Final = 512
_QUIET_SECONDS: Final = 300
_MOST_SECONDS: Final = 100 * 24 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProgress:
    """How far a run has come, as the machine that holds its folder wrote it.

    Attributes:
        step: Newest step in its file; 0 before the first.
        steps: Of the whole run, as its lock says; ``None`` where the lock cannot be read.
        rate: Steps a second between two looks of this console; ``None`` before the second.
        remaining: Seconds until the last step at that rate.
        written: When the newest step was written, seconds since 1970.
        quiet: Nothing was written for some minutes.
    """

    step: int
    steps: int | None = None
    rate: float | None = None
    remaining: int | None = None
    written: int | None = None
    quiet: bool = False

    def in_words(self) -> str:
        """For people, on one line."""
        if not self.step:
            return "no step yet"
        words = [f"step {self.step:,}" + (f" of {self.steps:,}" if self.steps else "")]
        if self.quiet:
            return words[0]
        if self.rate is not None:
            words.append(
                f"{self.rate:.3g} steps a second"
                if self.rate >= 1
                else f"{1 / self.rate:.3g} seconds a step"
            )
        if self.remaining is not None:
            words.append(f"about {in_hours(self.remaining)} left")
        return ", ".join(words)

    def to_dict(self) -> dict[str, Any]:
        """What a page that draws curves shows of it."""
        return {"step": self.step, "steps": self.steps, "words": self.in_words()}


def in_hours(seconds: int) -> str:
    """A time that remains, as people say it."""
    minutes, hours, days = round(seconds / 60), round(seconds / 3600), round(seconds / 86400)
    if seconds < 90:
        return f"{max(1, seconds)} s"
    if minutes < 90:
        return f"{minutes} min"
    return f"{hours} h" if hours < 48 else f"{days} days"


@dataclass(slots=True)
class _Watched:
    steps: int | None
    samples: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_MOST_SAMPLES))


class Progresses:
    """Runs that this console watches, the ones looked at last. Thread-safe.

    Args:
        clock: Source of the time.
    """

    def __init__(self, clock: Clock = system_clock) -> None:
        self._clock = clock
        self._watched: OrderedDict[Path, _Watched] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, folder: Path) -> RunProgress:
        """How far the run of a folder has come."""
        step, written = _newest(folder / METRICS_FILE)
        with self._lock:
            watched = self._watched.get(folder)
        if watched is None:
            watched = _Watched(_steps(folder))
        with self._lock:
            watched = self._watched.setdefault(folder, watched)
            self._watched.move_to_end(folder)
            if len(self._watched) > _MOST_RUNS:
                self._watched.popitem(last=False)
            samples = watched.samples
            if samples and (step < samples[-1][1] or written < samples[-1][0]):
                samples.clear()  # another file, or begun anew
            if step and (not samples or step > samples[-1][1]):
                samples.append((written, step))
            rate = _rate(samples)
        quiet = bool(written) and self._clock() - written > _QUIET_SECONDS
        steps = watched.steps if watched.steps is not None and step <= watched.steps else None
        left = None if steps is None or rate is None or quiet else (steps - step) / rate
        return RunProgress(
            step=step,
            steps=steps,
            rate=None if quiet else rate,
            remaining=None if left is None or left > _MOST_SECONDS else round(left),
            written=int(written) or None,
            quiet=quiet,
        )


def _rate(samples: deque[tuple[float, int]]) -> float | None:
    if len(samples) < 2:
        return None
    (began, first), (ended, last) = samples[0], samples[-1]
    return (last - first) / (ended - began) if ended > began else None


def _newest(file: Path) -> tuple[int, float]:
    """The newest step of a file of released metrics, and when it was written."""
    if not file.is_file():
        return 0, 0.0
    try:
        with file.open("rb") as opened:
            size = opened.seek(0, 2)
            opened.seek(max(0, size - _TAIL_BYTES))
            *lines, _ = opened.read(_TAIL_BYTES).split(b"\n")
            written = file.stat().st_mtime
    except OSError:
        return 0, 0.0
    for line in reversed(lines):
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            continue
        match said:
            case {"step": int(step), "values": dict()} if 0 <= step < 1 << 53:
                return step, written
    return 0, written


def _steps(folder: Path) -> int | None:
    """How many steps the recipe of a folder's run has, as its lock says."""
    try:
        if not holds_run(folder):
            return None
        file = load_run(folder)[0].lock
        if not file.is_file():
            return None
        lock = json.loads(read_bounded(file, MAX_DEPLOYMENT_BYTES))
    except (SealtrainError, OSError, ValueError, RecursionError):
        return None
    match lock:
        case {"recipe": {"trainer": {"max_steps": int(steps)}}} if 0 < steps < 1 << 53:
            return steps
    return None
