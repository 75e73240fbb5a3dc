"""``checkpoints``: list the sealed checkpoints of a run, without a key."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sealtrain.cli.output import Json, emit, table
from sealtrain.guest.inventory import FoundCheckpoint, checkpoints_in

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
        {"checkpoints": [checkpoint.to_dict() for checkpoint in found]},
        table(
            [_row(checkpoint) for checkpoint in found],
            header=["counter", "step", "bytes", "written", "complete", "follows", "anchored"],
        )
        if found
        else ["no checkpoint yet"],
    )


def _row(found: FoundCheckpoint) -> list[str]:
    return [
        "?" if found.counter is None else str(found.counter),
        "?" if found.step is None else str(found.step),
        f"{found.size:,}",
        found.written_at,
        _SAID[found.complete],
        _SAID[found.follows],
        _SAID[found.anchored],
    ]
