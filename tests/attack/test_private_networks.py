"""A server behind a private authority or a proxy: what is accepted, and what each fault is told as.

Real TLS servers and a real proxy on loopback. No setting accepts what a check of certificates
refuses.
"""

from __future__ import annotations

import os
import select
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2
import pytest
import typer
from click.testing import CliRunner
from policies import intel
from private_network import Authority, proxy
from raw_server import says, server
from tls_world import name_servers

from sealtrain.attest.policy import policy_from_dict
from sealtrain.base.encoding import to_base64
from sealtrain.base.http import Bounds, HttpClient, NoAnswer, Problem
from sealtrain.base.outbound import DIRECT, Outbound, outbound, parse_proxy, reach_by
from sealtrain.base.tunnel import (
    EARLY,
    EXPIRED,
    FOREIGN,
    INTERCEPTED,
    NO_TLS,
    SELF_SIGNED,
    WRONG_NAME,
)
from sealtrain.base.yamltext import yaml_text
from sealtrain.cli.command import Command
from sealtrain.cli.outbound import settle_outbound
from sealtrain.cli.project import NAME
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.errors import BrokerUnreachable
from sealtrain.client.pin import certificates_of, load_pin, new_pin
from sealtrain.client.ticket import RunTicket, parse_ticket
from sealtrain.client.transport import Transport
from sealtrain.errors import ConfigError, EgressRefused, SealtrainError, TrustInvalid
from sealtrain.guest.sandbox.network import confine_to
from sealtrain.release.messages import Health
from sealtrain.storage.connect import open_folder
from sealtrain.storage.errors import StorageUnreachable

QUICK = Bounds(connect=5.0, read=5.0, total=10.0, tries=3, pause=0.01)


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("bank"))


@contextmanager
def reaching(by: Outbound) -> Iterator[None]:
    before = reach_by(lambda: by)
    try:
        yield
    finally:
        reach_by(before)


@contextmanager
def serving(certificate: Path) -> Iterator[tuple[str, list[bytes]]]:
    with server(lambda one, _: one.sendall(says("200 OK", b"x")), certificate=certificate) as made:
        yield made


def problem_at(url: str, authorities: str = "") -> Problem:
    with (
        HttpClient(QUICK, authorities=authorities) as client,
        pytest.raises(NoAnswer) as caught,
    ):
        client.ask("GET", url, cap=10)
    return caught.value.problem


@pytest.mark.claim("C630")
def test_a_private_authority_counts_where_it_is_named_and_nowhere_else(bank: Authority) -> None:
    trusted = bank.pem.decode()
    with serving(bank.server("localhost")) as (url, heads):
        assert problem_at(url) == Problem("tls", FOREIGN)
        with HttpClient(QUICK, authorities=trusted) as client:
            assert client.ask("GET", url, cap=10).body == b"x"
        assert problem_at(url) == Problem("tls", FOREIGN)  # of that client alone
        with reaching(Outbound(authorities=trusted)), HttpClient(QUICK) as client:
            assert client.ask("GET", url, cap=10).body == b"x"
        assert problem_at(url) == Problem("tls", FOREIGN)
    assert len(heads) == 2


