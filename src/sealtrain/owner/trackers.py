"""MLflow and Trackio, each by the API of its server.

MLflow's server has no identity for values: the run with the tag ``sealtrain.manifest`` is looked
for. A run counts as whole once its status is FINISHED, which it gets after the server showed every
value; in any other, what is missing in its histories is sent. Each process looks again at its end,
and of two runs that were made at once the one with the smaller id stays. Trackio's server keeps one
value of each ``log_id``, and says how many it keeps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

from sealtrain.base.http import Bounds
from sealtrain.owner.tracker_server import BOUNDS, TrackerServer, basic_authorization
from sealtrain.owner.tracking import Tracked, TrackedRun
from sealtrain.storage.errors import StorageUnreachable

_TAG: Final = "sealtrain.manifest"
_BATCH: Final = 900
"""Values of one request; MLflow takes 1000."""
_TRIES: Final = 3
_MAX_PAGES: Final = 100
"""Of one metric's history."""
_MLFLOW: Final = "api/2.0/mlflow/"
_TRACKIO_API: Final = 1

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class MlflowTracker:
    """A server of MLflow.

    Attributes:
        server: Its URL.
        experiment: Name of the experiment that runs go to.
        authorization: Value of that header; a secret.
        bounds: Of each request.
    """

    server: str
    experiment: str
    authorization: str | None = field(default=None, repr=False)
    bounds: Bounds = BOUNDS

    def track(self, run: TrackedRun) -> Tracked:
        """As ``tracking.Tracker.track``."""
        credentials = {} if self.authorization is None else {"authorization": self.authorization}
        with TrackerServer(
            self.server,
            "MLflow",
            read_from="MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and _PASSWORD",
            headers=credentials,
            bounds=self.bounds,
        ) as server:
            return _MlflowRuns(server, self.experiment, run).track()


class _MlflowRuns:
    """The runs of one manifest at a server of MLflow."""

    def __init__(self, server: TrackerServer, experiment: str, run: TrackedRun) -> None:
        self._server = server
        self._name = experiment
        self._run = run

    def track(self) -> Tracked:
        """As ``tracking.Tracker.track``."""
        experiment = self._experiment()
        before, sent = bool(self._runs(experiment)), 0
        for _ in range(_TRIES):
            place, more = self._make_whole(experiment)
            sent += more
            there = self._runs(experiment)
            if not there:
                raise self._server.refuse_loss(0, self._run.values)
            if there[0][0] == place:
                return Tracked(place=place, sent=sent, before=before)
            # Another process began at the same moment: its run stays.
            self._ask("POST", "runs/delete", {"run_id": place})
        raise StorageUnreachable("others track the same run over and over", check="tracker")

    def _make_whole(self, experiment: str) -> tuple[str, int]:
        """The first run with the manifest's tag, made where there is none; values sent to it."""
        there = self._runs(experiment)
        place, status = there[0] if there else (self._create_run(experiment), "RUNNING")
        if status == "FINISHED":
            return place, 0
        missing = self._missing(place) if there else list(self._values())
        for batch in _batches(missing):
            self._ask("POST", "runs/log-batch", {"run_id": place, "metrics": batch}, twice=False)
        if left := len(self._missing(place)):
            raise self._server.refuse_loss(self._run.values - left, self._run.values)
        ended = {"status": "FINISHED", "end_time": self._run.finished * 1000}
        self._ask("POST", "runs/update", {"run_id": place, **ended})
        return place, len(missing)

    def _values(self) -> Iterator[dict[str, Any]]:
        for point in self._run.points:
            for name, value in point.values.items():
                yield {
                    "key": name,
                    "value": "NaN" if value is None else value,
                    "timestamp": self._run.finished * 1000,
                    "step": point.step,
                }

    def _missing(self, place: str) -> list[dict[str, Any]]:
        """The values of which the run's histories have no step."""
        values = list(self._values())
        wanted: dict[str, set[int]] = {}
        for value in values:
            wanted.setdefault(value["key"], set()).add(value["step"])
        have = {name: self._steps(place, name, steps) for name, steps in wanted.items()}
        return [value for value in values if value["step"] not in have[value["key"]]]

    def _steps(self, place: str, name: str, wanted: Set[int]) -> set[int]:
        """Which of the wanted steps a metric's history has; a server may send any number more."""
        steps: set[int] = set()
        query = {"run_id": place, "metric_key": name}
        for _ in range(_MAX_PAGES):
            told = self._ask("GET", f"metrics/get-history?{urlencode(query)}")
            for metric in _list(self._server, told, "metrics"):
                step = _whole(self._server, metric, "step")
                if step in wanted:
                    steps.add(step)
            if not told.get("next_page_token"):
                return steps
            query["page_token"] = _text(self._server, told, "next_page_token")
        raise self._server.refuse_answer("a history without an end")

    def _runs(self, experiment: str) -> list[tuple[str, str]]:
        """Id and status of each run with the manifest's tag, by id."""
        body = {
            "experiment_ids": [experiment],
            "filter": f"tags.`{_TAG}` = '{self._run.manifest}'",
            "max_results": 100,
        }
        told = self._ask("POST", "runs/search", body)
        infos = [
            _object(self._server, found, "info") for found in _list(self._server, told, "runs")
        ]
        return sorted(
            (_text(self._server, info, "run_id"), _text(self._server, info, "status"))
            for info in infos
        )

    def _create_run(self, experiment: str) -> str:
        body = {
            "experiment_id": experiment,
            "start_time": self._run.started * 1000,
            "run_name": self._run.run_id,
            "tags": [{"key": name, "value": value} for name, value in self._run.tags.items()],
        }
        made = _object(self._server, self._ask("POST", "runs/create", body, twice=False), "run")
        return _text(self._server, _object(self._server, made, "info"), "run_id")

    def _experiment(self) -> str:
        found = self._find_experiment()
        if found is not None:
            return found
        refused: StorageUnreachable | None = None
        try:
            self._ask("POST", "experiments/create", {"name": self._name}, twice=False)
        except StorageUnreachable as error:
            refused = error  # unless another process made it meanwhile
        found = self._find_experiment()
        if found is None:
            raise refused or self._server.refuse_answer("no experiment after one was made")
        return found

    def _find_experiment(self) -> str | None:
        query = urlencode({"experiment_name": self._name})
        told = self._server.ask(
            "GET",
            f"{_MLFLOW}experiments/get-by-name?{query}",
            absent=lambda answer: answer.get("error_code") == "RESOURCE_DOES_NOT_EXIST",
        )
        if told is None:
            return None
        return _text(self._server, _object(self._server, told, "experiment"), "experiment_id")

    def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, twice: bool = True
    ) -> dict[str, Any]:
        told = self._server.ask(method, f"{_MLFLOW}{path}", body, idempotent=twice)
        return told or {}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackioTracker:
    """A server of Trackio.

    Attributes:
        server: Its URL.
        project: Name of the project that runs go to.
        token: The server's write token.
        bounds: Of each request.
    """

    server: str
    project: str
    token: str | None = field(default=None, repr=False)
    bounds: Bounds = BOUNDS

    def track(self, run: TrackedRun) -> Tracked:
        """As ``tracking.Tracker.track``."""
        with TrackerServer(
            self.server,
            "Trackio",
            read_from="TRACKIO_WRITE_TOKEN",
            headers={} if self.token is None else {"x-trackio-write-token": self.token},
            bounds=self.bounds,
        ) as server:
            version = (server.ask("GET", "version") or {}).get("api_version")
            if version != _TRACKIO_API:
                raise server.refuse_answer("another version of its API, or none")
            have = self._count_points(server, run)
            if have >= len(run.points):
                return Tracked(place=run.manifest, sent=0, before=True)
            for batch in _batches(list(self._entries(run))):
                self._call(server, "bulk_log", logs=batch, hf_token=None)
            kept = self._count_points(server, run)
            if kept < len(run.points):
                raise server.refuse_loss(kept, len(run.points))
        return Tracked(place=run.manifest, sent=run.values, before=have > 0)

    def _count_points(self, server: TrackerServer, run: TrackedRun) -> int:
        """The number of its points that the server has."""
        told = self._call(server, "get_run_summary", project=self.project, run_id=run.manifest)
        return _whole(server, _object(server, told, "data"), "num_logs")

    def _call(self, server: TrackerServer, name: str, **words: Any) -> dict[str, Any]:
        told = server.ask("POST", f"api/{name}", {"args": [], "kwargs": words}) or {}
        if told.get("error") is not None:
            raise server.refuse_answer("an error in place of an answer")
        return told

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


