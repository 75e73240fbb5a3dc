"""The one HTTP client, against servers that do what they like."""

from __future__ import annotations

import gzip
import socket
import threading
import time
from pathlib import Path

import pytest
from raw_server import says, server

from sealtrain.base.http import Bounds, HttpClient, NoAnswer, Problem, parts_of, with_query

QUICK = Bounds(connect=2.0, read=2.0, total=10.0, tries=3, pause=0.01)


def client(bounds: Bounds = QUICK, **given: object) -> HttpClient:
    return HttpClient(bounds, tls=False, **given)  # type: ignore[arg-type]


def problem_of(url: str, bounds: Bounds = QUICK, **given: object) -> Problem:
    with client(bounds) as asking, pytest.raises(NoAnswer) as caught:
        asking.ask("GET", url, cap=1000, **given)  # type: ignore[arg-type]
    return caught.value.problem


def test_an_answer_arrives_whatever_its_status() -> None:
    with (
        server(lambda one, _: one.sendall(says("404 Not Found", b"gone", "X-Why: so"))) as (url, _),
        client() as asking,
    ):
        answer = asking.ask("GET", f"{url}/a", cap=100)
    assert (answer.status, answer.body, answer.headers["x-why"]) == (404, b"gone", "so")


def test_a_request_is_what_was_asked_for() -> None:
    with (
        server(lambda one, _: one.sendall(says("200 OK"))) as (url, heads),
        client(headers={"authorization": "Bearer x"}) as asking,
    ):
        asking.ask("POST", with_query(f"{url}/a?b=1", {"c": "2 3"}), cap=9, content=b"body")
        asking.ask("POST", f"{url}/empty", cap=9)
        signed: list[str] = []
        asking.ask(
            "PUT",
            f"{url}/parts",
            cap=9,
            content=lambda: iter([b"ab", b"cd"]),
            headers=lambda whole: {
                "content-length": "4",
                "x-signed": "yes" if signed.append(whole) is None else "",
            },
        )
    first, empty, parts = heads
    assert first.startswith(b"POST /a?b=1&c=2+3 HTTP/1.1\r\n") or first.startswith(
        b"POST /a?b=1&c=2%203 HTTP/1.1\r\n"
    )
    assert f"host: {url.removeprefix('http://')}\r\n".encode() in first.lower()
    assert b"accept-encoding: identity" in first.lower()
    assert b"authorization: bearer x" in first.lower()
    assert first.endswith(b"\r\n\r\nbody")
    assert b"content-length: 0" in empty.lower()
    assert parts.endswith(b"\r\n\r\nabcd")
    assert b"x-signed: yes" in parts.lower()
    assert signed == [f"{url}/parts"]


def test_connections_are_kept() -> None:
    numbers: list[int] = []

    def serve(one: socket.socket, number: int) -> None:
        numbers.append(number)
        one.sendall(says("200 OK", b"x"))

    with server(serve) as (url, _), client() as asking:
        for _ in range(3):
            asking.ask("GET", url, cap=1)
    assert numbers == [0, 0, 0]


def test_a_body_that_is_longer_than_allowed_is_not_read_to_its_end() -> None:
    sent = [0]

    def serve(one: socket.socket, _: int) -> None:
        one.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(10_000):
            one.sendall(b"ffff\r\n" + bytes(0xFFFF) + b"\r\n")
            sent[0] += 0xFFFF

    with server(serve) as (url, _):
        found = problem_of(url)
    assert (found.kind, found.status) == ("long", 200)
    assert sent[0] < 64 << 20


def test_the_cap_may_depend_on_what_is_answered() -> None:
    with (
        server(lambda one, _: one.sendall(says("500 No", b"x" * 50, "Connection: close"))) as (
            url, _,
        ),
        client() as asking,
    ):  # fmt: skip
        answer = asking.ask("GET", url, cap=lambda status, _: 50 if status == 500 else 0)
        assert len(answer.body) == 50
        unread = asking.ask("GET", url, cap=lambda _status, _headers: None)
    assert (unread.status, unread.body) == (500, b"")