@pytest.mark.claim("C632", "C657")
def test_no_variable_of_openssl_names_an_authority(
    bank: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor one that this machine trusts: the library's own way asks for both."""
    (tmp_path / "bank.pem").write_bytes(bank.pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "bank.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    with serving(bank.server("localhost")) as (url, heads):
        with HttpClient(QUICK, tls=httpx2.create_ssl_context()) as client:
            assert client.ask("GET", url, cap=10).body == b"x"
        assert problem_at(url) == Problem("tls", FOREIGN)
    assert len(heads) == 1


@pytest.mark.claim("C630")
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("expired", EXPIRED),
        ("early", EARLY),
        ("foreign", FOREIGN),
        ("self-signed", SELF_SIGNED),
        ("wrong name", WRONG_NAME),
    ],
)
def test_a_named_authority_leaves_no_check_out(
    kind: str, reason: str, bank: Authority, tmp_path: Path
) -> None:
    certificate = {
        "expired": lambda: bank.server("localhost", days=(-9, -2), file="expired"),
        "early": lambda: bank.server("localhost", days=(2, 9), file="early"),
        "foreign": lambda: Authority(tmp_path, "Other CA").server("localhost"),
        "self-signed": lambda: bank.self_signed("localhost"),
        "wrong name": lambda: bank.server("broker.bank"),
    }[kind]()
    with (
        server(lambda one, _: one.sendall(says("200 OK", b"x")), certificate=certificate) as (
            url,
            heads,
        ),
        reaching(Outbound(authorities=bank.pem.decode())),
    ):
        assert problem_at(url) == Problem("tls", reason)
        with pytest.raises(BrokerUnreachable) as broker:
            Transport(url, 5.0).get("/v1/health", Health)
        with pytest.raises(StorageUnreachable) as store:
            open_folder(f"{url}/sealed").read("dataset.json", 100)
    for caught in (broker, store):
        assert (caught.value.check, caught.value.got) == ("tls", reason)
    assert heads == []  # nothing was asked of it


