"""A scheduler at rest asks a broker one question; no answer of a broker harms it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from http_server import Handler, http_served
from raw_server import server

from sealtrain.owner import newdata

pytestmark = pytest.mark.claim("C232")


@contextmanager
def answering(body: bytes, status: int = 200) -> Iterator[tuple[str, list[str]]]:
    asked: list[str] = []

    class Answers(Handler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.answer(status, body)

    with http_served(Answers) as url:
        yield newdata.question(f"{url}/", compose_hash="ab" * 32, start=7), asked


@pytest.mark.parametrize(
    ("body", "status", "found"),
    [
        ({"entries": [], "end": None}, 200, False),
        ({"entries": [{"index": 7, "entry": {}}], "end": 8}, 200, True),
        ({"entries": {}}, 200, None),
        ({"entries": 3}, 200, None),
        ([], 200, None),
        ({"entries": []}, 503, None),
        ({"entries": [{}]}, 302, None),
        (None, 200, None),
    ],
)
def test_a_broker_is_believed_where_it_answers_in_its_form(
    body: object, status: int, found: bool | None
) -> None:
    with answering(json.dumps(body).encode(), status) as (url, asked):
        assert newdata.is_registered(url) is found
    [path] = asked
    assert path == f"/v1/ledger/search?compose_hash={'ab' * 32}&kind=dataset&start=7&limit=1"


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff\xfe", b"[" * 200_000, b" " * (newdata.MAX_ANSWER_BYTES + 1)]
)
def test_no_answer_of_another_form_is_one(body: bytes) -> None:
    with answering(body) as (url, _):
        assert newdata.is_registered(url) is None


def test_an_answer_without_end_is_given_up() -> None:
    ticks = iter(range(0, 10_000, 6))
    with answering(json.dumps({"entries": [], "pad": "x" * 100_000}).encode()) as (url, _):
        assert newdata.is_registered(url, monotonic=lambda: float(next(ticks))) is None


@pytest.mark.claim("C125")
@pytest.mark.parametrize(
    "start",
    [b"HTTP/1.1 200 OK\r\nX-Slow: ", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"],
)
def test_an_answer_that_trickles_in_is_given_up(start: bytes) -> None:
    def serve(one: socket.socket, _: int) -> None:
        one.sendall(start)
        for _ in range(200):
            one.sendall(b"0")
            time.sleep(0.05)

    with server(serve) as (url, _):
        began = time.monotonic()
        asked = newdata.question(url, compose_hash="ab" * 32, start=0)
        assert newdata.is_registered(asked, seconds=0.3) is None
        assert time.monotonic() - began < 5


def test_a_broker_that_is_gone_gives_no_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    url = newdata.question(f"http://127.0.0.1:{port}", compose_hash="ab" * 32, start=0)
    assert newdata.is_registered(url) is None


def test_asking_loads_neither_the_http_library_nor_the_brokers_forms() -> None:
    """A scheduler at rest stays small."""
    program = (
        "import sys, sealtrain.owner.newdata\n"
        "heavy = {'httpx2', 'httpcore2', 'pydantic', 'cryptography', 'sealtrain.base.http'}\n"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