def test_a_compressed_answer_is_refused_before_it_unpacks() -> None:
    bomb = gzip.compress(bytes(1 << 20))
    with server(lambda one, _: one.sendall(says("200 OK", bomb, "Content-Encoding: gzip"))) as (
        url, _,
    ):  # fmt: skip
        assert problem_of(url).kind == "encoding"


def test_a_redirect_is_an_answer() -> None:
    location = "Location: http://127.0.0.1:1/elsewhere"
    with (
        server(lambda one, _: one.sendall(says("302 Found", b"", location))) as (url, _),
        client() as asking,
    ):
        assert asking.ask("GET", url, cap=9).status == 302


@pytest.mark.parametrize("where", ["head", "body", "silence"])
def test_bytes_that_trickle_in_do_not_prolong_an_exchange(where: str) -> None:
    """Each single wait is short; only their sum is not."""

    def serve(one: socket.socket, _: int) -> None:
        if where == "body":
            one.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n")
        elif where == "head":
            one.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        for _ in range(400):
            if where != "silence":
                one.sendall(b"x")
            time.sleep(0.02)

    bounds = Bounds(connect=1.0, read=30.0, total=0.4, tries=3, pause=0.01)
    with server(serve) as (url, _):
        found = problem_of(url, bounds, idempotent=True)
    assert found.kind == "late"


def test_a_server_that_takes_bytes_slowly_does_not_prolong_an_exchange() -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    ended = threading.Event()

    def drip() -> None:
        connection, _ = listener.accept()
        with connection:
            while not ended.wait(0.02):
                connection.recv(100)

    threading.Thread(target=drip, daemon=True).start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    bounds = Bounds(connect=1.0, read=30.0, total=0.4, tries=1)
    with client(bounds) as asking, pytest.raises(NoAnswer) as caught:
        asking.ask("POST", url, cap=1, content=bytes(32 << 20))
    ended.set()
    listener.close()
    assert caught.value.problem.kind == "late"


def test_where_nothing_listens_it_is_tried_as_often_as_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        url = f"http://127.0.0.1:{gone.getsockname()[1]}"
    slept: list[float] = []
    with client(sleep=slept.append) as asking, pytest.raises(NoAnswer) as caught:
        asking.ask("POST", url, cap=1, content=b"x")
    assert caught.value.problem == Problem("connect", "ConnectError")
    assert slept == [0.01, 0.02]


