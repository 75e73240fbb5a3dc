"""``evaluate``: measure a model on sealed data inside the guest."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sealtrain.cli.alone import alone
from sealtrain.cli.output import Json, emit, metric_lines, say
from sealtrain.cli.runoptions import (
    Base,
    BrokerFiles,
    Collateral,
    Data,
    GpuCollateral,
    GuestAddress,
    PlatformName,
    broker_missed,
    run_settings,
)

__all__ = ["evaluate"]


def evaluate(
    lock: Annotated[Path, typer.Argument(help="recipe.lock.json of a recipe of phase evaluate.")],
    platform: PlatformName,
    guest: GuestAddress,
    brokers: BrokerFiles,
    data: Data,
    out: Annotated[Path, typer.Option(help="Folder for sealed metrics and manifest.")],
    collateral: Collateral = None,
    gpu_collateral: GpuCollateral = None,
    base: Base = None,
    as_json: Json = False,
) -> None:
    """Measure a model on sealed data; only noisy or thresholded aggregates leave."""
    alone()
    from sealtrain.errors import UsageError
    from sealtrain.guest.run import start
    from sealtrain.recipe.lockfile import load_lock

    phase = load_lock(lock).recipe.phase
    if phase != "evaluate":
        raise UsageError(
            "this lock is of a training", got=phase, expected="evaluate", hint="sealtrain train"
        )
    settings = run_settings(
        lock,
        platform=platform,
        guest=guest,
        collateral=collateral,
        gpu_collateral=gpu_collateral,
        brokers=brokers,
        data=data,
        base=base,
        out=out,
    )
    outcome = start(settings, progress=False, missed=broker_missed, alone=True)
    if outcome.simulated:
        say("SIMULATED — NOT ATTESTED")
    metrics = metric_lines(outcome.metrics)
    shown = [f"run          {outcome.run_id}", *metrics, f"manifest     {outcome.manifest}"]
    emit(as_json, outcome.to_dict(), shown)
