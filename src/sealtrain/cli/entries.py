"""``log`` itself: show the entries of a ledger. It is light: ``log --help`` loads this module."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from sealtrain.base.visible_text import escape_hidden
from sealtrain.cli.output import Json, emit, table
from sealtrain.errors import UsageError
from sealtrain.release.errors import AnswerInvalid

_WHOLE = ("owner", "decision", "code")
"""Fields that are words: half of one says nothing. Ids are known by their first digits."""


def show(
    context: typer.Context,
    broker: Annotated[
        Path | None, typer.Option(help="Broker file (made by: sealtrain broker pin).")
    ] = None,
    start: Annotated[
        int | None,
        typer.Option(min=0, help="Show from this entry on, the oldest first [the newest first]."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Most entries.")] = 100,
    as_json: Json = False,
) -> None:
    """Show the ledger: every approval, release, refusal and manifest, the newest first.

    With --json the entries are in the ledger's order, from the one of index "first" on.
    """
    if context.invoked_subcommand is not None:
        return
    from sealtrain.client.broker_api import BrokerClient
    from sealtrain.client.pin import load_pin

    if broker is None:
        raise UsageError("the broker file is missing", check="--broker", expected="a broker file")
    with BrokerClient.at(load_pin(broker)) as client:
        checkpoint = client.ledger_checkpoint()
        size = _size(checkpoint)
        first = max(0, size - limit) if start is None else start
        last = min(size, first + limit)
        entries: list[dict[str, Any]] = []
        while len(entries) < last - first and (
            page := client.ledger_entries(first + len(entries), last - first - len(entries))
        ):
            entries += page
    rows = [
        (str(index), entry["at"], entry["kind"], _summary(entry["body"]))
        for index, entry in enumerate(entries, first)
    ]
    more = {"older": min(first, size), "newer": max(0, size - first - len(entries))}
    if start is None:
        rows.reverse()
    emit(
        as_json,
        {"entries": entries, "first": first, "size": size, "more": more, "checkpoint": checkpoint},
        [
            *table(rows, header=("index", "time", "kind", "what")),
            *_more(more, first, len(entries), limit),
            "",
            checkpoint.strip(),
        ],
    )


def _size(checkpoint: str) -> int:
    """How many entries a tree head names; ``log audit`` verifies it."""
    lines = checkpoint.split("\n", 2)
    if len(lines) < 3 or not lines[1].isascii() or not lines[1].isdigit() or len(lines[1]) > 16:
        raise AnswerInvalid("the broker's tree head names no size", check="tree head")
    return int(lines[1])


def _more(more: dict[str, int], first: int, shown: int, limit: int) -> list[str]:
    """How many entries are not shown, and how to see them."""
    lines = []
    if more["older"]:
        begin = max(0, first - limit)
        lines.append(f"{more['older']} older entries: --start {begin} --limit {first - begin}")
    if more["newer"]:
        lines.append(f"{more['newer']} newer entries: --start {first + shown}")
    return lines


def _summary(body: dict[str, object]) -> str:
    """The fields of an entry that its readers look for."""
    named = ("owner", "decision", "code", "run_id", "dataset_id", "recipe_hash")
    shown = [
        f"{key}={escape_hidden(str(body[key]), 100 if key in _WHOLE else 16)}"
        for key in named
        if body.get(key)
    ]
    return " ".join(shown) or json.dumps(body)[:80]
