"""A parent between an enclave and the servers it needs: it splits, alters, replays, withholds.

The way is the product's own: a program's HTTP client, the bridge inside, the parent's tunnels. The
vsock between them is a unix socket; the attacker is what the tunnels reach servers through.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from enclave_world import bound, reached, stopped
from tls_world import certificate

from sealtrain.base.http import Bounds, HttpClient, NoAnswer
from sealtrain.base.outbound import Outbound, parse_proxy, reach_by
from sealtrain.guest.enclave.bridge import Bridge, carry, carry_to
from sealtrain.guest.enclave.ports import TUNNEL_PORT
from sealtrain.guest.enclave.tunnels import Tunnels

pytestmark = pytest.mark.claim("C724")

SERVER = ("store.example", 443)
BODY = bytes(range(256)) * 8
BOUNDS = Bounds(connect=3, read=3, total=3, tries=1)
Meddle = Callable[[bytes, int], list[bytes]]
"""A piece from the server and its number → what the enclave gets in its place."""


def honest(piece: bytes, number: int) -> list[bytes]:
    return [piece]


def split(piece: bytes, number: int) -> list[bytes]:
    return [piece[at : at + 1] for at in range(len(piece))]


def altered(piece: bytes, number: int) -> list[bytes]:
    return [piece[:-1] + bytes([piece[-1] ^ 1])] if number else [piece]


def doubled(piece: bytes, number: int) -> list[bytes]:
    return [piece, piece] if number else [piece]


def reversed_halves(piece: bytes, number: int) -> list[bytes]:
    half = len(piece) // 2
    return [piece[half:], piece[:half]]


def withheld(piece: bytes, number: int) -> list[bytes]:
    return []


def plain(piece: bytes, number: int) -> list[bytes]:
    return [b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nsealed"]


class Server:
    """One file over TLS, for each connection."""

    def __init__(self, pem: Path) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(pem)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()
        self.recorded: list[bytes] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(5)
        with (
            connection,
            suppress(OSError),
            self._context.wrap_socket(connection, server_side=True) as inside,
        ):
            asked = b""
            while not asked.endswith(b"\r\n\r\n"):
                more = inside.recv(4096)
                if not more:
                    return
                asked += more
            head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            inside.sendall(head % len(BODY) + BODY)
            inside.unwrap()

    def reach(self, meddle: Meddle) -> socket.socket:
        """The server, seen through an attacker."""
        near, far = socket.socketpair()
        server = socket.create_connection(self.address, timeout=5)

        def out() -> None:
            with suppress(OSError):
                while data := far.recv(65536):
                    server.sendall(data)
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)

        def back() -> None:
            number = 0
            with suppress(OSError):
                while data := server.recv(65536):
                    self.recorded.append(data)
                    for piece in meddle(data, number):
                        far.sendall(piece)
                    number += 1
                far.shutdown(socket.SHUT_WR)

        def both() -> None:
            with far, server:
                first = threading.Thread(target=out, daemon=True)
                first.start()
                back()
                first.join()

        threading.Thread(target=both, daemon=True).start()
        return near


@contextmanager
def enclave(folder: Path, reach: Callable[[Any], socket.socket], pem: Path) -> Iterator[None]:
    """A program's way out, while the block lasts."""
    listener = bound(folder / f"parent-{TUNNEL_PORT}")
    parent = Bridge(listener, Tunnels({SERVER}, reach=reach))

    def over_vsock() -> socket.socket:
        return reached(folder / f"parent-{TUNNEL_PORT}")

    proxy = socket.create_server(("127.0.0.1", 0))
    inside = Bridge(proxy, carry_to(over_vsock))
    authority = pem.read_text().partition("-----BEGIN CERTIFICATE-----")
    way = Outbound(
        authorities=authority[1] + authority[2],
        proxy=parse_proxy(f"http://127.0.0.1:{proxy.getsockname()[1]}", "proxy"),
    )
    for bridge in (parent, inside):
        bridge.start()
    before = reach_by(lambda: way)
    try:
        yield
    finally:
        reach_by(before)
        for bridge in (parent, inside):
            bridge.close()
        stopped(listener)


def ask() -> bytes:
    with HttpClient(BOUNDS) as client:
        return client.ask("GET", "https://store.example/out", cap=1 << 20).body


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificate(tmp_path_factory.mktemp("tls"), "store.example")


@pytest.fixture
def server(pem: Path) -> Iterator[Server]:
    made = Server(pem)
    yield made
    stopped(made.listener)


@pytest.mark.parametrize("meddle", [honest, split])
def test_bytes_come_whole_however_they_are_split(
    tmp_path: Path, server: Server, pem: Path, meddle: Meddle
) -> None:
    with enclave(tmp_path, lambda _: server.reach(meddle), pem):
        assert ask() == BODY


@pytest.mark.parametrize("meddle", [altered, doubled, reversed_halves, withheld, plain])
def test_a_parent_that_alters_replays_or_withholds_breaks_the_connection(
    tmp_path: Path, server: Server, pem: Path, meddle: Meddle
) -> None:
    with enclave(tmp_path, lambda _: server.reach(meddle), pem), pytest.raises(NoAnswer):
        ask()


def test_another_server_in_a_listed_ones_place_is_refused(
    tmp_path: Path, pem: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The parent decides where a tunnel leads; the certificate is looked at inside."""
    other = Server(certificate(tmp_path_factory.mktemp("other"), "store.example"))
    with (
        enclave(tmp_path, lambda _: other.reach(honest), pem),
        pytest.raises(NoAnswer) as caught,
    ):
        ask()
    assert caught.value.problem.kind == "tls"
    stopped(other.listener)


def test_a_recorded_conversation_is_no_answer(tmp_path: Path, server: Server, pem: Path) -> None:
    with enclave(tmp_path, lambda _: server.reach(honest), pem):
        assert ask() == BODY
    recorded = list(server.recorded)

    def replay(_: Any) -> socket.socket:
        near, far = socket.socketpair()

        def give() -> None:
            with far, suppress(OSError):
                far.recv(65536)
                for piece in recorded:
                    far.sendall(piece)

        threading.Thread(target=give, daemon=True).start()
        return near

    with enclave(tmp_path, replay, pem), pytest.raises(NoAnswer):
        ask()


def test_a_stalled_direction_ends_both() -> None:
    """A parent that stops in the middle holds a bridge no longer than it may be idle."""
    one, inside = socket.socketpair()
    other, outside = socket.socketpair()
    done = threading.Event()

    def run() -> None:
        carry(inside, other, idle=0.05)
        done.set()

    threading.Thread(target=run, daemon=True).start()
    assert done.wait(10)
    for each in (one, outside):
        assert each.recv(1) == b""
    for each in (one, inside, other, outside):
        each.close()
