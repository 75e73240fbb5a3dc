"""The progress bar. It shows only released metrics, because the operator sees the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

__all__ = ["Bar", "progress_bar"]

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
        rate = next((values[name] for name in _RATES if values.get(name) is not None), None)
        if rate is not None:
            self._progress.update(self._task, rate=f"{rate:,.0f}")


@contextmanager
def progress_bar(terminal: TextIO | None, steps: int) -> Iterator[Bar]:
    """A bar with steps, loss, tokens per second and time left.

    Args:
        terminal: Where to draw; nowhere when ``None``.
        steps: Optimizer steps in total.
    """
    if not terminal:
        yield Bar()
        return
    with _Shown(terminal, steps) as bar:
        yield bar
