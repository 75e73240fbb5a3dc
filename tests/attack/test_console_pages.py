"""Pages under attack: other sites, hostile names, brokers that lie, stall or are gone."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from collecting import COLLECTING
from hostile import HOSTILE
from http_server import Handler, http_served
from manifest_world import RUN_ID

from sealtrain_console.web.curves import Curves
from sealtrain_console.web.policy import MAX_BODY_BYTES
from sealtrain_console.web.serving import serving
from sealtrain_console.web.sources import Sources

if not COLLECTING:
    from console_world import LIVE_ID, PAGES, ConsoleWorld, console_world, live_run, visited

    from sealtrain_console.web.app import console_app

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleWorld]:
    with console_world(tmp_path_factory.mktemp("console")) as made:
        yield made


def asked(
    url: str, path: str, method: str = "GET", body: bytes = b"", **headers: str
) -> tuple[int, dict[str, str], str]:
    """One request exactly as a test writes it."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection("127.0.0.1", parts.port, timeout=30)
    given = {
        "Host": f"localhost:{parts.port}",
        **{k.replace("_", "-"): v for k, v in headers.items()},
    }
    connection.request(method, path, body=body, headers=given)
    answer = connection.getresponse()
    text = answer.read().decode()
    told = {name.lower(): value for name, value in answer.getheaders()}
    connection.close()
    return answer.status, told, text


# Other sites


@pytest.mark.claim("C209")
@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example:80",
        "127.0.0.1.nip.io",
        "localhost:80:80",
        "",
        "example",
    ],
)
def test_a_name_of_another_site_reaches_no_page(host: str, world: ConsoleWorld) -> None:
    status, _, text = asked(world.url, "/consortium", Host=host)
    assert status == 403
    assert 'data-code="cross-site-refused"' in text
    assert "hospital-a" not in text


@pytest.mark.claim("C209")
@pytest.mark.parametrize("site", ["cross-site", "same-site", "odd"])
def test_what_another_site_loads_is_refused(site: str, world: ConsoleWorld) -> None:
    status, _, text = asked(world.url, "/consortium", Sec_Fetch_Site=site, Sec_Fetch_Mode="no-cors")
    assert status == 403
    assert "hospital-a" not in text
    link = {"Sec_Fetch_Site": site, "Sec_Fetch_Mode": "navigate"}
    assert asked(world.url, "/consortium", **link)[0] == 200  # a link that a person follows
    assert asked(world.url, "/consortium", **link, Sec_Fetch_Dest="document")[0] == 200
    for dest in ("iframe", "frame", "object", "embed"):
        assert asked(world.url, "/consortium", **link, Sec_Fetch_Dest=dest)[0] == 403


@pytest.mark.claim("C209")
@pytest.mark.parametrize(
    "origin", [None, "null", "http://evil.example", "https://localhost", "http://localhost:1"]
)
def test_only_a_page_of_the_console_makes_it_ask_the_agent(
    origin: str | None, world: ConsoleWorld
) -> None:
    headers = {} if origin is None else {"Origin": origin}
    status, _, text = asked(world.url, "/agent/prepare", "POST", b"{}", **headers)
    assert status == 403
    assert 'data-code="cross-site-refused"' in text


@pytest.mark.claim("C209")
def test_a_body_without_end_is_cut(world: ConsoleWorld) -> None:
    host = urlsplit(world.url).netloc
    long = b"[" * (MAX_BODY_BYTES + 1)
    status, _, text = asked(world.url, "/agent/sign", "POST", long, Origin=f"http://{host}")
    assert status == 413
    assert 'data-code="request-too-large"' in text


