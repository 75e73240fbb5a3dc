"""Servers of trackers that refuse, redirect, stall, lie or break: told, bounded, and begun again.

Real servers are in ``test_tracking_servers``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from private_network import Authority
from raw_server import server
from tracker_servers import Fault, Held, answered, tracker

from sealtrain.base.http import Bounds
from sealtrain.base.outbound import Outbound, reach_by
from sealtrain.errors import ConfigError, SealtrainError
from sealtrain.owner.tracker_server import TrackerServer
from sealtrain.owner.trackers import MlflowTracker, TrackioTracker, mlflow_authorization
from sealtrain.owner.tracking import Tracked, TrackedPoint, TrackedRun, Tracker
from sealtrain.storage.errors import StorageRefused, StorageUnreachable

pytestmark = pytest.mark.claim("C746")

SECRET = "token-of-a-test"  # noqa: S105  # of servers of these tests
QUICK = Bounds(connect=2.0, read=0.4, total=1.5, tries=2, pause=0.01)
RUN = TrackedRun(
    run_id="5a" * 16,
    manifest="ab" * 32,
    recipe_hash="cd" * 32,
    simulated=True,
    started=1_700_000_000,
    finished=1_700_000_100,
    points=(
        *(TrackedPoint(step=step, values={"loss": 1 / (1 + step)}) for step in range(7)),
        TrackedPoint(step=7, values={"loss": None, "accuracy": 0.5}),
        TrackedPoint(step=7, values={"final/loss": 0.1}, final=True),
    ),
)
WHOLE = {
    "mlflow": {(name, point.step) for point in RUN.points for name in point.values},
    "trackio": set(range(len(RUN.points))),
}


def made(kind: str, url: str) -> Tracker:
    if kind == "mlflow":
        return MlflowTracker(
            server=url, experiment="study", authorization=f"Bearer {SECRET}", bounds=QUICK
        )
    return TrackioTracker(server=url, project="study", token=SECRET, bounds=QUICK)


def held_by(kind: str, held: Held) -> set[Any]:
    if kind == "trackio":
        return set(range(len(held.logs)))
    (run,) = held.runs.values()
    assert all(len(values) == 1 for values in run["values"].values())
    return set(run["values"])


both = pytest.mark.parametrize("kind", ["mlflow", "trackio"])


@both
def test_a_run_is_sent_once_and_whole(kind: str) -> None:
    with tracker() as (url, held):
        first = made(kind, url).track(RUN)
        sent = len(held.heads)
        again = made(kind, url).track(RUN)
    assert (first.sent, first.before) == (RUN.values, False)
    assert again == Tracked(place=first.place, sent=0, before=True)
    assert held_by(kind, held) == WHOLE[kind]
    assert len(held.heads) - sent < sent
    header = "authorization: Bearer " if kind == "mlflow" else "x-trackio-write-token: "
    assert all(f"{header}{SECRET}".encode() in head for head in held.heads)


def whole(status: int, told: Any) -> Callable[[str], Fault]:
    return lambda where: lambda path, _number: (status, told) if path == where else None


def raw(data: bytes) -> Callable[[str], Fault]:
    return lambda where: lambda path, _number: data if path == where else None


LOGIN = answered(200, b"<html>please sign in</html>", "Content-Type: text/html")
DEEP = answered(200, b"[" * 100_000)
AWAY = answered(302, b"", "Location: https://elsewhere.example/?secret=1")
FAULTS: dict[str, tuple[Callable[[str], Fault], type[SealtrainError], str]] = {
    "401": (whole(401, {}), StorageRefused, "token"),
    "403": (whole(403, {"message": SECRET}), StorageRefused, "token"),
    "404": (whole(404, {"error": "no"}), StorageRefused, "tracker"),
    "400": (whole(400, {}), StorageRefused, "tracker"),
    "500": (whole(500, {}), StorageUnreachable, "tracker"),
    "501": (whole(501, {}), StorageUnreachable, "tracker"),
    "503": (whole(503, {}), StorageUnreachable, "tracker"),
    "429 for a day": (
        raw(answered(429, b"", "Retry-After: 86400")), StorageUnreachable, "tracker",
    ),
    "redirect": (raw(AWAY), StorageRefused, "tracker"),
    "redirect with a body": (
        raw(answered(308, b"{}", "Location: http://127.0.0.1:9/")), StorageRefused, "tracker",
    ),
    "a page to sign in": (raw(LOGIN), StorageRefused, "tracker"),
    "a list": (whole(200, [1, 2]), StorageRefused, "tracker"),
    "another object": (
        whole(200, {"data": 5, "error": "x", "runs": "x", "experiment": 7, "metrics": 1, "run": 0}),
        StorageRefused, "tracker",
    ),
    "deep": (raw(DEEP), StorageRefused, "tracker"),
    "a number of thousands of digits": (
        raw(answered(200, b'{"data":' + b"9" * 5000 + b"}")), StorageRefused, "tracker",
    ),
    "too long": (
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + b" " * (17 << 20)),
        StorageRefused, "tracker",
    ),
    "compressed": (raw(answered(200, b"{}", "Content-Encoding: gzip")), StorageRefused, "tracker"),
    "no HTTP": (raw(b"hello\r\n\r\n"), StorageUnreachable, "tracker"),
    "cut": (raw(b""), StorageUnreachable, "tracker"),
    "half": (
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{cut"), StorageUnreachable, "tracker",
    ),
}  # fmt: skip
FIRST = {"mlflow": "/api/2.0/mlflow/experiments/get-by-name", "trackio": "/version"}
SENDING = {"mlflow": "/api/2.0/mlflow/runs/log-batch", "trackio": "/api/bulk_log"}
SEEING = {"mlflow": "/api/2.0/mlflow/metrics/get-history", "trackio": "/api/get_run_summary"}


@both
@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("places", [FIRST, SENDING, SEEING], ids=["first", "sending", "seeing"])
def test_a_fault_is_told_and_the_same_command_goes_on(
    kind: str, name: str, places: dict[str, str]
) -> None:
    """Wherever it happens: nothing is told as sent, and afterwards nothing is there twice."""
    fault, error, check = FAULTS[name]
    if places is SENDING and kind == "mlflow" and name == "another object":
        error = StorageUnreachable  # the values are not there afterwards
    begun = time.monotonic()
    broken = [True]

    def now_and_then(path: str, number: int) -> Any:
        return fault(places[kind])(path, number) if broken[0] else None

    with tracker(now_and_then) as (url, held):
        with pytest.raises(error, check=carries(check=check)) as told:
            made(kind, url).track(RUN)
        assert time.monotonic() - begun < 30
        assert SECRET not in json.dumps(told.value.to_dict())
        assert "secret=1" not in json.dumps(told.value.to_dict())
        assert told.value.hint
        assert all(run["status"] != "FINISHED" for run in held.runs.values())
        broken[0] = False
        made(kind, url).track(RUN)
    assert held_by(kind, held) == WHOLE[kind]


@both
def test_no_redirect_is_followed_with_the_token(kind: str) -> None:
    with (
        server(lambda connection, _: connection.sendall(answered(200, b"{}"))) as (there, heads),
        tracker(lambda *_: answered(307, b"", f"Location: {there}/x")) as (url, _),
        pytest.raises(StorageRefused),
    ):
        made(kind, url).track(RUN)
    assert heads == []


@both
def test_values_that_a_server_takes_and_does_not_keep_are_not_told_as_sent(kind: str) -> None:
    lies: tuple[int, dict[str, Any]] = (200, {"data": None})
    with tracker(lambda path, _: lies if path == SENDING[kind] else None) as (url, held):
        with pytest.raises(StorageUnreachable) as told:
            made(kind, url).track(RUN)
        assert str(told.value.got) == "0"
        assert not any(run["status"] == "FINISHED" for run in held.runs.values())


def test_what_was_sent_before_a_connection_broke_is_not_sent_again() -> None:
    """The server keeps the values, and its answer is lost."""
    lost = [True]

    def lose(path: str, _number: int) -> Any:
        if lost[0] and path == SENDING["mlflow"]:
            (run,) = held.runs.values()
            run["values"] = {("loss", step): [0.0] for step in range(3)}
            return b""
        return None

    with tracker(lose) as (url, held):
        with pytest.raises(StorageUnreachable):
            made("mlflow", url).track(RUN)
        lost[0] = False
        told = made("mlflow", url).track(RUN)
    assert (told.sent, told.before) == (RUN.values - 3, True)
    assert held_by("mlflow", held) == WHOLE["mlflow"]


@both
def test_of_two_processes_at_once_one_run_stays(kind: str) -> None:
    """Between the search and the creation of this process's run another one made its own."""
    done: list[Tracked] = []

    def meanwhile(path: str, number: int) -> Any:
        if path == "/api/2.0/mlflow/runs/create" and number == 1:
            tags = [{"key": "sealtrain.manifest", "value": RUN.manifest}]
            held.runs["a-run-before"] = {"status": "RUNNING", "tags": tags, "values": {}}
        return None

    with tracker(meanwhile) as (url, held):
        done.append(made(kind, url).track(RUN))
    assert held_by(kind, held) == WHOLE[kind]
    if kind == "mlflow":
        assert done[0].place == "a-run-before"


