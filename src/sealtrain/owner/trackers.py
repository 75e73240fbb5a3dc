"""MLflow and Trackio, each by its own client library (extra ``track``).

MLflow's server has no identity for values: the run with the tag ``sealtrain.manifest`` is looked
for. A run counts as whole once its status is FINISHED; in any other, what is missing in its
histories is sent. Each process looks again at its end, and of two runs that were made at once the
one with the smaller id stays. Trackio's server keeps one value of each ``log_id``.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeVar

from sealtrain.base.extras import extra_missing
from sealtrain.owner.tracking import Tracked, TrackedRun
from sealtrain.storage.errors import StorageRefused, StorageUnreachable

_TAG: Final = "sealtrain.manifest"
_BATCH: Final = 900
"""Values of one request; MLflow takes 1000."""
_SECONDS: Final = 30
_TRIES: Final = 3
_BOUNDED: Final = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_HTTP_REDIRECTS": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": str(_TRIES),
    "MLFLOW_HTTP_REQUEST_TIMEOUT": str(_SECONDS),
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "DO_NOT_TRACK": "true",
    "HF_HUB_OFFLINE": "1",
}
"""Variables of the client libraries, set before they are loaded."""

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class MlflowTracker:
    """A server of MLflow.

    Attributes:
        server: Its URL.
        experiment: Name of the experiment that runs go to.
    """

    server: str
    experiment: str

    def track(self, run: TrackedRun) -> Tracked:
        """As ``tracking.Tracker.track``."""
        os.environ.update(_BOUNDED)
        try:
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise extra_missing("MLflow", "track", error) from error
        with _faults_told():
            client = MlflowClient(tracking_uri=self.server, registry_uri=self.server)
            experiment = self._experiment(client)
            before, sent = bool(_runs_at_mlflow(client, experiment, run)), 0
            for _ in range(_TRIES):
                place, more = self._make_whole(client, experiment, run)
                sent += more
                first = _runs_at_mlflow(client, experiment, run)[0].info.run_id
                if first == place:
                    return Tracked(place=place, sent=sent, before=before)
                client.delete_run(place)  # another process began at the same moment: its run stays
        raise StorageUnreachable("others track the same run over and over", check="tracker")

    def _make_whole(self, client: Any, experiment: str, run: TrackedRun) -> tuple[str, int]:
        """The first run with the manifest's tag, made where there is none; values sent to it."""
        from mlflow.entities import Metric

        there = _runs_at_mlflow(client, experiment, run)
        found = there[0] if there else None
        if found is not None and found.info.status == "FINISHED":
            return str(found.info.run_id), 0
        if found is None:
            found = client.create_run(
                experiment, start_time=run.started * 1000, tags=run.tags, run_name=run.run_id
            )
        place = str(found.info.run_id)
        have = _steps_at_mlflow(client, place, run) if there else {}
        missing = [
            Metric(name, math.nan if value is None else value, run.finished * 1000, point.step)
            for point in run.points
            for name, value in point.values.items()
            if point.step not in have.get(name, ())
        ]
        for batch in _batches(missing):
            client.log_batch(place, metrics=batch)
        client.set_terminated(place, status="FINISHED", end_time=run.finished * 1000)
        return place, len(missing)

    def _experiment(self, client: Any) -> str:
        from mlflow.exceptions import MlflowException

        found = client.get_experiment_by_name(self.experiment)
        if found is None:
            try:
                return str(client.create_experiment(self.experiment))
            except MlflowException:
                found = client.get_experiment_by_name(self.experiment)
                if found is None:  # no other process made it meanwhile
                    raise
        return str(found.experiment_id)


def _runs_at_mlflow(client: Any, experiment: str, run: TrackedRun) -> list[Any]:
    found = client.search_runs([experiment], f"tags.`{_TAG}` = '{run.manifest}'", max_results=100)
    return sorted(found, key=lambda there: str(there.info.run_id))


