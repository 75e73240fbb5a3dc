"""A broker that speaks TLS itself: renewals under way, and callers that never shake hands."""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from collecting import COLLECTING
from owner_acts import BROKER, approval
from polling import wait_until
from private_network import Authority
from release_world import config_of, served_world
from world import identity

from sealtrain.base.http import Bounds, HttpClient, NoAnswer
from sealtrain.base.tlsserver import ServerCertificate
from sealtrain.broker.config import BrokerLimits
from sealtrain.client.broker_api import BrokerClient
from sealtrain.errors import ConfigError, KeyFileInvalid, UsageError
from sealtrain.signing.dsse import Envelope

if not COLLECTING:
    from fastapi import FastAPI, Request

    from sealtrain.broker.http.server import serving

pytestmark = pytest.mark.claim("C637")

QUICK = Bounds(connect=5.0, read=5.0, total=10.0, tries=1)


@pytest.fixture
def bank(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "bank")


@pytest.fixture
def pair(bank: Authority, tmp_path: Path) -> tuple[Path, Path]:
    """Chain and key of a server, as a renewal writes them."""
    renew(bank, tmp_path)
    return tmp_path / "chain.pem", tmp_path / "key.pem"


def renew(bank: Authority, folder: Path) -> int:
    """Write a new pair over the one before; its serial number."""
    made = bank.server("127.0.0.1", "localhost", file=f"n{len(list(bank.folder.iterdir()))}")
    key, begin, chain = made.read_text().partition("-----BEGIN CERTIFICATE-----")
    for name, text in (("chain.pem", begin + chain), ("key.pem", key)):
        (folder / "new").write_text(text)
        (folder / "new").chmod(0o600)
        os.replace(folder / "new", folder / name)  # noqa: PTH105
    return serial(folder / "chain.pem")


def serial(file: Path) -> int:
    from cryptography import x509

    return x509.load_pem_x509_certificate(file.read_bytes()).serial_number


def shown(url: str, bank: Authority) -> int:
    """The serial number of the certificate that a server shows to a new caller."""
    from cryptography import x509

    host, port = url.removeprefix("https://").split(":")
    context = ssl.create_default_context(cadata=bank.pem.decode())
    with (
        socket.create_connection((host, int(port)), timeout=5) as plain,
        context.wrap_socket(plain, server_hostname=host) as inside,
    ):
        found = inside.getpeercert(binary_form=True)
        assert inside.version() in ("TLSv1.2", "TLSv1.3")
    assert found is not None
    return x509.load_der_x509_certificate(found).serial_number


@contextmanager
def served(folder: Path, pair: tuple[Path, Path], **limits: float) -> Iterator[str]:
    app = FastAPI()

    @app.post("/echo")
    async def echo(request: Request) -> dict[str, object]:
        return {"scheme": request.url.scheme, "bytes": len(await request.body())}

    config = config_of(folder, certificate=pair[0], certificate_key=pair[1])
    config = replace(config, limits=replace(BrokerLimits(), **limits))
    with serving(app, config) as url:
        yield url


def asked(url: str, bank: Authority, body: bytes = b"") -> bytes:
    with HttpClient(QUICK, authorities=bank.pem.decode()) as client:
        return client.ask("POST", f"{url}/echo", cap=1000, content=body).body


