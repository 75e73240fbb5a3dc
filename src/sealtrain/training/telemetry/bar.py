"""The progress bar. It shows only released metrics, because the operator sees the terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TextIO

__all__ = ["Bar", "progress_bar"]

_LINE_SECONDS: Final = 5.0
_RATES = ("tokens_per_second", "train_tokens_per_second")


class Bar:
    """Takes steps and released metrics; this base class shows nothing."""

    def step(self, step: int, _values: dict[str, float]) -> None:
        """Take the end of a step."""

    def released(self, _step: int, values: dict[str, float | None]) -> None:
        """Take released metrics."""


class _Shown(Bar):
    def __init__(self, terminal: TextIO, steps: int) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self._progress = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}  {task.fields[rate]} tokens/s"),
            TimeRemainingColumn(),
            console=Console(file=terminal),
            redirect_stdout=False,  # the process is silenced, and stays so
            redirect_stderr=False,
        )
        self._task = self._progress.add_task("training", total=steps, loss="-", rate="-")

    def __enter__(self) -> _Shown:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def step(self, step: int, _values: dict[str, float]) -> None:
        self._progress.update(self._task, completed=step)

    def released(self, _step: int, values: dict[str, float | None]) -> None:
        if (loss := values.get("loss")) is not None:
            self._progress.update(self._task, loss=f"{loss:.6g}")
        if (rate := _rate(values)) is not None:
            self._progress.update(self._task, rate=f"{rate:,.0f}")


class _Lines(Bar):
    """A line every few seconds, where nobody could see a bar move."""

    def __init__(self, terminal: TextIO, steps: int, monotonic: Callable[[], float]) -> None:
        self._terminal = terminal
        self._steps = steps
        self._monotonic = monotonic
        self._said_at: float | None = None
        self._last: tuple[str, ...] = ()

    def step(self, step: int, _values: dict[str, float]) -> None:
        now = self._monotonic()
        due = self._said_at is None or now - self._said_at >= _LINE_SECONDS
        if due or step >= self._steps:
            self._said_at = now
            self._say("  ".join((f"step {step}/{self._steps}", *self._last)))

    def released(self, _step: int, values: dict[str, float | None]) -> None:
        said = {"loss": values.get("loss"), "tokens/s": _rate(values)}
        found = tuple(f"{name} {value:,.6g}" for name, value in said.items() if value is not None)
        self._last = found or self._last

    def _say(self, line: str) -> None:
        self._terminal.write(f"{line}\n")
        self._terminal.flush()


def _rate(values: dict[str, float | None]) -> float | None:
    return next((values[name] for name in _RATES if values.get(name) is not None), None)


@contextmanager
def progress_bar(
    terminal: TextIO | None, steps: int, *, monotonic: Callable[[], float] = time.monotonic
) -> Iterator[Bar]:
    """A bar with steps, loss, tokens per second and time left; lines where it is no terminal.

    Args:
        terminal: Where to draw; nowhere when ``None``.
        steps: Optimizer steps in total.
        monotonic: Source of the time between lines.
    """
    if not terminal:
        yield Bar()
        return
    if not terminal.isatty():
        terminal.write("loading the model and the records\n")
        terminal.flush()
        yield _Lines(terminal, steps, monotonic)
        return
    with _Shown(terminal, steps) as bar:
        yield bar