@both
@pytest.mark.parametrize("drips", [False, True], ids=["silent", "dripping"])
def test_a_server_that_stalls_is_waited_for_within_bounds(kind: str, drips: bool) -> None:
    def stall(connection: Any, _number: int) -> None:
        if drips:
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n")
        for _ in range(100):
            time.sleep(0.1)
            if drips:
                connection.sendall(b" ")

    begun = time.monotonic()
    with server(stall) as (url, _), pytest.raises(StorageUnreachable):
        made(kind, url).track(RUN)
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize("token", ["again", "x" * 5000, 7, {"a": 1}])
def test_a_history_without_an_end_is_no_history(token: object) -> None:
    page = {"metrics": [{"step": step} for step in range(3000)], "next_page_token": token}
    with (
        tracker(lambda path, _: (200, page) if path == SEEING["mlflow"] else None) as (url, held),
        pytest.raises(StorageRefused),
    ):
        made("mlflow", url).track(RUN)
    assert held.counts[SEEING["mlflow"]] <= 100


def test_all_requests_of_a_command_have_one_end() -> None:
    now = [0.0]
    with (
        tracker() as (url, _),
        TrackerServer(url, "MLflow", read_from="X", longest=600.0, monotonic=lambda: now[0]) as it,
    ):
        assert it.ask("GET", "version") == {"api_version": 1}
        now[0] = 601.0
        with pytest.raises(StorageUnreachable, check=carries(check="tracker")):
            it.ask("GET", "version")


