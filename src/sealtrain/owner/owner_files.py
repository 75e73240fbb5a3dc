"""An owner at home: its keys, and the brokers that it deals with.

What an owner says, it says at each of its brokers: a failure at one keeps it from no other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Generic, TypeVar

from sealtrain.client.pin import load_pin
from sealtrain.errors import SealtrainError, Unreachable, UsageError
from sealtrain.keys.identity import Identity

Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True)
class OwnerFiles:
    """An owner's files.

    Attributes:
        identity: The private identity file.
        brokers: Broker file of each broker that the owner deals with.
        threshold: So many of several brokers open the owner's data together, more than half of
            them; ``None`` for one broker, which gets the data key whole.
        state: What the owner remembers of a broker's ledger, for one broker; beside the identity
            file, one for each broker, where it is ``None``.

    Raises:
        UsageError: ``state`` is one file for several brokers.
    """

    identity: Path
    brokers: tuple[Path, ...] = ()
    threshold: int | None = None
    state: Path | None = None

    def __post_init__(self) -> None:
        one_memory(self.state, len(self.brokers))

    @cached_property
    def keys(self) -> Identity:
        """The private keys.

        Raises:
            IdentityInvalid: The file is no identity file, or is damaged.
        """
        return Identity.load(self.identity)


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

    def at_all(self) -> dict[str, Answer]:
        """The answers, by URL, once every broker gave one.

        Raises:
            SealtrainError: A broker failed: the worst failure.
        """
        if self.worst is not None:
            raise self.worst
        return self.done


def at_each(brokers: tuple[Path, ...], act: Callable[[Path], Answer]) -> AtEach[Answer]:
    """Act at every broker, one after the other.

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
    return answers


def one_memory(state: Path | None, brokers: int) -> None:
    """Require that a memory file is given for one broker only: each has a ledger of its own.

    Raises:
        UsageError: There are several brokers.
    """
    if state is not None and brokers > 1:
        raise UsageError(
            "each broker has a ledger of its own",
            check="--memory",
            got=f"one file for {brokers} brokers",
            hint="leave --memory out, or run the command once for each broker",
        )