def test_a_name_with_many_addresses_does_not_prolong_an_exchange(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever runs a server says how many addresses it has; no one of them may answer."""
    with socket.socket() as full, socket.socket() as first:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        first.connect(full.getsockname())
        silent = (socket.AF_INET, socket.SOCK_STREAM, 6, "", full.getsockname())
        known = socket.getaddrinfo

        def told(host: str, *words: object, **named: object) -> object:
            return [silent] * 50 if host == "many.example" else known(host, *words, **named)  # type: ignore[arg-type]

        monkeypatch.setattr(socket, "getaddrinfo", told)
        bounds = Bounds(connect=0.2, read=0.2, total=0.6, tries=3, pause=0.01)
        began = time.monotonic()
        found = problem_of("http://many.example/", bounds)
    assert found.kind in ("late", "connect")
    assert time.monotonic() - began < 5


def test_what_was_sent_is_not_sent_again_unless_it_is_idempotent() -> None:
    def breaks_once(one: socket.socket, number: int) -> None:
        if number:
            one.sendall(says("200 OK", b"x"))
        else:
            one.shutdown(socket.SHUT_RDWR)

    with server(breaks_once) as (url, heads), client() as asking:
        with pytest.raises(NoAnswer) as caught:
            asking.ask("POST", url, cap=1, content=b"x")
        assert caught.value.problem.kind == "broken"
        assert len(heads) == 1
    with server(breaks_once) as (url, heads), client() as asking:
        assert asking.ask("POST", url, cap=1, content=b"x", idempotent=True).body == b"x"
        assert len(heads) == 2


def test_a_body_that_is_cut_off_is_no_answer() -> None:
    def serve(one: socket.socket, _: int) -> None:
        one.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        one.shutdown(socket.SHUT_RDWR)

    with server(serve) as (url, _):
        found = problem_of(url)
    assert (found.kind, found.status) == ("broken", 200)


@pytest.mark.parametrize(
    ("after", "waited"),
    [
        pytest.param("1", 1.0, id="as-asked"),
        pytest.param("999999", 0.01, id="absurd"),
        pytest.param("soon", 0.01, id="no-number"),
    ],
)
def test_a_server_that_asks_to_wait_is_waited_for(after: str, waited: float) -> None:
    asked: list[int] = []
    slept: list[float] = []

    def serve(one: socket.socket, _: int) -> None:
        asked.append(1)
        late = says("503 Later", b"", f"Retry-After: {after}")
        one.sendall(late if len(asked) < 3 else says("200 OK", b"x"))

    with server(serve) as (url, _), client(sleep=slept.append) as asking:
        assert asking.ask("GET", url, cap=1, idempotent=True).body == b"x"
    assert slept[0] == waited


def test_a_server_cannot_ask_to_wait_beyond_the_end() -> None:
    slept: list[float] = []
    later = says("503 Later", b"", "Retry-After: 15")
    with server(lambda one, _: one.sendall(later)) as (url, _), client(sleep=slept.append) as ask:
        assert ask.ask("GET", url, cap=1, idempotent=True, total=5.0).status == 503
    assert slept == []


def test_a_parameter_may_have_several_values() -> None:
    with server(lambda one, _: one.sendall(says("200 OK"))) as (url, heads), client() as asking:
        asking.ask("GET", with_query(url, {"after": 3, "owner": ["a", "b"]}), cap=1)
    assert heads[0].startswith(b"GET /?after=3&owner=a&owner=b HTTP/1.1\r\n")


@pytest.mark.parametrize("text", ["ftp://host/x", "http://", "nonsense", "http://a\nb/"])
def test_what_is_no_url_is_said(text: str) -> None:
    assert problem_of(text).kind == "url"


def test_it_speaks_over_a_unix_socket_and_leaves_none_open(tmp_path: Path) -> None:
    place = tmp_path / "guest.sock"
    with (
        server(lambda one, _: one.sendall(says("200 OK", b"x")), unix=place) as (url, _),
        client(unix=str(place)) as asking,
    ):
        assert asking.ask("GET", url, cap=1).body == b"x"
    with client(unix=str(tmp_path / "none.sock")) as asking, pytest.raises(NoAnswer) as caught:
        asking.ask("GET", "http://guest", cap=1)
    assert caught.value.problem.kind == "connect"


def test_a_unix_socket_may_lie_deeper_than_its_address_holds(tmp_path: Path) -> None:
    deep = tmp_path / ("a" * 60) / ("b" * 60)
    deep.mkdir(parents=True)
    short = tmp_path / "short.sock"
    place = deep / "guest.sock"
    with server(lambda one, _: one.sendall(says("200 OK", b"x")), unix=short) as (url, _):
        short.rename(place)
        with client(unix=str(place)) as asking:
            assert asking.ask("GET", url, cap=1).body == b"x"
        held = [path.resolve() for path in Path("/proc/self/fd").iterdir()]
        assert deep not in held
        with client(unix=str(deep / "none.sock")) as asking, pytest.raises(NoAnswer) as caught:
            asking.ask("GET", url, cap=1)
    assert caught.value.problem.kind == "connect"
    with client(unix=str(deep / "c" / "none.sock")) as asking, pytest.raises(NoAnswer) as caught:
        asking.ask("GET", "http://guest", cap=1)
    assert caught.value.problem.kind == "connect"


def test_environment_and_secrets_have_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    with server(lambda one, _: one.sendall(says("200 OK", b"x"))) as (url, _), client() as asking:
        assert asking.ask("GET", url, cap=1).body == b"x"
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    assert "hunter2" not in problem_of(f"http://me:hunter2@127.0.0.1:{port}/hunter2").reason


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("https://broker.example/base", "broker.example"),
        ("http://127.0.0.1:8000", "127.0.0.1"),
        ("https://user@host/", None),
        ("https://host/?key=1", None),
        ("https://host/#key", None),
        ("ftp://host/", None),
        ("https://", None),
        ("https://hóst/", None),
    ],
)
def test_parts_of_a_url(text: str, host: str | None) -> None:
    parts = parts_of(text)
    assert (None if parts is None else parts.host) == host
