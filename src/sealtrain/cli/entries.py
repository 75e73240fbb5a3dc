"""``log`` itself: show the entries of a ledger. It is light: ``log --help`` loads this module."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from sealtrain.cli.output import Json, emit, table
from sealtrain.errors import UsageError

__all__ = ["show"]


def show(
    context: typer.Context,
    broker: Annotated[
        Path | None, typer.Option(help="Broker file (made by: sealtrain broker pin).")
    ] = None,
    start: Annotated[int, typer.Option(min=0, help="First entry.")] = 0,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Most entries.")] = 100,
    as_json: Json = False,
) -> None:
    """Show the ledger: every approval, release, refusal and manifest, in order."""
    if context.invoked_subcommand is not None:
        return
    from sealtrain.client.api import BrokerClient
    from sealtrain.client.pin import load_pin

    if broker is None:
        raise UsageError("the broker file is missing", check="--broker", expected="a broker file")
    client = BrokerClient(load_pin(broker).url)
    entries: list[dict[str, Any]] = []
    while len(entries) < limit and (
        page := client.ledger_entries(start + len(entries), limit - len(entries))
    ):
        entries += page
    checkpoint = client.ledger_checkpoint()
    rows = [
        (str(start + offset), entry["at"], entry["kind"], _summary(entry["body"]))
        for offset, entry in enumerate(entries)
    ]
    emit(
        as_json,
        {"entries": entries, "checkpoint": checkpoint},
        [*table(rows, header=("index", "time", "kind", "what")), "", checkpoint.strip()],
    )


def _summary(body: dict[str, object]) -> str:
    """The fields of an entry that its readers look for."""
    named = ("owner", "decision", "code", "run_id", "dataset_id", "recipe_hash")
    shown = [f"{key}={str(body[key])[:16]}" for key in named if body.get(key)]
    return " ".join(shown) or json.dumps(body)[:80]
