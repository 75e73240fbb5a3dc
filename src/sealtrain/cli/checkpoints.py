"""``checkpoints``: what lies in a run's folder, told without a key."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sealtrain.cli.output import Json, emit, table
from sealtrain.guest.inventory import FoundCheckpoint, checkpoints_in

__all__ = ["checkpoints"]

_SAID = {None: "unknown", True: "yes", False: "no"}


def checkpoints(
    out: Annotated[Path, typer.Argument(help="Folder of the run.")],
    whole: Annotated[bool, typer.Option("--whole", help="Hash every byte.")] = False,
    as_json: Json = False,
) -> None:
    """List the sealed checkpoints of a run, newest first, as their files claim them."""
    found = checkpoints_in(out, whole=whole)
    emit(
        as_json,
        {"checkpoints": [one.to_dict() for one in found]},
        table(
            [_row(one) for one in found],
            header=["counter", "step", "bytes", "written", "complete", "follows", "anchored"],
        )
        if found
        else ["no checkpoint yet"],
    )


def _row(one: FoundCheckpoint) -> list[str]:
    return [
        "?" if one.counter is None else str(one.counter),
        "?" if one.step is None else str(one.step),
        f"{one.size:,}",
        one.written_at,
        _SAID[one.complete],
        _SAID[one.follows],
        _SAID[one.anchored],
    ]
