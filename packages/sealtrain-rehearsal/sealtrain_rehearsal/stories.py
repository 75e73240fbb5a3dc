"""``travel demo``, ``federate demo`` and ``split demo``: stories that are shipped as examples."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from sealtrain.base.shipped import find_shipped
from sealtrain.cli.output import Json, emit, say
from sealtrain_rehearsal.rehearsal import leftovers_named

Out = Annotated[Path, typer.Option(help="Folder to make; holds everything afterwards.")]


def travel(out: Out = Path("travel-demo"), as_json: Json = False) -> None:
    """Play a travelling run on the simulator, from founding to verification; about a minute.

    Every part is a process of its own with throwaway keys. Nothing of it is attested.
    """
    _play("travel_story", out, as_json)


def federate(out: Out = Path("federate-demo"), as_json: Json = False) -> None:
    """Play a federation of three hospitals on the simulator; some minutes.

    Every part is a process of its own with throwaway keys. Nothing of it is attested.
    """
    _play("federate_story", out, as_json)


def split(
    out: Out = Path("split-demo"),
    act: Annotated[
        list[str], typer.Option(help="Play this act only; repeat. All of them without it.")
    ] = [],  # noqa: B006  # typer reads the default, no code changes it
    as_json: Json = False,
) -> None:
    """Play split fine-tuning on the simulator, from founding to verification; some minutes.

    Every part is a process of its own with throwaway keys. Nothing of it is attested.
    """
    _play("split_story", out, as_json, act)


def _play(name: str, out: Path, as_json: bool, *options: Any) -> None:
    """Play a story of ``examples/collaboration`` in this process, and show what came of it.

    Args:
        name: Of its module.
        out: As the commands.
        as_json: As the commands.
        options: Further ones for its ``play``, which returns data for ``--json`` and lines for
            people.
    """
    # Several parts calculate at a time: threads of one would only wait for another's.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    folder = str(find_shipped("examples/collaboration"))
    sys.path.insert(0, folder)  # its modules import each other
    try:
        story = import_module(name)
    finally:
        sys.path.remove(folder)
    with leftovers_named(out):
        data, lines = story.play(out, *options, say)
    emit(as_json, data, lines)
