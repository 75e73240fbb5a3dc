"""Servers that never end, compress or send elsewhere, against everything that asks a server.

Stores of records, collateral services, a guest's agent, brokers and nodes of the chain may all be
run by somebody hostile. None may hold a process for ever, fill its memory or move it elsewhere.
"""

from __future__ import annotations

import gzip
import itertools
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from collecting import COLLECTING
from raw_server import says, server

from sealtrain.attest.dstack.client import DstackClient
from sealtrain.attest.errors import CollateralUnreachable, GuestApiUnreachable
from sealtrain.attest.nvidia.fetch import NvidiaServices
from sealtrain.attest.tdx.fetch import fetch_collateral
from sealtrain.attest.tdx.parse import parse_quote
from sealtrain.base.http import Bounds
from sealtrain.client.errors import BrokerUnreachable
from sealtrain.client.transport import Transport
from sealtrain.errors import ChainUnreachable, SealtrainError
from sealtrain.release.messages import Health
from sealtrain.storage.address import parse_address
from sealtrain.storage.errors import StorageUnreachable
from sealtrain.storage.folder import RemoteFolder
from sealtrain.storage.http import HttpFileSystem
from sealtrain.storage.retry import Patience
from sealtrain_chain.node import Node
from sealtrain_rehearsal.simulator.pki import SimulatedPki

if not COLLECTING:
    from sealtrain.storage.s3 import S3FileSystem

pytestmark = [pytest.mark.long, pytest.mark.claim("C125")]

TOTAL = 0.4
"""Seconds of an exchange."""
SERVED = 40.0
"""Seconds for which a server goes on, unless its asker leaves."""
STORE = Bounds(connect=30.0, read=30.0, total=TOTAL, tries=1)
ONCE = Patience(attempts=1)
RANGE = "Content-Range: bytes 0-99/100"
Ask = Callable[[str, Path], object]


def in_store(filesystem: HttpFileSystem | S3FileSystem, url: str) -> RemoteFolder:
    return RemoteFolder(filesystem, parse_address(url), patience=ONCE)


def read_http(url: str, _: Path) -> object:
    with closing(in_store(HttpFileSystem(bounds=STORE), f"{url}/a.sealed")) as folder:
        return folder.read("dataset.json", 99)


def put_http(url: str, folder: Path) -> object:
    (folder / "one").write_bytes(bytes(1000))
    with closing(in_store(HttpFileSystem(bounds=STORE), f"{url}/a.sealed")) as store:
        store.put("one", str(folder / "one"))
    return None


def read_s3(_: str, __: Path) -> object:
    with closing(in_store(S3FileSystem(bounds=STORE), "s3://hospital/a.sealed")) as folder:
        return folder.read("dataset.json", 99)


def put_s3(_: str, folder: Path) -> object:
    (folder / "one").write_bytes(bytes(1000))
    with closing(in_store(S3FileSystem(bounds=STORE), "s3://hospital/a.sealed")) as store:
        store.put("one", str(folder / "one"))
    return None


def collateral(url: str, _: Path) -> object:
    quote = parse_quote(SimulatedPki(b"a quote to ask for").quote(bytes(64)))
    return fetch_collateral(url, quote, timeout=TOTAL)


def reference_values(url: str, _: Path) -> object:
    with NvidiaServices(timeout=30.0, total=TOTAL) as services:
        return services.get(f"{url}/rim", 100)


def revocations(url: str, _: Path) -> object:
    with NvidiaServices(timeout=30.0, total=TOTAL) as services:
        return services.post(f"{url}/ocsp", b"question", "application/ocsp-request", 100)


def agent(_: str, folder: Path) -> object:
    return DstackClient(str(folder / "agent.sock"), timeout=TOTAL).info()


def broker(url: str, _: Path) -> object:
    with closing(Transport(url, timeout=30.0, total=TOTAL)) as transport:
        return transport.get("/v1/health", Health)


def handed_to_broker(url: str, _: Path) -> object:
    with closing(Transport(url, timeout=30.0, total=TOTAL)) as transport:
        return transport.post("/v1/approvals", b"{}", Health)


def node(url: str, _: Path) -> object:
    with closing(Node(url, TOTAL)) as asked:
        return asked.ask("eth_blockNumber")


