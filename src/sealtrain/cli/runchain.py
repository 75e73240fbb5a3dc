"""``verify --chain``: verify the manifests of a chain of runs, with or without a ledger."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from sealtrain.errors import UsageError
from sealtrain.owner.chains import VerifiedChain


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChainOptions:
    """A chain of runs, and the ledger that it is compared with."""

    chain: Annotated[
        bool,
        typer.Option(
            "--chain",
            help="The manifests are one chain of runs, all of it; a folder means those in it.",
        ),
    ] = False
    database: Annotated[
        str | None,
        typer.Option(
            help="With --chain: ledger.sqlite, or a PostgreSQL database as of broker serve; no run "
            "may be missing and every due time has ended."
        ),
    ] = None
    broker: Annotated[
        Path | None, typer.Option(help="With --chain: broker file; the ledger that it serves.")
    ] = None

    def __post_init__(self) -> None:
        """Refuse a ledger that nothing is compared with, or two of them."""
        if not self.chain and (self.database or self.broker):
            raise UsageError("a ledger is compared with a chain", expected="--chain")
        if self.database and self.broker:
            raise UsageError("one ledger is compared", expected="either --database or --broker")


def chain_lines(found: VerifiedChain) -> list[str]:
    """A chain for people: runs, days and what was spent."""
    chain = found.chain
    lines = [
        f"run {link.number:<5} {link.finished_at}  {link.digest}  {len(link.data)} datasets"
        for link in chain.links
    ]
    if chain.begins_with == "last":
        lines.append("each run but the first began with the model of the run before")
    for due in found.due or ():
        how = due.state if due.code is None else f"{due.state}: {due.code}"
        run = "" if due.number is None else f"  run {due.number}"
        lines.append(f"due {due.at}  {how}{run}")
    for total in chain.spent:
        spent = (
            "epsilon unbounded: a run promised no privacy"
            if total.epsilon is None
            else f"epsilon {total.epsilon:g}, delta {total.delta:g}"
        )
        lines.append(f"spent of {total.owner}/{total.name} by {total.runs} runs: {spent}")
    return lines
