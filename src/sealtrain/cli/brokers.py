"""Commands that act at several brokers: they say which failed, and exit with the worst failure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from sealtrain.base.digests import sha256_hex
from sealtrain.base.files import read_bounded
from sealtrain.base.limits import MAX_DEPLOYMENT_BYTES
from sealtrain.cli.output import say
from sealtrain.cli.runoptions import BrokerFiles
from sealtrain.owner import owner_files
from sealtrain.owner.owner_files import AtEach

if TYPE_CHECKING:
    from sealtrain.attest.policy import AppraisalPolicy

__all__ = [
    "BrokerFiles",
    "Threshold",
    "at_each",
    "exit_for",
    "failures",
    "policy_of_document",
]

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
    return failures(owner_files.at_each(tuple(brokers), act))


def failures(answers: AtEach[Answer]) -> AtEach[Answer]:
    """Say which brokers failed; the answers themselves."""
    for url, why in answers.failed.items():
        say(f"broker {url} failed: {why.code}: {why.message}")
    return answers


def exit_for(answers: AtEach[Answer]) -> None:
    """Exit with the code of the worst failure. Call it after the answers are shown."""
    if answers.worst is not None:
        raise typer.Exit(answers.worst.exit_code)


def policy_of_document(document: Path) -> tuple[str, AppraisalPolicy]:
    """What a broker's document says of guests, and the hash that a broker file pins it by.

    Raises:
        LockInvalid: It is no broker's document.
    """
    from sealtrain.broker.service.deployment import read_broker_document

    data = read_bounded(document, MAX_DEPLOYMENT_BYTES)
    return sha256_hex(data), read_broker_document(data).policy
