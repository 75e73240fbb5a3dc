"""``split demo``: every way to split a model between machines, played with real processes.

Each act is a whole small run in a folder of its own: owners, brokers, guests, an auditor. An act is
a function of that folder; ``ACTS`` lists them in the order they are played.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from sealtrain.cli.acts import Act, Played, Say
from sealtrain.cli.output import Json, emit, say

__all__ = ["ACTS", "demo"]


def _pads(out: Path, tell: Say) -> Played:
    from sealtrain_collab.pads.demo import play

    return play(out, tell)


def _cut(out: Path, tell: Say) -> Played:
    from sealtrain_collab.cut.demo import play

    return play(out, tell)


ACTS: tuple[Act, ...] = (
    Act(
        name="pads",
        title="a slow guest, and a fast machine that nobody trusts: products under one-time pads",
        play=_pads,
    ),
    Act(
        name="cut",
        title="owners without a TEE run the front of the model, a guest trains the back",
        play=_cut,
    ),
)


def demo(
    out: Annotated[Path, typer.Option(help="Folder to make; holds everything afterwards.")],
    act: Annotated[
        list[str], typer.Option(help="Play this act only; repeat. All of them without it.")
    ] = [],  # noqa: B006  # typer reads the default, nobody changes it
    as_json: Json = False,
) -> None:
    """Play split fine-tuning on the simulator, from founding to verification; some minutes.

    Every part is a process of its own with throwaway keys. Nothing of it is attested.
    """
    from sealtrain.errors import AlreadyExists

    say("SIMULATED — NOT ATTESTED")
    chosen = tuple(_chosen(act))
    if out.exists() and any(out.iterdir()):
        raise AlreadyExists(f"{out} is not empty", hint="choose another --out, or remove it")
    told: dict[str, Any] = {}
    lines: list[str] = []
    for one in chosen:
        say(f"{one.name}: {one.title}")
        played = one.play(out / one.name, lambda text: say(f"  {text}"))
        told[one.name] = played.data
        lines += [*([""] if lines else []), one.name, *(f"  {line}" for line in played.lines)]
    emit(as_json, told, lines)


def _chosen(names: Iterable[str]) -> Iterable[Act]:
    from sealtrain.errors import UsageError

    wanted = set(names)
    unknown = wanted - {one.name for one in ACTS}
    if unknown:
        raise UsageError(
            "no such act", got=min(unknown), expected=" or ".join(one.name for one in ACTS)
        )
    return (one for one in ACTS if not wanted or one.name in wanted)
