"""The progress bar. It shows only released metrics, because the operator sees the terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TextIO

_LINE_SECONDS: Final = 5.0
_RATES = ("tokens_per_second", "train_tokens_per_second")


class Bar:
    """Takes steps and released metrics; this base class shows nothing."""

    def step(self, step: int, _values: dict[str, float]) -> None:
        """Take the end of a step."""

    def take_metrics(self, _step: int, values: dict[str, float | None]) -> None:
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

    def take_metrics(self, _step: int, values: dict[str, float | None]) -> None:
        if (loss := values.get("loss")) is not None:
            self._progress.update(self._task, loss=f"{loss:.6g}")
        if (rate := _rate(values)) is not None:
            self._progress.update(self._task, rate=f"{rate:,.0f}")


class _Lines(Bar):
    """A line every few seconds, where a bar would not move.

    A step's metrics are released after its end, so its line waits for them until the next step. A
    step without metrics of its own is shown with the latest ones and the step that they are of.
    """

    def __init__(self, terminal: TextIO, steps: int, monotonic: Callable[[], float]) -> None:
        self._terminal = terminal
        self._steps = steps
        self._monotonic = monotonic
        self._said_at: float | None = None
        self._due: int | None = None
        self._last: tuple[int, tuple[str, ...]] = (0, ())

    def step(self, step: int, _values: dict[str, float]) -> None:
        self.flush()
        now = self._monotonic()
        due = self._said_at is None or now - self._said_at >= _LINE_SECONDS
        if due or step >= self._steps:
            self._said_at, self._due = now, step

    def take_metrics(self, step: int, values: dict[str, float | None]) -> None:
        said = {"loss": values.get("loss"), "tokens/s": _rate(values)}
        found = tuple(f"{name} {value:,.6g}" for name, value in said.items() if value is not None)
        if not found:
            return
        self._last = step, found
        if self._due == step:
            self.flush()

    def flush(self) -> None:
        """Say the line that waits for its step's metrics."""
        if self._due is None:
            return
        step, self._due = self._due, None
        of, found = self._last
        beside = () if of == step or not found else (f"(of step {of})",)
        self._terminal.write("  ".join((f"step {step}/{self._steps}", *found, *beside)) + "\n")
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
        lines = _Lines(terminal, steps, monotonic)
        try:
            yield lines
        finally:
            lines.flush()
        return
    with _Shown(terminal, steps) as bar:
        yield bar
