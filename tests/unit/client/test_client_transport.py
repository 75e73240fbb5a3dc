"""Talking to a broker that is absent, broken or hostile."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from http_server import Handler, http_served
from raw_server import says, server

from sealtrain.client import transport
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.errors import BrokerUnreachable
from sealtrain.client.transport import Transport
from sealtrain.consortium.errors import ApprovalsMissing
from sealtrain.consortium.receipts import OwnedId
from sealtrain.errors import Refused, SealtrainError, UsageError
from sealtrain.release.errors import AnswerInvalid
from sealtrain.release.messages import Health

HEALTH = {"status": "ok", "version": "1", "consortium_id": "ab" * 32, "ledger_size": 3}


@contextmanager
def answering(status: int, body: bytes, headers: dict[str, str] | None = None) -> Iterator[str]:
    """A server that always answers the same."""

    class Same(Handler):
        def do_GET(self) -> None:
            self.send_response(status)
            for name, value in ({"content-length": str(len(body))} | (headers or {})).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

    with http_served(Same) as url:
        yield url


@contextmanager
def client(url: str, **settings: Any) -> Iterator[BrokerClient]:
    with BrokerClient(url, **settings) as made:
        yield made


def error_of(status: int, body: bytes, **headers: str) -> SealtrainError:
    with (
        answering(status, body, headers) as url,
        client(url) as broker,
        pytest.raises(SealtrainError) as caught,
    ):
        broker.health()
    return caught.value


def test_an_answer_is_parsed() -> None:
    with answering(200, json.dumps(HEALTH).encode()) as url, client(url) as broker:
        assert broker.health() == Health(**HEALTH)


def test_nobody_listens() -> None:
    with (
        client("http://127.0.0.1:9", timeout=2.0) as broker,
        pytest.raises(BrokerUnreachable) as caught,
    ):
        broker.health()
    assert caught.value.exit_code == 4
    assert caught.value.hint


def test_connecting_is_tried_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        url = f"http://127.0.0.1:{gone.getsockname()[1]}"
    slept: list[float] = []
    broker = Transport(url, sleep=slept.append)
    with closing(broker), pytest.raises(BrokerUnreachable):
        broker.get("/v1/health", Health)
    assert len(slept) == 2


@pytest.mark.parametrize("habit", ["breaks", "stays silent", "is busy"])
def test_a_request_that_was_sent_is_never_sent_again(habit: str) -> None:
    def serve(connection: socket.socket, _: int) -> None:
        if habit == "breaks":
            connection.shutdown(socket.SHUT_RDWR)
        elif habit == "is busy":
            connection.sendall(says("503 Later", b"", "Retry-After: 0"))

    with server(serve) as (url, heads):
        for ask in (
            lambda broker: broker.get("/v1/health", Health),
            lambda broker: broker.post("/v1/release", b"{}", Health),
        ):
            broker = Transport(url, timeout=0.3)
            with closing(broker), pytest.raises(BrokerUnreachable):
                ask(broker)
    assert [head.split(b" ", 1)[0] for head in heads] == [b"GET", b"POST"]


def test_a_refusal_comes_back_as_itself() -> None:
    told = ApprovalsMissing(
        "too few", check="approvals", owner="hospital-c", got="1", expected="2", hint="ask"
    )
    error = error_of(403, json.dumps({"error": told.to_dict()}).encode())
    assert type(error) is ApprovalsMissing
    assert error.exit_code == 3
    assert error.to_dict() == told.to_dict()


def test_a_code_nobody_knows_is_a_refusal() -> None:
    error = error_of(403, b'{"error":{"code":"brand-new","message":"no"}}')
    assert type(error) is Refused


def test_a_refusal_cannot_drive_the_terminal() -> None:
    body = {"error": {"code": "approvals-missing", "message": "\x1b[2Jfine\nreally"}}
    error = error_of(403, json.dumps(body).encode())
    assert error.message == "\\u{1b}[2Jfine\\u{a}really"


def test_a_failing_broker_is_unreachable() -> None:
    error = error_of(500, b'{"error":{"code":"internal","message":"the broker failed"}}')
    assert type(error) is BrokerUnreachable


@pytest.mark.parametrize("body", [b"<html>", b"{}", b'{"error":{"code":1,"message":"x"}}', b""])
def test_an_error_that_is_not_ours(body: bytes) -> None:
    assert type(error_of(502, body)) is BrokerUnreachable


def test_a_redirect_is_not_followed() -> None:
    error = error_of(307, b"", location="http://127.0.0.1:9/elsewhere")
    assert type(error) is BrokerUnreachable


@pytest.mark.parametrize(
    "body",
    [b"not json", b"[]", b"{}", json.dumps(HEALTH | {"extra": 1}).encode(), b'{"a":1,"a":1}'],
)
def test_an_answer_that_is_none(body: bytes) -> None:
    assert type(error_of(200, body)) is AnswerInvalid


def test_an_endless_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_ANSWER_BYTES", 1000)
    assert type(error_of(200, b" " * 1001)) is AnswerInvalid


def test_an_endless_error_is_cut_off() -> None:
    assert type(error_of(403, b" " * (65 << 10))) is AnswerInvalid


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://x",
        "http://",
        "127.0.0.1:8470",
        "http://x?y=1",
        "http://x#y",
        "http://é",
        "http://x:y",
        "http://u:p@x",
    ],
)
def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(UsageError):
        Transport(url)


def test_proxies_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with answering(200, json.dumps(HEALTH).encode()) as url, client(url) as broker:
        assert broker.health().ledger_size == 3


PAGE = {
    "members": [
        {"payload": "e30=", "payloadType": "text", "signatures": [{"keyid": "k", "sig": "AAAA"}]}
    ],
    "end": 1,
}
DEPLOYED = {"app_id": "ab" * 20, "compose_hash": "ab" * 32}


@pytest.mark.claim("C452")
@pytest.mark.parametrize("page", [PAGE, {**PAGE, "members": []}, {**PAGE, "end": 0}], ids=str)
def test_pages_of_a_series_that_do_not_go_on_are_refused(page: dict[str, Any]) -> None:
    with (
        answering(200, json.dumps(page).encode()) as url,
        client(url) as broker,
        pytest.raises(AnswerInvalid),
    ):
        broker.series("hospital-a", "biopsies", **DEPLOYED)


@pytest.mark.claim("C452")
@pytest.mark.parametrize("ids", [["cd" * 16], []], ids=str)
def test_pages_of_datasets_that_do_not_go_on_are_refused(ids: list[str]) -> None:
    page = {"dataset_ids": ids, "end": "cd" * 16}
    with (
        answering(200, json.dumps(page).encode()) as url,
        client(url) as broker,
        pytest.raises(AnswerInvalid),
    ):
        broker.list_registered("ab" * 32, **DEPLOYED, most=100)


def test_a_broker_that_lists_what_was_not_asked_routes_nothing() -> None:
    page = {"dataset_ids": ["cd" * 16], "end": None}
    with answering(200, json.dumps(page).encode()) as url, client(url) as broker:
        asked = [OwnedId("ab" * 32, "ef" * 16)]
        assert broker.ask_registered(asked, **DEPLOYED) == frozenset()
