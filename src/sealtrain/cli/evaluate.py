"""``evaluate``: measure a model on sealed data inside the guest."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sealtrain.cli.output import Json, emit, say

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add this noun's commands to the root."""
    app.command()(evaluate)


def evaluate(
    lock: Annotated[Path, typer.Argument(help="recipe.lock.json of a recipe of phase evaluate.")],
    platform: Annotated[str, typer.Option(help="dstack or simulator: what proves the guest.")],
    guest: Annotated[Path, typer.Option(help="Socket of the guest API.")],
    collateral: Annotated[str, typer.Option(help="Collateral of the guest's quotes: file:…")],
    broker: Annotated[Path, typer.Option(help="Broker file (made by: sealtrain broker pin).")],
    data: Annotated[list[Path], typer.Option(help="Sealed dataset, or a folder of them; repeat.")],
    out: Annotated[Path, typer.Option(help="Folder for sealed metrics and manifest.")],
    base: Annotated[
        Path | None, typer.Option(help="Folder the recipe's paths start from [the lock's].")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure a model on sealed data; only noisy or thresholded aggregates leave."""
    from sealtrain.errors import UsageError
    from sealtrain.recipe.lockfile import load_lock
    from sealtrain.runner.run import start
    from sealtrain.runner.settings import RunSettings, platform_of

    phase = load_lock(lock).recipe.phase
    if phase != "evaluate":
        raise UsageError(
            "this lock is of a training", got=phase, expected="evaluate", hint="sealtrain train"
        )
    settings = RunSettings(
        lock=lock,
        platform=platform_of(platform),
        guest=guest,
        collateral=collateral,
        broker=broker,
        data=tuple(data),
        base=base or lock.parent,
        out=out,
    )
    outcome = start(settings, progress=False, alone=True)
    if outcome.simulated:
        say("SIMULATED — NOT ATTESTED")
    metrics = [f"{name:<12} {value}" for name, value in outcome.metrics.items()]
    shown = [f"run          {outcome.run_id}", *metrics, f"manifest     {outcome.manifest}"]
    emit(as_json, outcome.to_dict(), shown)