@both
@pytest.mark.parametrize("fault", ["foreign", "expired", "name", "self-signed"])
def test_tls_faults_name_what_is_wrong_with_the_certificate(
    kind: str, fault: str, tmp_path: Path
) -> None:
    bank, other = Authority(tmp_path / "bank"), Authority(tmp_path / "other", "Other CA")
    certificate = {
        "foreign": lambda: other.server("localhost"),
        "expired": lambda: bank.server("localhost", days=(-9, -2)),
        "name": lambda: bank.server("elsewhere.example"),
        "self-signed": lambda: bank.self_signed("localhost"),
    }[fault]()
    before = reach_by(lambda: Outbound(authorities=bank.pem.decode()))
    try:
        with tracker(certificate=certificate) as (url, held):
            with pytest.raises(StorageUnreachable, check=carries(check="tls")) as told:
                made(kind, url).track(RUN)
            assert told.value.hint
            assert not any(SECRET.encode() in head for head in held.heads)
    finally:
        reach_by(before)


@both
def test_a_private_authority_of_the_settings_counts_for_trackers(kind: str, tmp_path: Path) -> None:
    bank = Authority(tmp_path / "bank")
    before = reach_by(lambda: Outbound(authorities=bank.pem.decode()))
    try:
        with tracker(certificate=bank.server("localhost")) as (url, held):
            made(kind, url).track(RUN)
        assert held_by(kind, held) == WHOLE[kind]
    finally:
        reach_by(before)


@pytest.mark.parametrize("secret", ["a\r\nx-other: 1", "a\n", "schl\u00fcssel", "\x00"])
def test_credentials_that_no_header_may_hold_are_refused_and_not_quoted(secret: str) -> None:
    for tried in (
        MlflowTracker(server="http://127.0.0.1:9", experiment="x", authorization=secret),
        TrackioTracker(server="http://127.0.0.1:9", project="x", token=secret),
    ):
        with pytest.raises(ConfigError, check=carries(check="token")) as refused:
            tried.track(RUN)
        assert secret not in str(refused.value.to_dict())
        assert secret not in repr(tried)


def test_credentials_are_those_that_mlflows_own_client_reads() -> None:
    both_words = {"MLFLOW_TRACKING_USERNAME": "a", "MLFLOW_TRACKING_PASSWORD": "b:c"}
    assert mlflow_authorization({"MLFLOW_TRACKING_TOKEN": "t", **both_words}) == "Basic YTpiOmM="
    assert mlflow_authorization({"MLFLOW_TRACKING_TOKEN": "t"}) == "Bearer t"
    assert mlflow_authorization({"MLFLOW_TRACKING_USERNAME": "a"}) is None
    assert mlflow_authorization({}) is None
