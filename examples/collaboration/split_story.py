"""``split demo``: every way to split a model between machines, played with real processes.

Each act is a whole small run in a folder of its own: owners, brokers, guests, an auditor. An act is
a function of that folder; ``ACTS`` lists them in the order they are played.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import cut_act
import pads_act
from split_acts import Act

from sealtrain.errors import AlreadyExists, UsageError

ACTS: tuple[Act, ...] = (
    Act(
        name="pads",
        title="a slow guest, and a fast machine that nobody trusts: products under one-time pads",
        play=pads_act.play,
    ),
    Act(
        name="cut",
        title="owners without a TEE run the front of the model, a guest trains the back",
        play=cut_act.play,
    ),
)


def play(
    out: Path, acts: Sequence[str], say: Callable[[str], None]
) -> tuple[dict[str, Any], list[str]]:
    """Play acts; return data for ``--json``, and lines for people.

    Args:
        out: New folder.
        acts: Names of acts; all of them if there is none.
        say: Told of each step.

    Raises:
        AlreadyExists: The folder holds something.
        UsageError: There is no act of that name.
        SealtrainError: Whatever a step refused.
    """
    say("SIMULATED — NOT ATTESTED")
    chosen = tuple(_chosen(acts))
    if out.exists() and any(out.iterdir()):
        raise AlreadyExists(f"{out} is not empty", hint="choose another --out, or remove it")
    told: dict[str, Any] = {}
    lines: list[str] = []
    for way in chosen:
        say(f"{way.name}: {way.title}")
        played = way.play(out / way.name, lambda text: say(f"  {text}"))
        told[way.name] = played.data
        lines += [*([""] if lines else []), way.name, *(f"  {line}" for line in played.lines)]
    return told, lines


def _chosen(names: Iterable[str]) -> Iterable[Act]:
    wanted = set(names)
    unknown = wanted - {act.name for act in ACTS}
    if unknown:
        raise UsageError(
            "no such act", got=min(unknown), expected=" or ".join(act.name for act in ACTS)
        )
    return (act for act in ACTS if not wanted or act.name in wanted)
