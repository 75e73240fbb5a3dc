"""Every switch of the walk, and how one is played."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sealtrain.errors import DataInvalid, UsageError
from sealtrain_console.walk import approve, release, seal, train, verify
from sealtrain_console.walk.prepared_run import Prepared
from sealtrain_console.walk.stage import Stage
from sealtrain_console.walk.switch import StepName, StepOutcome, Switch

SWITCHES: Final[tuple[Switch, ...]] = (
    *seal.SWITCHES,
    *approve.SWITCHES,
    *release.SWITCHES,
    *train.SWITCHES,
    *verify.SWITCHES,
)
"""In the order of a run."""
TITLES: Final[dict[StepName, str]] = {
    "seal": "Owners seal their records at home",
    "approve": "Enough owners agree",
    "release": "The guest proves itself and gets the keys",
    "train": "The guest trains",
    "verify": "The auditor verifies what remains",
}
"""The five steps, for people."""


def of_step(step: StepName) -> tuple[Switch, ...]:
    """The switches of one step."""
    return tuple(switch for switch in SWITCHES if switch.step == step)


def switch_named(name: str) -> Switch:
    """The switch of this name.

    Raises:
        UsageError: No switch has this name.
    """
    for switch in SWITCHES:
        if switch.name == name:
            return switch
    raise UsageError(
        "the walk has no such switch",
        check="switch",
        got=name[:80],
        expected=", ".join(switch.name for switch in SWITCHES),
        hint="list them: sealtrain walk --list",
    )


def play(run: Prepared, switch: Switch, *, off: bool) -> StepOutcome:
    """Take the step of a switch, on a stage of its own that is gone afterwards.

    Args:
        run: The prepared run, which stays as it is.
        switch: The protection.
        off: Switch it off.

    Raises:
        DataInvalid: Files of the prepared run are missing.
        SealtrainError: The step could not be prepared.
    """
    try:
        return _play(run, switch, off=off)
    except OSError as error:
        raise DataInvalid(
            "the prepared run of the walk cannot be read",
            check=switch.name,
            got=error.strerror or type(error).__name__,
            hint="prepare it again: sealtrain walk --anew",
        ) from error


def _play(run: Prepared, switch: Switch, *, off: bool) -> StepOutcome:
    with tempfile.TemporaryDirectory(prefix="sealtrain-walk-") as folder:
        stage = Stage(run=run, folder=Path(folder))
        with stage.parts:
            return switch.play(stage, off=off)


def play_all(run: Prepared, *, off: bool = True) -> Iterator[StepOutcome]:
    """Take every step, each once, with its protection switched off or on."""
    for switch in SWITCHES:
        yield play(run, switch, off=off)