@pytest.mark.claim("C209")
@pytest.mark.parametrize(
    "path",
    [
        "/consortium", f"/runs/{RUN_ID}", "/static/run.js", "/nowhere", "/static/../policy.py",
        "/static/%2e%2e%2fpolicy.py", "/runs/" + "f" * 4000, "/consortium/%00", "//evil.example",
    ],
)  # fmt: skip
def test_every_answer_forbids_what_a_page_does_not_need(path: str, world: ConsoleWorld) -> None:
    status, headers, text = asked(world.url, path)
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "*" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert "Guarded" not in text
    assert status in (200, 400, 404)


@pytest.mark.claim("C209")
def test_it_listens_on_loopback_alone(world: ConsoleWorld) -> None:
    port = urlsplit(world.url).port
    with socket.socket() as probe:
        probe.settimeout(2)
        try:
            probe.connect(("192.0.2.1", port))  # nothing is there: a sure miss
            reached = True
        except OSError:
            reached = False
    assert not reached
    listening = Path("/proc/net/tcp").read_text().splitlines()[1:]
    places = {line.split()[1] for line in listening if line.split()[3] == "0A"}
    assert f"0100007F:{port:04X}" in places
    assert f"00000000:{port:04X}" not in places


EVIL = Path(__file__).parents[1].joinpath("support/evil_page.html").read_text()


@pytest.mark.nightly
@pytest.mark.claim("C209")
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_malicious_page_in_the_same_browser_reads_and_does_nothing(
    host: str, world: ConsoleWorld, tmp_path: Path
) -> None:
    """Of another site, and of another port of the same one."""
    agent = tmp_path / "agent"
    page = EVIL.replace("TARGET", json.dumps(world.url)).replace("LIVE", LIVE_ID).encode()

    class Evil(Handler):
        def do_GET(self) -> None:
            self.answer(200, page, content_type="text/html; charset=utf-8")

    asked_of_agent: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as listener, http_served(Evil) as evil:
        listener.bind(str(agent))
        listener.listen()
        sources = replace(world.sources, agent=agent)
        app = console_app(PAGES, {"sources": sources, "curves": Curves()})
        with serving(app) as url:
            page = page.replace(world.url.encode(), url.encode())
            there = evil.replace("127.0.0.1", host)
            steps = [{"until": "window.tried", "patience": 30000}, {"get": "window.tried"}]
            [answer] = visited([{"url": there, "width": 1280, "dark": False, "steps": steps}])
            settled, tried = answer["got"]
        listener.setblocking(False)
        with suppress(BlockingIOError):
            asked_of_agent.append(listener.accept()[0].recv(1 << 16))
    assert settled
    assert len(tried) == 12
    assert {name: found for name, found in tried.items() if not found.startswith("refused")} == {}
    assert asked_of_agent == []


# Brokers that lie, stall or are gone


