"""``train`` and ``resume``: the run inside the guest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sealtrain.cli.output import Json, emit, say
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

if TYPE_CHECKING:
    from sealtrain.runner.closing import Outcome

__all__ = ["register"]

MetricsPort = Annotated[
    int | None,
    typer.Option(
        min=1, max=65535, help="Serve what may leave to Prometheus on this port of 127.0.0.1."
    ),
]


def register(app: typer.Typer) -> None:
    """Add this noun's commands to the root."""
    app.command()(train)
    app.command()(resume)


def train(
    lock: Annotated[Path, typer.Argument(help="recipe.lock.json")],
    platform: PlatformName,
    guest: GuestAddress,
    brokers: BrokerFiles,
    data: Data,
    out: Annotated[Path, typer.Option(help="Folder for checkpoints, model and manifest.")],
    collateral: Collateral = None,
    gpu_collateral: GpuCollateral = None,
    base: Base = None,
    metrics_port: MetricsPort = None,
    as_json: Json = False,
) -> None:
    """Attest, get the keys, train, seal the model, sign the manifest."""
    from sealtrain.runner.run import start

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
    _show(
        start(settings, progress=True, missed=broker_missed, metrics_port=metrics_port, alone=True),
        as_json,
    )


def resume(
    out: Annotated[Path, typer.Argument(help="Folder of the interrupted run.")],
    metrics_port: MetricsPort = None,
    as_json: Json = False,
) -> None:
    """Continue an interrupted run from its last sealed checkpoint, bit for bit."""
    from sealtrain.runner.run import resume as resume_run

    _show(
        resume_run(out, progress=True, missed=broker_missed, metrics_port=metrics_port, alone=True),
        as_json,
    )


def _show(outcome: Outcome, as_json: bool) -> None:
    if outcome.simulated:
        say("SIMULATED — NOT ATTESTED")
    metrics = [f"{name:<12} {value}" for name, value in outcome.metrics.items()]
    emit(
        as_json,
        outcome.to_dict(),
        [
            f"run          {outcome.run_id}",
            f"steps        {outcome.steps}",
            *metrics,
            f"model        {outcome.model}",
            f"manifest     {outcome.manifest}",
        ],
    )
