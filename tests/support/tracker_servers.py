"""Servers of MLflow and Trackio as far as ``run track`` asks them; they fail as a test says."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from raw_server import server

Answered = tuple[int, Any]
Fault = Callable[[str, int], "Answered | bytes | None"]
"""What is answered to a path, the so-many-th request of it, in place of the truth; bytes raw."""


def answered(status: int, body: bytes, *headers: str) -> bytes:
    """A whole answer."""
    head = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", f"Content-Length: {len(body)}"]
    return "\r\n".join([*head, *headers, "", ""]).encode() + body


@dataclass
class Held:
    """What a server holds, and the requests that it was sent.

    Attributes:
        runs: MLflow's, by id: status, tags and values by name and step.
        logs: Trackio's, by log id.
        heads: Requests, body included.
    """

    experiments: dict[str, str] = field(default_factory=dict)
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    logs: dict[str, dict[str, Any]] = field(default_factory=dict)
    heads: list[bytes] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


def no_fault(_path: str, _number: int) -> None:
    return None


@contextmanager
def tracker(fault: Fault = no_fault, certificate: Path | None = None) -> Iterator[tuple[str, Held]]:
    """One server that speaks both APIs; its URL, and what it holds."""
    held = Held()

    def serve(connection: socket.socket, _number: int) -> None:
        head = heads[-1]
        words = head.split(b"\r\n", 1)[0].decode().split(" ")
        path = urlsplit(words[1]).path
        with held.lock:
            held.heads.append(head)
            held.counts[path] = held.counts.get(path, 0) + 1
            found = fault(path, held.counts[path])
            if found is None:
                body = head.partition(b"\r\n\r\n")[2]
                query = {name: v[0] for name, v in parse_qs(urlsplit(words[1]).query).items()}
                found = _true(held, path, json.loads(body) if body else query)
        if isinstance(found, bytes):
            connection.sendall(found)
            if not found or not found.startswith(b"HTTP/1.1") or found.endswith(b"cut"):
                connection.close()
            return
        status, told = found
        connection.sendall(answered(status, json.dumps(told).encode()))

    with server(serve, certificate=certificate) as (url, heads):
        yield url, held


def _true(held: Held, path: str, asked: dict[str, Any]) -> Answered:
    name = path.removeprefix("/api/2.0/mlflow/").removeprefix("/api/").removeprefix("/")
    return _ANSWERS[name](held, asked)


def _experiment(held: Held, asked: dict[str, Any]) -> Answered:
    found = held.experiments.get(asked["experiment_name"])
    if found is None:
        return 404, {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "none"}
    return 200, {"experiment": {"experiment_id": found, "name": asked["experiment_name"]}}


def _make_experiment(held: Held, asked: dict[str, Any]) -> Answered:
    held.experiments[asked["name"]] = str(len(held.experiments))
    return 200, {"experiment_id": held.experiments[asked["name"]]}


def _search(held: Held, asked: dict[str, Any]) -> Answered:
    wanted = asked["filter"].split("'")[1]
    runs = [
        {"info": {"run_id": name, "status": run["status"]}}
        for name, run in held.runs.items()
        if {"key": "sealtrain.manifest", "value": wanted} in run["tags"]
    ]
    return 200, {"runs": runs} if runs else {}


def _create(held: Held, asked: dict[str, Any]) -> Answered:
    name = f"run-{len(held.runs)}"
    held.runs[name] = {"status": "RUNNING", "tags": asked["tags"], "values": {}}
    return 200, {"run": {"info": {"run_id": name, "status": "RUNNING"}}}


def _log(held: Held, asked: dict[str, Any]) -> Answered:
    for metric in asked["metrics"]:
        place = (metric["key"], metric["step"])
        held.runs[asked["run_id"]]["values"].setdefault(place, []).append(metric["value"])
    return 200, {}


def _history(held: Held, asked: dict[str, Any]) -> Answered:
    values = held.runs[asked["run_id"]]["values"]
    steps = sorted(step for key, step in values if key == asked["metric_key"])
    begin = int(asked.get("page_token", 0))
    told: dict[str, Any] = {"metrics": [{"step": str(step)} for step in steps[begin : begin + 2]]}
    if begin + 2 < len(steps):
        told["next_page_token"] = str(begin + 2)
    return 200, told


def _update(held: Held, asked: dict[str, Any]) -> Answered:
    held.runs[asked["run_id"]]["status"] = asked["status"]
    return 200, {"run_info": {"status": asked["status"]}}


def _delete(held: Held, asked: dict[str, Any]) -> Answered:
    del held.runs[asked["run_id"]]
    return 200, {}


def _bulk_log(held: Held, asked: dict[str, Any]) -> Answered:
    for entry in asked["kwargs"]["logs"]:
        held.logs[entry["log_id"]] = entry
    return 200, {"data": None}


def _summary(held: Held, _asked: dict[str, Any]) -> Answered:
    return 200, {"data": {"num_logs": len(held.logs)}}


_ANSWERS: dict[str, Callable[[Held, dict[str, Any]], Answered]] = {
    "experiments/get-by-name": _experiment,
    "experiments/create": _make_experiment,
    "runs/search": _search,
    "runs/create": _create,
    "runs/log-batch": _log,
    "metrics/get-history": _history,
    "runs/update": _update,
    "runs/delete": _delete,
    "version": lambda _held, _asked: (200, {"api_version": 1}),
    "bulk_log": _bulk_log,
    "get_run_summary": _summary,
}