def _steps_at_mlflow(client: Any, place: str, run: TrackedRun) -> dict[str, set[int]]:
    names = {name for point in run.points for name in point.values}
    return {
        name: {metric.step for metric in client.get_metric_history(place, name)} for name in names
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackioTracker:
    """A server of Trackio.

    Attributes:
        server: Its URL.
        project: Name of the project that runs go to.
        token: The server's write token.
    """

    server: str
    project: str
    token: str | None = None

    def track(self, run: TrackedRun) -> Tracked:
        """As ``tracking.Tracker.track``."""
        os.environ.update(_BOUNDED)
        try:
            from trackio.remote_client import RemoteClient
        except ImportError as error:
            raise extra_missing("Trackio", "track", error) from error
        with _faults_told():
            client = RemoteClient(
                self.server, write_token=self.token, httpx_kwargs={"timeout": _SECONDS}
            )
            there = client.predict(project=self.project, api_name="/get_runs_for_project")
            before = any(found.get("id") == run.manifest for found in there)
            have = self._count_points(client, run) if before else 0
            if have >= len(run.points):
                return Tracked(place=run.manifest, sent=0, before=before)
            for batch in _batches(list(self._entries(run))):
                client.predict(logs=batch, hf_token=None, api_name="/bulk_log")
            have = self._count_points(client, run)
        if have < len(run.points):
            raise StorageUnreachable(
                "the tracker did not keep every value",
                check="tracker",
                got=have,
                expected=len(run.points),
                hint="run the command again: what is missing is sent",
            )
        return Tracked(place=run.manifest, sent=run.values, before=before)

    def _count_points(self, client: Any, run: TrackedRun) -> int:
        """The number of its points that the server has."""
        summary = client.predict(
            project=self.project, run_id=run.manifest, api_name="/get_run_summary"
        )
        return int(summary.get("num_logs") or 0)

    def _entries(self, run: TrackedRun) -> Iterator[dict[str, Any]]:
        for point in run.points:
            told = f"{run.manifest}/{point.step}/{'final' if point.final else 'curve'}"
            yield {
                "project": self.project,
                "run": run.run_id,
                "run_id": run.manifest,
                "step": point.step,
                "metrics": {
                    name: "NaN" if value is None else value for name, value in point.values.items()
                },
                "config": dict(run.tags),
                "log_id": hashlib.sha256(told.encode()).hexdigest(),
            }


def _batches(items: list[Item]) -> Iterator[list[Item]]:
    left = iter(items)
    while batch := list(islice(left, _BATCH)):
        yield batch


@contextmanager
def _faults_told() -> Iterator[None]:
    """Whatever a client library raises, as an error of ours that quotes no address.

    Raises:
        StorageRefused: The server answers that it will not.
        StorageUnreachable: Any other fault.
    """
    try:
        yield
    except (StorageUnreachable, KeyboardInterrupt):
        raise
    except Exception as error:
        status = _status_of(error)
        refused = status is not None and 300 <= status < 500 and status not in (408, 425, 429)
        made: Callable[..., StorageUnreachable] = StorageRefused if refused else StorageUnreachable
        raise made(
            "the tracker does not take the run",
            check="tracker",
            got=type(error).__name__ if status is None else f"HTTP {status}",
            hint="see that its server runs, is reachable from here and takes your token",
        ) from error


def _status_of(error: Exception) -> int | None:
    """The HTTP status that a client library's error holds."""
    response = getattr(error, "response", None)
    for found in (getattr(response, "status_code", None), _mlflow_status(error)):
        if isinstance(found, int):
            return found
    return None


def _mlflow_status(error: Exception) -> int | None:
    told = getattr(error, "get_http_status_code", None)
    if told is None or getattr(error, "error_code", None) == "INTERNAL_ERROR":
        return None  # also what the client makes of a connection that was refused
    found = told()
    return found if isinstance(found, int) else None
