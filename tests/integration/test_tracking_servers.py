"""``sealtrain run track`` with real servers of MLflow and Trackio, in an environment of their own.

Both are installed by ``tools/tracking/pins.txt`` in front of the
libraries that run this test. Without a package index the tests skip.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from manifest_world import World, make_world
from ports import free_port

from sealtrain.base.yamltext import yaml_text

pytestmark = [pytest.mark.long, pytest.mark.nightly, pytest.mark.claim("C681")]

PINS = Path(__file__).resolve().parents[2] / "tools/tracking/pins.txt"
TOKEN = "write-token-of-a-test"  # noqa: S105  # of a server of this test
SECONDS = 300


@dataclass(frozen=True)
class Site:
    """A run, and the environment in which trackers are installed."""

    folder: Path
    python: str
    world: World

    def environment(self, **further: str) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        return kept | {"HOME": str(self.folder), "MLFLOW_DISABLE_TELEMETRY": "true"} | further

    def track(self, to: str, url: str, *words: str) -> Any:
        command = [
            self.python, "-m", "sealtrain", "run", "track", "run", "--trust", "trust.yaml",
            "--tracker", to, "--tracking-uri", url, "--experiment", "study", "--json", *words,
        ]  # fmt: skip
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment(TRACKIO_WRITE_TOKEN=TOKEN),
            capture_output=True, text=True, timeout=SECONDS,
        )  # fmt: skip
        return done.returncode, json.loads(done.stdout)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("tracking")
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    python = str(folder / "venv/bin/python")
    install = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-compile"]
    done = subprocess.run([*install, "--no-deps", "-r", str(PINS)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no trackers here: {done.stderr.strip().splitlines()[-1][:200]}")
    lent = [path for path in sys.path if path.endswith("site-packages")]
    packages = next((folder / "venv/lib").glob("python*/site-packages"))
    lines = "".join(f"import site; site.addsitedir({path!r})\n" for path in lent)
    (packages / "zz-lent.pth").write_text(lines)
    world = make_world(folder / "world")
    (folder / "run").mkdir()
    (folder / "run/manifest.json").write_bytes(world.manifest(_diverge))
    (folder / "trust.yaml").write_text(yaml_text(world.trust_document()))
    return Site(folder, python, world)


def _diverge(predicate: dict[str, Any]) -> None:
    predicate["run"]["history"][-1]["values"]["loss"] = None


def released(site: Site) -> list[tuple[str, int, float | None]]:
    """Every value that a tracker must hold, and no other."""
    run = site.world.facts["run"]
    points = [(name, p["step"], v) for p in run["history"] for name, v in p["values"].items()]
    points[-1] = (*points[-1][:2], None)
    return points + [(f"final/{name}", run["steps"], v) for name, v in run["metrics"].items()]


@contextmanager
def serving(site: Site, words: Sequence[str], url: str, **variables: str) -> Iterator[str]:
    with (site.folder / f"{words[0]}.log").open("ab") as log:
        process = subprocess.Popen(
            [str(Path(site.python).with_name(words[0])), *words[1:]],
            cwd=site.folder, env=site.environment(**variables), stdout=log, stderr=log,
        )  # fmt: skip
    try:
        until = time.monotonic() + SECONDS
        while True:
            assert process.poll() is None
            try:
                urllib.request.urlopen(url, timeout=5).close()  # noqa: S310  # the same
                break
            except urllib.error.HTTPError:
                break
            except OSError:
                assert time.monotonic() < until
                time.sleep(0.5)
        yield url
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture(scope="module")
def mlflow(site: Site) -> Iterator[str]:
    port = free_port()
    words = [
        "mlflow", "server", "--backend-store-uri", f"sqlite:///{site.folder}/mlflow.db",
        "--artifacts-destination", str(site.folder / "artifacts"), "--host", "127.0.0.1",
        "--port", str(port), "--workers", "1",
    ]  # fmt: skip
    with serving(site, words, f"http://127.0.0.1:{port}") as url:
        yield url


@pytest.fixture(scope="module")
def trackio(site: Site) -> Iterator[str]:
    port = free_port()
    variables = {
        "TRACKIO_DIR": str(site.folder / "trackio"), "TRACKIO_WRITE_TOKEN": TOKEN,
        "GRADIO_SERVER_PORT": str(port),
    }  # fmt: skip
    words = ["trackio", "show", "--host", "127.0.0.1"]
    with serving(site, words, f"http://127.0.0.1:{port}", **variables) as url:
        yield url


def asked(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(  # noqa: S310  # a server of this test
        url, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
        return json.load(answer)


def at_mlflow(url: str) -> list[dict[str, Any]]:
    found = asked(f"{url}/api/2.0/mlflow/experiments/search", {"max_results": 100})["experiments"]
    (study,) = [item["experiment_id"] for item in found if item["name"] == "study"]
    body = {"experiment_ids": [study], "max_results": 100}
    runs: list[dict[str, Any]] = asked(f"{url}/api/2.0/mlflow/runs/search", body).get("runs", [])
    return runs


def values_at_mlflow(url: str, run_id: str, names: set[str]) -> list[tuple[str, int, float | None]]:
    found: list[tuple[str, int, float | None]] = []
    for name in names:
        place = f"{url}/api/2.0/mlflow/metrics/get-history?run_id={run_id}&metric_key={name}"
        with urllib.request.urlopen(place, timeout=60) as answer:  # noqa: S310  # the same
            for metric in json.load(answer)["metrics"]:
                value = float(metric["value"])
                shown = None if math.isnan(value) else value
                found.append((name, int(metric.get("step", 0)), shown))
    return found


def ordered(values: list[tuple[str, int, float | None]]) -> list[tuple[str, int, str]]:
    return sorted((name, step, repr(value)) for name, step, value in values)


def test_mlflow_holds_a_run_once_however_often_it_is_sent(site: Site, mlflow: str) -> None:
    with ThreadPoolExecutor(2) as both:
        answers = list(both.map(lambda _: site.track("mlflow", mlflow), range(2)))
    assert [code for code, _ in answers] == [0, 0]
    assert site.track("mlflow", mlflow)[1]["sent"] == 0
    (run,) = at_mlflow(mlflow)
    wanted = released(site)
    names = {name for name, _, _ in wanted}
    assert {metric["key"] for metric in run["data"]["metrics"]} == names
    held = values_at_mlflow(mlflow, run["info"]["run_id"], names)
    assert ordered(held) == ordered(wanted)
    tags = {tag["key"] for tag in run["data"]["tags"]}
    assert tags - {"mlflow.runName"} == {
        "sealtrain.manifest", "sealtrain.run_id", "sealtrain.recipe_hash", "sealtrain.simulated",
    }  # fmt: skip
    assert run["data"].get("params", []) == []


def test_mlflow_gets_what_is_missing_of_an_interrupted_run(site: Site, mlflow: str) -> None:
    (site.folder / "begun").mkdir()
    _, whole = site.track("mlflow", mlflow, "--dry-run")
    made = asked(f"{mlflow}/api/2.0/mlflow/experiments/create", {"name": "begun"})
    tags = [{"key": key, "value": value} for key, value in whole["tags"].items()]
    body = {"experiment_id": made["experiment_id"], "tags": tags, "run_name": "begun"}
    run = asked(f"{mlflow}/api/2.0/mlflow/runs/create", body)["run"]["info"]["run_id"]
    point = whole["points"][0]
    metric = {"key": "loss", "value": point["values"]["loss"], "step": point["step"]}
    asked(
        f"{mlflow}/api/2.0/mlflow/runs/log-metric",
        {"run_id": run, "timestamp": whole["finished"] * 1000, **metric},
    )
    code, told = site.track("mlflow", mlflow, "--experiment", "begun")
    wanted = released(site)
    assert (code, told["place"], told["before"]) == (0, run, True)
    assert told["sent"] == len(wanted) - 1
    held = values_at_mlflow(mlflow, run, {name for name, _, _ in wanted})
    assert ordered(held) == ordered(wanted)


def test_trackio_holds_a_run_once_however_often_it_is_sent(site: Site, trackio: str) -> None:
    with ThreadPoolExecutor(2) as both:
        answers = list(both.map(lambda _: site.track("trackio", trackio), range(2)))
    assert [code for code, _ in answers] == [0, 0]
    assert site.track("trackio", trackio)[1]["sent"] == 0
    (run,) = asked(f"{trackio}/api/get_runs_for_project", {"args": ["study"], "kwargs": {}})["data"]
    manifest = answers[0][1]["place"]
    assert run["id"] == manifest
    body = {"args": [], "kwargs": {"project": "study", "run_id": manifest}}
    logs = asked(f"{trackio}/api/get_logs", body)["data"]
    held = [
        (name, line["step"], value if isinstance(value, float | int) else None)
        for line in logs
        for name, value in line.items()
        if name not in ("step", "timestamp")
    ]
    assert [(n, s, v) for n, s, v in ordered_values(held)] == ordered_values(released(site))


def ordered_values(values: list[Any]) -> list[tuple[str, int, str]]:
    return sorted(
        (name, step, "-" if v is None or math.isnan(v) else repr(float(v)))
        for name, step, v in values
    )


def test_a_wrong_token_and_a_server_that_is_gone_are_told_apart(site: Site, trackio: str) -> None:
    command = [
        site.python, "-m", "sealtrain", "run", "track", "run", "--trust", "trust.yaml", "--tracker",
        "trackio", "--tracking-uri", trackio, "--experiment", "other", "--json",
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=site.folder, env=site.environment(TRACKIO_WRITE_TOKEN="wrong"),
        capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    told = json.loads(done.stdout)["error"]
    assert (done.returncode, told["code"]) == (4, "storage-refused")
    assert "wrong" not in done.stdout + done.stderr
    for to in ("mlflow", "trackio"):
        code, told = site.track(to, f"http://127.0.0.1:{free_port()}")
        assert (code, told["error"]["code"]) == (4, "storage-unreachable")
