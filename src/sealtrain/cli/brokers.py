"""Commands that act at several brokers: a failure at one does not keep the others from acting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Generic, TypeVar

import typer

from sealtrain.cli.output import say
from sealtrain.cli.runoptions import BrokerFiles
from sealtrain.client.api import BrokerClient
from sealtrain.client.connection import lock_of, watched_ledger
from sealtrain.client.pin import load_pin
from sealtrain.errors import SealtrainError, Unreachable, UsageError

__all__ = ["AtEach", "BrokerFiles", "Threshold", "at_each", "own_state", "register_dataset"]

Threshold = Annotated[
    int | None,
    typer.Option(min=2, max=16, help="So many of several brokers open the data: more than half."),
]
Answer = TypeVar("Answer")


@dataclass(slots=True)
class AtEach(Generic[Answer]):
    """Answers and failures of several brokers, by URL."""

    done: dict[str, Answer] = field(default_factory=dict)
    failed: dict[str, SealtrainError] = field(default_factory=dict)

    @property
    def worst(self) -> SealtrainError | None:
        """The first refusal, or else the first broker out of reach; ``None`` without a failure."""
        refused = (error for error in self.failed.values() if not isinstance(error, Unreachable))
        return next(refused, None) or next(iter(self.failed.values()), None)

    def finish(self) -> None:
        """Exit with the code of the worst failure. Call it after the answers are shown."""
        if self.worst is not None:
            raise typer.Exit(self.worst.exit_code)


def at_each(brokers: Sequence[Path], act: Callable[[Path], Answer]) -> AtEach[Answer]:
    """Act at every broker, one after the other, and say which failed.

    Raises:
        SealtrainError: No broker answered: the worst failure.
    """
    answers: AtEach[Answer] = AtEach()
    for path in brokers:
        url = load_pin(path).url
        try:
            answers.done[url] = act(path)
        except SealtrainError as error:
            answers.failed[url] = error
    if answers.worst is not None and not answers.done:
        raise answers.worst
    for url, why in answers.failed.items():
        say(f"broker {url} failed: {why.code}: {why.message}")
    return answers


def own_state(state: Path | None, brokers: Sequence[Path]) -> None:
    """Require that a memory file is given for one broker only: each has a ledger of its own.

    Raises:
        UsageError: There are several brokers.
    """
    if state is not None and len(brokers) > 1:
        raise UsageError(
            "each broker has a ledger of its own",
            check="--state",
            got=f"one file for {len(brokers)} brokers",
            hint="leave --state out, or run the command once for each broker",
        )


def register_dataset(
    envelope: bytes,
    brokers: list[Path],
    deployment: Path,
    identity: Path,
    state: Path | None,
) -> AtEach[None]:
    """Register a dataset at brokers whose ledgers extend those seen last. Errors as ``at_each``."""
    consortium_id = lock_of(deployment).consortium_id

    def at(broker: Path) -> None:
        with BrokerClient(load_pin(broker).url) as client:
            members = client.consortium(consortium_id)
        with watched_ledger(broker, members, identity, state) as watch:
            watch.recorded(watch.client.register_dataset(envelope), envelope)

    return at_each(brokers, at)
