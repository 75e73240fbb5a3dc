"""``train`` and ``resume``: the run inside the guest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sealtrain.cli.output import Json, emit, say

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
    platform: Annotated[str, typer.Option(help="dstack or simulator: what proves the guest.")],
    guest: Annotated[Path, typer.Option(help="Socket of the guest API.")],
    collateral: Annotated[str, typer.Option(help="Collateral of the guest's quotes: file:…")],
    broker: Annotated[Path, typer.Option(help="Broker file (made by: sealtrain broker pin).")],
    data: Annotated[
        list[str],
        typer.Option(help="Sealed dataset, a folder of them, or a URL of one (https, s3); repeat."),
    ],
    out: Annotated[Path, typer.Option(help="Folder for checkpoints, model and manifest.")],
    base: Annotated[
        Path | None, typer.Option(help="Folder the recipe's paths start from [the lock's].")
    ] = None,
    metrics_port: MetricsPort = None,
    as_json: Json = False,
) -> None:
    """Attest, get the keys, train, seal the model, sign the manifest."""
    from sealtrain.runner.run import start
    from sealtrain.runner.settings import RunSettings, place_of, platform_of

    settings = RunSettings(
        lock=lock,
        platform=platform_of(platform),
        guest=guest,
        collateral=collateral,
        broker=broker,
        data=tuple(place_of(one) for one in data),
        base=base or lock.parent,
        out=out,
    )
    _show(start(settings, progress=True, metrics_port=metrics_port, alone=True), as_json)


def resume(
    out: Annotated[Path, typer.Argument(help="Folder of the interrupted run.")],
    metrics_port: MetricsPort = None,
    as_json: Json = False,
) -> None:
    """Continue an interrupted run from its last sealed checkpoint, bit for bit."""
    from sealtrain.runner.run import resume as resume_run

    _show(resume_run(out, progress=True, metrics_port=metrics_port, alone=True), as_json)


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