def test_a_request_arrives_inside_tls_however_large(
    bank: Authority, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    with served(tmp_path, pair) as url:
        assert url.startswith("https://127.0.0.1:")
        for size in (0, 1, 100_000, 3_000_000):
            assert asked(url, bank, b"x" * size) == (b'{"scheme":"https","bytes":%d}' % size)


def test_what_comes_with_the_end_of_a_handshake_is_not_lost(
    bank: Authority, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    """A client may send its request in the same segment as the last message of the handshake."""
    context = ssl.create_default_context(cadata=bank.pem.decode())
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    inside = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with (
        served(tmp_path, pair) as url,
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=5) as plain,
    ):
        while True:
            try:
                inside.do_handshake()
                break
            except ssl.SSLWantReadError:
                plain.sendall(outgoing.read())
                incoming.write(plain.recv(65536))
        inside.write(b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nab")
        plain.sendall(outgoing.read())
        answer = b""
        while b"}" not in answer:
            try:
                answer += inside.read(65536)  # a record at a time: one segment may hold several
            except ssl.SSLWantReadError:
                incoming.write(plain.recv(65536))
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b'{"scheme":"https","bytes":2}')


def test_a_renewed_certificate_counts_without_a_restart(
    bank: Authority, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    with served(tmp_path, pair) as url:
        first = serial(pair[0])
        assert shown(url, bank) == first
        second = renew(bank, tmp_path)
        assert second != first
        assert shown(url, bank) == second
        pair[1].write_text("half written")
        assert shown(url, bank) == second
        pair[0].unlink()
        assert shown(url, bank) == second
        third = renew(bank, tmp_path)
        assert shown(url, bank) == third


def test_a_renewal_that_cannot_be_used_is_told_once(
    bank: Authority, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    told: list[bool] = []
    certificate = ServerCertificate(*pair, on_renewal=lambda problem: told.append(problem is None))
    before = certificate.context()
    assert certificate.context() is before
    pair[1].write_text("another")
    assert [certificate.context() is before for _ in range(3)] == [True] * 3
    assert told == [False]
    renew(bank, tmp_path)
    assert certificate.context() is not before
    assert told == [False, True]


def test_pairs_that_cannot_be_used_end_the_start(
    bank: Authority, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    other = bank.server("other")
    for chain, key in (
        (pair[0], other),
        (pair[1], pair[1]),
        (tmp_path / "absent", pair[1]),
        (pair[0], tmp_path / "absent"),
        (tmp_path, pair[1]),
    ):
        other.chmod(0o600)
        with pytest.raises(ConfigError) as caught:
            ServerCertificate(chain, key)
        assert caught.value.check == "certificate"
    pair[1].chmod(0o644)
    with pytest.raises(KeyFileInvalid):
        ServerCertificate(*pair)
    with pytest.raises(UsageError):
        config_of(tmp_path, certificate=pair[0])


def test_callers_that_never_shake_hands_keep_nobody_out(
    bank: Authority, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    """They count for their address, give way to others and are cut in time."""
    limits = {"connections": 8, "connections_per_address": 4, "head_seconds": 1.0}
    with served(tmp_path, pair, **limits) as url, ExitStack() as parts:
        port = int(url.rpartition(":")[2])
        silent = [
            parts.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(40)
        ]
        silent[-1].sendall(b"\x16\x03\x01")  # the first bytes of a handshake, and no more
        began = time.monotonic()
        assert asked(url, bank) == b'{"scheme":"https","bytes":0}'
        assert time.monotonic() - began < 1.0
        wait_until(lambda: all(map(is_cut, silent)), 10)


def is_cut(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_plain_http_and_old_tls_are_refused(
    bank: Authority, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    with served(tmp_path, pair) as url:
        plain = url.replace("https:", "http:")
        with HttpClient(QUICK, tls=False) as client, pytest.raises(NoAnswer):
            client.ask("GET", plain, cap=100)
        context = ssl.create_default_context(cadata=bank.pem.decode())
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
        host, port = url.removeprefix("https://").split(":")
        with socket.create_connection((host, int(port)), timeout=5) as old, pytest.raises(OSError):
            context.wrap_socket(old, server_hostname=host)
        assert asked(url, bank) == b'{"scheme":"https","bytes":0}'


def test_a_broker_answers_over_tls_and_takes_what_owners_signed_for_its_url(
    bank: Authority, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "broker"
    folder.mkdir()
    with served_world(folder, certificate=pair[0], certificate_key=pair[1]) as (world, url):
        assert url.startswith("https://")
        with BrokerClient(url, authorities=bank.pem.decode()) as client:
            assert client.health().consortium_id == world.consortium.consortium_id
        size = world.ledger.size
        with BrokerClient(
            url,
            signer=identity("hospital-a").signer,
            broker=BROKER,
            authorities=bank.pem.decode(),
            clock=world.clock,
        ) as owner:
            assert owner.hand_in("approval", Envelope.from_bytes(approval(world))) == size