@contextmanager
def broker_that(answer: bytes | None) -> Iterator[int]:
    """A port that answers every request so; ``None`` says nothing at all."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.1)
        kept: list[socket.socket] = []

        def serve() -> None:
            while not over.is_set():
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                kept.append(connection)
                if answer is not None:
                    connection.settimeout(2)
                    try:
                        connection.recv(65536)
                        head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(answer)}\r\n"
                        kind = "content-type: application/json\r\nconnection: close\r\n\r\n"
                        connection.sendall((head + kind).encode() + answer)
                        connection.close()
                    except OSError:
                        continue

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            over.set()
            thread.join()
            for connection in kept:
                connection.close()


LIES: dict[str, tuple[bytes | None, str]] = {
    "stalls": (None, "broker-unreachable"),
    "no JSON": (b"<html>", "answer-invalid"),
    "another form": (b'{"decisions": 7}', "answer-invalid"),
    "a script": (json.dumps({"x": HOSTILE}).encode(), "answer-invalid"),
}


@pytest.mark.claim("C210")
@pytest.mark.parametrize("lie", [*LIES, "gone"])
def test_a_broker_that_does_not_tell_is_named_typed_and_in_time(
    lie: str, world: ConsoleWorld, tmp_path: Path
) -> None:
    answer, code = LIES.get(lie, (b"", "broker-unreachable"))
    with broker_that(answer) as port:
        if lie == "gone":
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
        file = tmp_path / "broker.yaml"
        pin = world.site.pin.model_copy(update={"url": f"http://127.0.0.1:{port}"})
        file.write_text(pin.to_yaml())
        sources = Sources(
            consortium=world.sources.consortium,
            brokers=(file, *world.sources.brokers),
            deployments=world.sources.deployments,
            runs=world.sources.runs,
            exchange_seconds=1.0,
            broker_seconds=1.0,
        )
        app = console_app(PAGES, {"sources": sources, "curves": Curves()})
        with serving(app) as url:
            for path in (
                f"/consortium/{world.compose_hash}/standing",
                f"/runs/{RUN_ID}/ledger",
                "/runs/submitted",
            ):
                began = time.monotonic()
                status, _, text = asked(url, path)
                assert time.monotonic() - began < 8
                assert status == 200
                assert f'data-code="{code}"' in text
                assert f"127.0.0.1:{port}" in text
                assert "<img" not in text
            # The honest broker beside it is still shown.
            assert (
                'data-sealed="true"' in asked(url, f"/consortium/{world.compose_hash}/standing")[2]
            )


@contextmanager
def relay(port: int, seconds: float) -> Iterator[int]:
    """A port that hands everything on to another, each answer so much later."""
    over = threading.Event()

    def carry(near: socket.socket) -> None:
        with near, socket.create_connection(("127.0.0.1", port)) as far:
            near.settimeout(10)
            far.settimeout(10)
            try:
                while not over.is_set() and (data := near.recv(65536)):
                    far.sendall(data)
                    answer = far.recv(1 << 20)
                    over.wait(seconds)
                    near.sendall(answer)
            except OSError:
                return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.1)

        def serve() -> None:
            while not over.is_set():
                try:
                    near, _ = listener.accept()
                except TimeoutError:
                    continue
                threading.Thread(target=carry, args=(near,), daemon=True).start()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            over.set()
            thread.join()


@pytest.mark.claim("C210")
def test_a_broker_that_answers_everything_late_is_given_up_in_time(
    world: ConsoleWorld, tmp_path: Path
) -> None:
    """Each of its answers is in time, and all of them together are not."""
    port = urlsplit(world.client.url).port
    assert port is not None
    with relay(port, 0.7) as slow:
        file = tmp_path / "slow.yaml"
        pin = world.site.pin.model_copy(update={"url": f"http://127.0.0.1:{slow}"})
        file.write_text(pin.to_yaml())
        sources = Sources(
            consortium=world.sources.consortium,
            brokers=(file,),
            deployments=world.sources.deployments,
            exchange_seconds=1.5,
            broker_seconds=1.0,
        )
        with serving(console_app(PAGES, {"sources": sources, "curves": Curves()})) as url:
            began = time.monotonic()
            _, _, text = asked(url, f"/consortium/{world.compose_hash}/standing")
            assert time.monotonic() - began < 3
    assert 'data-code="broker-unreachable"' in text
    assert "approves" not in text


@pytest.mark.claim("C210")
def test_a_broker_that_keeps_a_decision_back_shows_less_and_never_more(
    world: ConsoleWorld, tmp_path: Path
) -> None:
    """Another broker of the consortium that holds no approval: the page shows the one behind."""
    with world.site.serving("empty") as empty:
        file = world.site.broker_file(empty, "empty.yaml")
        sources = Sources(
            consortium=world.sources.consortium,
            brokers=(*world.sources.brokers, file),
            deployments=world.sources.deployments,
        )
        with serving(console_app(PAGES, {"sources": sources, "curves": Curves()})) as url:
            text = asked(url, f"/consortium/{world.compose_hash}/standing")[2]
    assert "0 approve, 2 needed" in text
    assert 'class="approved"' not in text
    assert 'role="alert"' in text


# Hostile names


@pytest.mark.claim("C211")
def test_hostile_text_in_every_field_stays_text(world: ConsoleWorld, tmp_path: Path) -> None:
    """Names of folders, metrics, alerts and checkpoints, and a file that is no manifest."""
    bad = live_run(tmp_path / "runs" / HOSTILE.replace("/", "_"), points=3)
    lines = [
        {"step": 4, "values": {HOSTILE: 1.0, "__proto__": 2.0, "constructor": 3.0}},
        {"step": 5, "values": {"loss": "NaN"}},
        {"step": -1, "values": {}},
        {"step": 6, "values": {"loss": 1e308}},
    ]
    with (bad / "metrics.jsonl").open("a") as file:
        file.write(
            "\n".join(json.dumps(line) for line in lines) + "\nnot json\n" + "[" * 9000 + "\n"
        )
    (bad / "alerts.jsonl").write_text(
        json.dumps({"alert": HOSTILE, "step": 1, "threshold": None}) + "\n{}\n"
    )
    (bad / "checkpoints").mkdir()
    (bad / "checkpoints" / "x.sealed").write_bytes(b"no checkpoint")
    broken = tmp_path / "runs" / "broken"
    broken.mkdir()
    (broken / "manifest.json").write_text(json.dumps({"a": HOSTILE}))
    (tmp_path / "app-compose.json").write_text(json.dumps({"name": HOSTILE}))
    sources = Sources(
        consortium=world.sources.consortium,
        deployments=(tmp_path / "app-compose.json",),
        runs=(tmp_path / "runs",),
    )
    with serving(console_app(PAGES, {"sources": sources, "curves": Curves()})) as url:
        pages = ["/consortium", "/runs", f"/runs/{LIVE_ID}", f"/nowhere?{'q=%3Cscript%3E' * 9}"]
        found = visited([{"url": url + path, "width": 390, "dark": False} for path in pages])
        raw = "".join(asked(url, path)[2] for path in pages)
    assert "<img" not in raw
    assert "\u202e" not in raw
    assert "\u200b" not in raw
    for answer in found:
        assert answer["violations"] == []
        assert all(text.startswith(url) for text in answer["asked"])
        assert answer["width"] <= 390
    run = found[2]
    assert "\\u{202e}" in run["text"]
    assert run["drawn"]["state"] == "shown"
    assert int(run["drawn"]["step"]) == 6
    assert "4 lines" in run["text"]


@pytest.mark.claim("C211")
def test_a_file_of_metrics_that_is_swapped_shrinks_or_is_endless_is_read_anew(
    tmp_path: Path,
) -> None:
    folder = live_run(tmp_path / "run", points=50)
    curves, path = Curves(), folder / "metrics.jsonl"
    assert curves.of(path).to_dict()["step"] == 50
    path.write_text(json.dumps({"step": 2, "values": {"loss": 1.0}}) + "\n")
    assert curves.of(path).to_dict() == {
        "step": 2,
        "left_out": 0,
        "curves": {"loss": {"steps": [2], "values": [1.0], "last": 1.0, "count": 1}},
    }
    with path.open("ab") as file:
        file.write(b"x" * (1 << 20))
    assert curves.of(path).to_dict()["left_out"] == 1
    with path.open("ab") as file:
        file.write(b"\n" + json.dumps({"step": 3, "values": {"loss": None}}).encode() + b"\n")
    found = curves.of(path).to_dict()
    assert (found["step"], found["curves"]["loss"]["last"]) == (3, None)
    path.unlink()
    assert curves.of(path).to_dict()["curves"] == {}


def test_console_answers_know_no_other_page(world: ConsoleWorld) -> None:
    answers: dict[str, Any] = {
        path: asked(world.url, path)[0]
        for path in ("/docs", "/openapi.json", "/redoc", "/.env", "/agent/export")
    }
    assert set(answers.values()) <= {404, 400}