def mlflow_authorization(variables: Mapping[str, str]) -> str | None:
    """What MLflow's own client sends, by the variables that it reads."""
    user = variables.get("MLFLOW_TRACKING_USERNAME")
    password = variables.get("MLFLOW_TRACKING_PASSWORD")
    token = variables.get("MLFLOW_TRACKING_TOKEN")
    if user and password:
        return basic_authorization(user, password)
    return f"Bearer {token}" if token else None


def _batches(items: list[Item]) -> Iterator[list[Item]]:
    left = iter(items)
    while batch := list(islice(left, _BATCH)):
        yield batch


def _object(server: TrackerServer, holder: Any, name: str) -> dict[str, Any]:
    found = holder.get(name) if isinstance(holder, dict) else None
    if not isinstance(found, dict):
        raise server.refuse_answer(f"an answer without {name}")
    return found


def _list(server: TrackerServer, holder: dict[str, Any], name: str) -> list[Any]:
    """A list, which MLflow leaves out where it is empty."""
    found = holder.get(name, [])
    if not isinstance(found, list):
        raise server.refuse_answer(f"an answer without {name}")
    return found


def _text(server: TrackerServer, holder: dict[str, Any], name: str) -> str:
    found = holder.get(name)
    if not isinstance(found, str) or not found.isprintable() or not 1 <= len(found) <= 256:
        raise server.refuse_answer(f"an answer without {name}")
    return found


def _whole(server: TrackerServer, holder: Any, name: str) -> int:
    """A whole number, which MLflow leaves out where it is 0 and may write as text."""
    found = holder.get(name, 0) if isinstance(holder, dict) else None
    if isinstance(found, str) and found.isascii() and found.isdigit() and len(found) < 19:
        found = int(found)
    if type(found) is not int:
        raise server.refuse_answer(f"an answer without {name}")
    return found