def test_a_server_that_speaks_no_tls_is_named_so() -> None:
    class Plain(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(4096)
            self.request.sendall(says("400 Bad Request"))

    with socketserver.TCPServer(("127.0.0.1", 0), Plain) as plain:
        threading.Thread(target=plain.serve_forever, daemon=True).start()
        found = problem_at(f"https://localhost:{plain.server_address[1]}")
        plain.shutdown()
    assert found == Problem("tls", NO_TLS)


@pytest.mark.claim("C631")
def test_https_goes_through_the_proxy_and_nothing_else_does(
    bank: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy sees the name and the port of a server, and nothing of what is said inside."""
    with ExitStack() as parts:
        url, heads = parts.enter_context(serving(bank.server("broker.bank", "localhost")))
        here = url.removeprefix("https://localhost:")
        made = parts.enter_context(proxy(to=f"127.0.0.1:{here}"))
        plain, plain_heads = parts.enter_context(
            server(lambda one, _: one.sendall(says("200 OK", b"plain")))
        )
        name_servers(
            monkeypatch,
            {"plain.bank": ("127.0.0.1", int(plain.rpartition(":")[2]))},
            bank.file,
        )
        by = Outbound(
            authorities=bank.pem.decode(),
            proxy=parse_proxy(made.url.replace("://", "://me:secret@"), "proxy"),
            direct=("direct.bank",),
        )
        parts.enter_context(reaching(by))
        with HttpClient(QUICK, headers={"authorization": "Bearer token"}) as client:
            assert client.ask("GET", f"https://broker.bank:{here}/a", cap=10).body == b"x"
            assert client.ask("GET", f"https://broker.bank:{here}/b", cap=10).body == b"x"
            assert client.ask("GET", f"{url}/c", cap=10).body == b"x"
            assert client.ask("GET", "http://plain.bank/d", cap=10).body == b"plain"
    assert len(made.asked) == 1  # one tunnel for both; this machine and plain HTTP without it
    assert made.asked[0].startswith(f"CONNECT broker.bank:{here} HTTP/1.1\r\n".encode())
    assert b"Proxy-Authorization: Basic bWU6c2VjcmV0\r\n" in made.asked[0]
    assert b"token" not in made.asked[0]
    assert len(heads) == 3
    assert not any(b"proxy-authorization" in head.lower() for head in (*heads, *plain_heads))


@pytest.mark.claim("C631")
@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 403 Forbidden\r\n\r\n<html>ask the help desk</html>",
        b"HTTP/1.1 302 Found\r\nLocation: https://login.bank/\r\n\r\n",
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"",
        b"x" * 40_000,
    ],
)
def test_a_proxy_that_makes_no_tunnel(answer: bytes) -> None:
    with proxy(answer=answer) as made, reaching(Outbound(proxy=parse_proxy(made.url, "proxy"))):
        problem = problem_at("https://broker.example/")
        with pytest.raises(BrokerUnreachable) as broker:
            Transport("https://broker.example", 5.0).get("/v1/health", Health)
    assert problem.kind == "proxy"
    assert broker.value.check == "proxy"


@pytest.mark.claim("C631")
def test_a_proxy_that_intercepts_is_found_out(bank: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path, "Interceptor")
    with ExitStack() as parts:
        url, heads = parts.enter_context(serving(other.server("broker.example")))
        made = parts.enter_context(proxy(to=url.replace("https://localhost", "127.0.0.1")))
        through = parse_proxy(made.url, "proxy")
        with reaching(Outbound(proxy=through, authorities=bank.pem.decode())):
            assert problem_at("https://broker.example/") == Problem("tls", INTERCEPTED)
            assert heads == []
        with (
            reaching(Outbound(proxy=through, authorities=other.pem.decode())),
            HttpClient(QUICK) as client,
        ):
            assert client.ask("GET", "https://broker.example/", cap=10).body == b"x"


def tunnels_to(place: tuple[str, int] | None) -> Callable[[socket.socket, int], None]:
    """A proxy that speaks TLS; to nowhere, it sends the bytes of a record without end."""

    def serve(one: socket.socket, _: int) -> None:
        assert isinstance(one, ssl.SSLSocket)
        one.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        if place is None:
            one.sendall(b"\x16\x03\x03\x40\x00\x02")
            for _ in range(200):
                one.sendall(b"\0")
                time.sleep(0.05)
            return
        with socket.create_connection(place) as behind:
            while True:
                ready = [one] if one.pending() else select.select([one, behind], [], [], 5)[0]
                for here, there in ((one, behind), (behind, one)):
                    if here in ready:
                        data = here.recv(65536)
                        if not data:
                            return
                        there.sendall(data)

    return serve


@pytest.mark.claim("C631")
def test_a_proxy_that_speaks_tls_makes_tunnels_for_tls(bank: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path, "Interceptor")
    shown = bank.server("localhost", file="proxy")
    with ExitStack() as parts:
        url, heads = parts.enter_context(serving(other.server("broker.example")))
        place = ("127.0.0.1", int(url.rpartition(":")[2]))
        through, asked = parts.enter_context(server(tunnels_to(place), certificate=shown))
        by = parse_proxy(through, "proxy")
        with reaching(Outbound(proxy=by, authorities=bank.pem.decode())):
            assert problem_at("https://broker.example/") == Problem("tls", INTERCEPTED)
            assert heads == []
        with (
            reaching(Outbound(proxy=by, authorities=bank.pem.decode())),
            HttpClient(QUICK, authorities=other.pem.decode()) as client,
        ):
            for _ in range(2):
                body = bytes(100_000)
                answer = client.ask("POST", "https://broker.example/a", cap=10, content=body)
                assert answer.body == b"x"
    assert len(heads) == 2
    assert all(head.startswith(b"CONNECT broker.example:443 HTTP/1.1\r\n") for head in asked)


@pytest.mark.claim("C630")
def test_the_authority_of_a_broker_file_vouches_for_no_proxy(bank: Authority) -> None:
    """It would get the proxy's password."""
    shown = bank.server("localhost", file="other proxy")
    with server(tunnels_to(None), certificate=shown) as (url, asked):
        by = parse_proxy(url.replace("://", "://me:hunter2@"), "proxy")
        with reaching(Outbound(proxy=by)):
            assert problem_at("https://broker.example/", bank.pem.decode()) == Problem(
                "proxy", FOREIGN
            )
    assert asked == []


@pytest.mark.claim("C125")
def test_a_record_that_trickles_through_such_a_proxy_ends_in_time(bank: Authority) -> None:
    brief = Bounds(connect=5.0, read=5.0, total=0.3, tries=1)
    shown = bank.server("localhost", file="slow proxy")
    with (
        server(tunnels_to(None), certificate=shown) as (url, _),
        reaching(Outbound(proxy=parse_proxy(url, "proxy"), authorities=bank.pem.decode())),
        HttpClient(brief) as client,
    ):
        began = time.monotonic()
        with pytest.raises(NoAnswer) as caught:
            client.ask("GET", "https://broker.example/", cap=10)
        assert time.monotonic() - began < 5
    assert caught.value.problem.kind == "late"


def test_a_proxy_that_is_not_there_or_shows_a_foreign_certificate(bank: Authority) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with reaching(Outbound(proxy=parse_proxy(f"http://127.0.0.1:{port}", "proxy"))):
        assert problem_at("https://broker.example/").kind == "connect"
    with (
        serving(bank.server("localhost")) as (url, heads),
        reaching(Outbound(proxy=parse_proxy(url, "proxy"))),
    ):
        assert problem_at("https://broker.example/") == Problem("proxy", FOREIGN)
    assert heads == []


def test_a_client_that_needs_no_tls_reads_no_setting() -> None:
    def refused() -> Outbound:
        raise AssertionError("a setting was read")

    before = reach_by(refused)
    try:
        HttpClient(QUICK, tls=False).close()
    finally:
        reach_by(before)
    assert DIRECT.proxy is None


@pytest.fixture
def folder(tmp_path: Path, bank: Authority, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a project file that names an authority and a proxy."""
    for name in list(os.environ):
        if name.startswith("SEALTRAIN_") or name.lower() in ("https_proxy", "no_proxy"):
            monkeypatch.delenv(name)
    (tmp_path / "ca.pem").write_bytes(bank.pem)
    (tmp_path / NAME).write_text(
        'version = 1\nca_file = "ca.pem"\nproxy = "http://file.bank:1"\nno_proxy = ["a.bank"]\n'
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def reached(*, measured: bool = False) -> tuple[Outbound, str]:
    """How a command reaches servers, and what it says about that."""
    seen: list[Outbound] = []

    def act() -> None:
        """Act."""
        seen.append(outbound())

    program = typer.Typer(add_completion=False, rich_markup_mode=None)
    program.command("act", cls=Command)(act)
    made = typer.main.get_command(program)
    assert isinstance(made, Command)
    made.settle(("act",), measured=measured)
    result = CliRunner().invoke(made, [], catch_exceptions=False)
    return seen[0], result.stderr


@pytest.mark.claim("C632")
def test_a_persons_command_takes_them_and_a_measured_one_does_not(
    folder: Path, bank: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, said = reached()
    assert found.authorities == bank.pem.decode()
    assert found.proxy == parse_proxy("http://file.bank:1", "proxy")
    assert found.direct == ("a.bank",)
    assert "ca.pem" in said
    assert "file.bank:1" in said
    monkeypatch.setenv("HTTPS_PROXY", "http://tools.bank:2")
    monkeypatch.setenv("SEALTRAIN_CA_FILE", str(folder / "ca.pem"))
    assert reached(measured=True) == (DIRECT, "")
    assert reached()[0].proxy == parse_proxy("http://file.bank:1", "proxy")
    monkeypatch.setenv("SEALTRAIN_PROXY", "http://me:hunter2@ours.bank:3")
    found, said = reached()
    assert found.proxy == parse_proxy("http://me:hunter2@ours.bank:3", "proxy")
    assert "hunter2" not in said
    assert outbound() == DIRECT  # nothing of a command stays behind


@pytest.mark.claim("C632")
@pytest.mark.parametrize(
    ("line", "check"),
    [
        ('ca_file = "absent.pem"', "ca_file"),
        ('ca_file = "sealtrain.toml"', "ca_file"),
        ("ca_file = 1", "type"),
        ('ca_file = ["ca.pem"]', "type"),
        ('ca_file = "a\\u0000b"', "type"),
        ('proxy = "socks5://proxy.bank:1"', "proxy"),
        ('proxy = "http://me:secret@proxy.bank:1"', "proxy"),
        ("proxy = []", "type"),
        ('no_proxy = "a.bank"', "type"),
        ("no_proxy = []", "type"),
        ("insecure = true", "key"),
        ('verify = "no"', "key"),
        ('tls = "none"', "key"),
    ],
)
def test_what_a_project_file_cannot_say_of_networks(folder: Path, line: str, check: str) -> None:
    (folder / NAME).write_text(f"version = 1\n{line}\n")
    with pytest.raises(ConfigError) as caught:
        settle_outbound()
    assert caught.value.check == check


@pytest.mark.claim("C630")
def test_a_broker_file_brings_its_authority_to_guests(bank: Authority, tmp_path: Path) -> None:
    made = new_pin(
        "https://localhost:1",
        to_base64(bytes(32)),
        compose_hash="ab" * 32,
        appraisal=policy_from_dict(intel()),
        authorities=bank.server("localhost").read_text() + bank.pem.decode(),
    )
    (tmp_path / "broker.yaml").write_text(made.to_yaml())
    read = load_pin(tmp_path / "broker.yaml")
    assert bank.pem.decode() in read.trusted
    assert "PRIVATE" not in made.to_yaml()
    ticket = parse_ticket(RunTicket(version=1, role="lead", brokers=(read,)).to_bytes())
    assert ticket.brokers[0].trusted == read.trusted
    with serving(bank.server("localhost")) as (url, heads):
        bare = read.model_copy(update={"url": url, "authorities": ()})
        with BrokerClient.at(bare) as client, pytest.raises(BrokerUnreachable) as caught:
            client.health()
        assert caught.value.got == FOREIGN
        named = read.model_copy(update={"url": url})
        with BrokerClient.at(named) as client, pytest.raises(SealtrainError) as answered:
            client.health()  # reached; its answer is no broker's
    assert answered.value.check != "tls"
    assert len(heads) == 1


@pytest.mark.parametrize("text", ["AA==", "", "not base64", "MIIB"])
def test_a_broker_file_with_another_authority_is_refused(tmp_path: Path, text: str) -> None:
    document = new_pin(
        "https://localhost:1",
        to_base64(bytes(32)),
        compose_hash="ab" * 32,
        appraisal=policy_from_dict(intel()),
    ).to_dict() | {"authorities": [text]}
    (tmp_path / "broker.yaml").write_text(yaml_text(document))
    with pytest.raises(TrustInvalid):
        load_pin(tmp_path / "broker.yaml")


@pytest.mark.claim("C638")
def test_a_sandbox_opens_for_the_tickets_proxy_in_place_of_the_servers_behind_it(
    bank: Authority,
) -> None:
    with ExitStack() as parts:
        url, heads = parts.enter_context(serving(bank.server("store.bank")))
        server_port = port_of(url)
        made = parts.enter_context(proxy(to=f"127.0.0.1:{server_port}"))
        given = RunTicket(
            version=1,
            role="dealer",
            authorities=tuple(certificates_of(bank.pem.decode())),
            outbound_proxy=made.url,
            no_proxy=("direct.bank",),
        )
        by = parse_ticket(given.to_bytes()).outbound
        store = f"https://store.bank:{server_port}/sealed"
        assert by.places([store, "https://direct.bank/a", "http://broker.bank", store]) == [
            made.url.replace("http", "tcp"),
            "https://direct.bank/a",
            "http://broker.bank",
        ]
        assert DIRECT.places([store]) == [store]
        behind, before = ("127.0.0.1", server_port), ("127.0.0.1", port_of(made.url))
        with confine_to(*by.places([store])):
            assert [is_open(place) for place in (before, behind)] == [True, False]
        with confine_to(*DIRECT.places(["https://127.0.0.2"])):
            assert [is_open(place) for place in (before, behind)] == [False, False]
        with reaching(by), HttpClient(QUICK) as client:
            assert client.ask("GET", store, cap=10).body == b"x"
    assert len(heads) == 1


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def is_open(place: tuple[str, int]) -> bool:
    """Whether the sandbox lets this process connect."""
    with socket.socket() as another:
        try:
            another.connect(place)
        except EgressRefused:
            return False
    return True
