"""Commands that act at several brokers: they say which failed, and exit with the worst failure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from sealtrain.cli.output import say
from sealtrain.cli.runoptions import BrokerFiles
from sealtrain.client import owner
from sealtrain.client.owner import AtEach

__all__ = ["BrokerFiles", "Threshold", "at_each", "exit_for", "failures"]

Threshold = Annotated[
    int | None,
    typer.Option(min=2, max=16, help="So many of several brokers open the data: more than half."),
]
Answer = TypeVar("Answer")


def at_each(brokers: Sequence[Path], act: Callable[[Path], Answer]) -> AtEach[Answer]:
    """Act at every broker, one after the other, and say which failed.

    Raises:
        SealtrainError: No broker answered: the worst failure.
    """
    return failures(owner.at_each(tuple(brokers), act))


def failures(answers: AtEach[Answer]) -> AtEach[Answer]:
    """Say which brokers failed; the answers themselves."""
    for url, why in answers.failed.items():
        say(f"broker {url} failed: {why.code}: {why.message}")
    return answers


def exit_for(answers: AtEach[Answer]) -> None:
    """Exit with the code of the worst failure. Call it after the answers are shown."""
    if answers.worst is not None:
        raise typer.Exit(answers.worst.exit_code)