@dataclass(frozen=True)
class Asker:
    """Something that asks a server.

    Attributes:
        ask: Asks once.
        late: Raised where no whole answer comes.
        answer: Status line and headers of an answer that it would read.
        reads: Whether it wants a body.
    """

    ask: Ask
    late: type[SealtrainError]
    answer: tuple[str, ...] = ("200 OK",)
    reads: bool = True


ASKERS = {
    "HTTP store": Asker(read_http, StorageUnreachable, ("206 Partial Content", RANGE)),
    "HTTP store, whole": Asker(read_http, StorageUnreachable),
    "HTTP store, PUT": Asker(put_http, StorageUnreachable, reads=False),
    "S3": Asker(read_s3, StorageUnreachable, ("206 Partial Content", RANGE)),
    "S3, PUT": Asker(put_s3, StorageUnreachable),
    "PCCS": Asker(collateral, CollateralUnreachable),
    "RIM": Asker(reference_values, CollateralUnreachable),
    "OCSP": Asker(revocations, CollateralUnreachable),
    "guest agent": Asker(agent, GuestApiUnreachable),
    "broker": Asker(broker, BrokerUnreachable),
    "broker, POST": Asker(handed_to_broker, BrokerUnreachable),
    "chain node": Asker(node, ChainUnreachable),
}
READERS = [name for name, asker in ASKERS.items() if asker.reads]


@pytest.fixture
def trap(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[bytes]]]:
    """A server to which the environment and redirects lead; nobody must come."""
    with server(lambda one, _: one.sendall(says("200 OK"))) as (url, heads):
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, url)
        yield url, heads
        assert heads == []


def attacked(
    name: str,
    serve: Callable[[socket.socket, int], None],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[SealtrainError, list[bytes]]:
    """What an asker makes of a server, and what that was sent."""
    unix = folder / "agent.sock" if name == "guest agent" else None
    with server(serve, unix=unix) as (url, heads):
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
        began = time.monotonic()
        with pytest.raises(SealtrainError) as caught:
            ASKERS[name].ask(url, folder)
        assert time.monotonic() - began < SERVED / 2
        assert heads
        return caught.value, heads


def head(*lines: str) -> bytes:
    return "\r\n".join(("HTTP/1.1 " + lines[0], *lines[1:], "", "")).encode()


@pytest.mark.parametrize(
    ("name", "where"),
    [
        *itertools.product(ASKERS, ["head", "silence"]),
        *((name, "body") for name in READERS),
    ],
)
def test_an_answer_that_trickles_in_ends_in_time(
    name: str,
    where: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    trap: tuple[str, list[bytes]],
) -> None:
    def serve(one: socket.socket, _: int) -> None:
        if where == "body":
            one.sendall(head(*ASKERS[name].answer, "Content-Length: 100"))
        elif where == "head":
            one.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        for _ in range(99):
            if where != "silence":
                one.sendall(b"x")
            time.sleep(SERVED / 99)

    error, _ = attacked(name, serve, tmp_path, monkeypatch)
    assert type(error) is ASKERS[name].late
    assert error.exit_code == 4


@pytest.mark.parametrize("name", READERS)
def test_an_answer_without_end_is_cut(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = [0]

    def serve(one: socket.socket, _: int) -> None:
        one.sendall(head(*ASKERS[name].answer, "Transfer-Encoding: chunked"))
        for _ in range(1 << 14):
            one.sendall(b"ffff\r\n" + bytes(0xFFFF) + b"\r\n")
            sent[0] += 0xFFFF

    attacked(name, serve, tmp_path, monkeypatch)
    assert sent[0] < 256 << 20


@pytest.mark.parametrize("name", READERS)
def test_an_answer_that_unpacks_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb = gzip.compress(bytes(60_000))[:100].ljust(100, b"\0")

    def serve(one: socket.socket, _: int) -> None:
        status, *headers = ASKERS[name].answer
        one.sendall(says(status, bomb, *headers, "Content-Encoding: gzip"))

    error, heads = attacked(name, serve, tmp_path, monkeypatch)
    assert "compress" in str(error.got)
    assert all(b"accept-encoding: identity" in head.lower() for head in heads)


@pytest.mark.parametrize("name", ASKERS)
def test_nobody_is_sent_elsewhere(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    trap: tuple[str, list[bytes]],
) -> None:
    def serve(one: socket.socket, _: int) -> None:
        one.sendall(says("307 Temporary Redirect", b"", f"Location: {trap[0]}/elsewhere"))

    attacked(name, serve, tmp_path, monkeypatch)
