"""``evaluate``: measure a model on sealed data inside the guest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sealtrain.cli.alone import alone
from sealtrain.cli.output import Json, emit, metric_lines, say
from sealtrain.cli.runoptions import (
    BrokerFiles,
    Data,
    FileOptions,
    GuestOptions,
    broker_missed,
    run_settings,
)
from sealtrain.errors import UsageError

if TYPE_CHECKING:
    from sealtrain.guest.closing import Outcome

__all__ = ["evaluate", "show_metrics"]


def evaluate(
    lock: Annotated[Path, typer.Argument(help="recipe.lock.json of a recipe of phase evaluate.")],
    guest: GuestOptions,
    brokers: BrokerFiles,
    data: Data,
    out: Annotated[Path, typer.Option(help="Folder for sealed metrics and manifest.")],
    files: FileOptions,
    as_json: Json = False,
) -> None:
    """Measure a model on sealed data; only noisy or thresholded aggregates leave."""
    alone()
    from sealtrain.guest.run import start
    from sealtrain.recipe.lockfile import load_lock

    phase = load_lock(lock).recipe.phase
    if phase != "evaluate":
        raise UsageError(
            "this lock is of a training", got=phase, expected="evaluate", hint="sealtrain train"
        )
    settings = run_settings(
        lock,
        guest,
        files,
        brokers=brokers,
        data=data,
        out=out,
    )
    show_metrics(start(settings, progress=False, on_failure=broker_missed, alone=True), as_json)


def show_metrics(outcome: Outcome, as_json: bool) -> None:
    """Print what a finished evaluation found."""
    if outcome.simulated:
        say("SIMULATED — NOT ATTESTED")
    metrics = metric_lines(outcome.metrics)
    shown = [f"run          {outcome.run_id}", *metrics, f"manifest     {outcome.manifest}"]
    emit(as_json, outcome.to_dict(), shown)
