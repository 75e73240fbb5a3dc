"""``run track``: what a run released, handed to MLflow or Trackio."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import typer

from sealtrain.cli.output import Json, emit, say
from sealtrain.errors import UsageError
from sealtrain.manifest.files import manifest_at, verify_file
from sealtrain.manifest.predicate import SIMULATED_MARKER
from sealtrain.owner.trackers import MlflowTracker, TrackioTracker, mlflow_authorization
from sealtrain.owner.tracking import Tracker, require_tracker, track_verified

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def track(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder of a finished run, or its manifest.json.")
    ],
    trust: Annotated[Path, typer.Option(help="What you trust (YAML).")],
    *,
    tracker: Annotated[str, typer.Option(help="mlflow or trackio.")],
    tracking_uri: Annotated[str, typer.Option(help="URL of the tracker's server.")],
    experiment: Annotated[
        str, typer.Option(help="MLflow: the experiment. Trackio: the project.")
    ] = "sealtrain",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be sent, and send nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Hand the released metrics of a verified run to MLflow or Trackio, once.

    Only of a manifest that verifies: metrics by step, run id, recipe hash, manifest digest and
    times. Asked again, it sends what is missing and nothing twice. Credentials come from the
    variables that the trackers' own clients read: MLFLOW_TRACKING_TOKEN, or
    MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD; TRACKIO_WRITE_TOKEN. A private authority
    and a proxy are those of every command. A tracker has ten minutes.
    """
    client = _tracker(tracker, require_tracker(tracking_uri), experiment)
    verified = verify_file(manifest_at(run), trust, artefacts=None)
    told = track_verified(verified)
    if told.simulated:
        say(SIMULATED_MARKER)
    if dry_run:
        lines = [f"{point.step:>8}  {point.values}" for point in told.points]
        tags = [f"{name} {value}" for name, value in told.tags.items()]
        emit(as_json, {"sent": False, **told.to_dict()}, [*tags, *lines])
        return
    done = client.track(told)
    state = "was there already" if done.before and not done.sent else f"{done.sent} values sent"
    emit(as_json, done.to_dict(), [f"tracked  {told.run_id}, {state}", f"as       {done.place}"])


def _tracker(name: str, server: str, experiment: str) -> Tracker:
    if not _NAME.fullmatch(experiment):
        raise UsageError(
            "not a name of an experiment or project",
            check="--experiment",
            got=experiment[:80],
            expected="1 to 64 of letters, digits, dots, hyphens and underscores",
        )
    if name == "mlflow":
        return MlflowTracker(
            server=server,
            experiment=experiment,
            authorization=mlflow_authorization(os.environ),
        )
    if name == "trackio":
        token = os.environ.get("TRACKIO_WRITE_TOKEN")
        return TrackioTracker(server=server, project=experiment, token=token)
    raise UsageError(
        "unknown tracker", check="--tracker", got=name[:80], expected="mlflow or trackio"
    )
