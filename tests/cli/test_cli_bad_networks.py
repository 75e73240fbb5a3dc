"""Servers and proxies that cannot be reached, and settings of a network that make no sense.

``bad_networks.txt`` has a row for each fault: the command, its exit code, the error's code, the
check that failed, and the words that the user reads. The words are there for readers of
``docs/reference/bad-inputs.md``; only what comes before them is compared.
``SEALTRAIN_WRITE_TABLE=1`` writes the table anew.
"""

from __future__ import annotations

import json
import os
import re
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from manifest_world import make_world
from policies import intel
from private_network import Authority, proxy
from raw_server import server
from sealing_world import json_lines, sealed_folder, signed
from typer.testing import CliRunner
from variants import variants

from sealtrain.attest.policy import policy_from_dict
from sealtrain.base.encoding import to_base64
from sealtrain.base.yamltext import yaml_text
from sealtrain.cli import app
from sealtrain.cli.project import NAME
from sealtrain.client.pin import new_pin
from sealtrain.errors import SealtrainError

pytestmark = [
    pytest.mark.claim("C630"),
    pytest.mark.claim("C631"),
    pytest.mark.claim("C632"),
    pytest.mark.claim("C746"),
]

TABLE = Path(__file__).with_name("bad_networks.txt")
WRITE_TABLE = "SEALTRAIN_WRITE_TABLE" in os.environ
COMMANDS: Final = ("broker status", "publish", "run track")
SECRET: Final = "hunter2"  # noqa: S105  # the password of a proxy
REFUSES: Final = b"HTTP/1.1 %d Refused\r\nContent-Length: 0\r\n\r\n"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A network on which a command fails.

    Attributes:
        url: Of the server that the command reaches.
        variables: Of its environment.
        settings: Lines of the project file.
    """

    url: str = "https://server.example"
    variables: Mapping[str, str] = field(default_factory=dict)
    settings: str = ""


class Bank:
    """A private authority, and servers and proxies that fail in one way each."""

    def __init__(self, folder: Path, parts: ExitStack) -> None:
        self.folder = folder
        self.parts = parts
        self.authority = Authority(folder / "bank")
        self.other = Authority(folder / "other", "Other CA")

    def server(self, certificate: Path) -> str:
        """URL of a server that shows a certificate and answers nothing."""
        made = server(lambda _connection, _number: None, certificate=certificate)
        return self.parts.enter_context(made)[0]

    def shown(self, certificate: Path) -> Fault:
        """A server on this machine, of which the bank's authority is known."""
        return Fault(url=self.server(certificate), settings='ca_file = "bank/Bank CA.pem"')

    def proxied(self, answer: bytes) -> Fault:
        """A proxy that answers so to each request for a tunnel."""
        return self.through(self.parts.enter_context(proxy(answer=answer)).url)

    def through(self, url: str) -> Fault:
        return Fault(variables={"SEALTRAIN_PROXY": url.replace("://", f"://me:{SECRET}@")})

    def intercepting(self) -> Fault:
        """A proxy that opens TLS with certificates of an authority of its own."""
        place = self.server(self.other.server("server.example")).rpartition(":")[2]
        return self.through(self.parts.enter_context(proxy(to=f"127.0.0.1:{place}")).url)

    def answering(self, said: bytes) -> Fault:
        """A server on this machine that answers every request with the same, and hangs up."""

        def answer(connection: socket.socket, _number: int) -> None:
            connection.sendall(said)
            connection.close()

        return Fault(url=self.parts.enter_context(server(answer))[0])

    def silent(self) -> Fault:
        """A port on which nothing listens."""
        with socket.create_server(("127.0.0.1", 0)) as gone:
            return self.through(f"http://127.0.0.1:{gone.getsockname()[1]}")

    def plain(self) -> Fault:
        """A server that speaks no TLS, by a URL that says it does."""

        class Plain(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                self.request.recv(4096)
                self.request.sendall(REFUSES % 400)

        plain = self.parts.enter_context(socketserver.TCPServer(("127.0.0.1", 0), Plain))
        threading.Thread(target=plain.serve_forever, daemon=True).start()
        self.parts.callback(plain.shutdown)
        return Fault(url=f"https://localhost:{plain.server_address[1]}")


ANSWERS: Final[Mapping[str, Callable[[Bank], Fault]]] = {
    f"tracker: {name}": lambda bank, said=said: bank.answering(said)  # type: ignore[misc]
    for name, said in {
        "wants a token": REFUSES % 401,
        "forbids it": REFUSES % 403,
        "has no such address": REFUSES % 404,
        "comes back later": REFUSES % 503,
        "fails": REFUSES % 501,
        "redirects": b"HTTP/1.1 302 Found\r\nLocation: https://login.bank/\r\n"
        b"Content-Length: 0\r\n\r\n",
        "is a page to sign in": b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n<html></html>",
        "is another service": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        "breaks off": b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\nConnection: close\r\n\r\n{",
        "speaks no HTTP": b"SSH-2.0-x\r\n\r\n",
    }.items()
}
FAULTS: Final[Mapping[str, Callable[[Bank], Fault]]] = {
    "TLS: expired certificate": lambda bank: bank.shown(
        bank.authority.server("localhost", days=(-9, -2), file="expired")
    ),
    "TLS: certificate that is not valid yet": lambda bank: bank.shown(
        bank.authority.server("localhost", days=(2, 9), file="early")
    ),
    "TLS: certificate of a foreign authority": lambda bank: bank.shown(
        bank.other.server("localhost")
    ),
    "TLS: self-signed certificate": lambda bank: bank.shown(
        bank.authority.self_signed("localhost")
    ),
    "TLS: certificate for another name": lambda bank: bank.shown(
        bank.authority.server("broker.bank")
    ),
    "TLS: server without TLS": lambda bank: bank.plain(),
    "proxy: wants a password": lambda bank: bank.proxied(REFUSES % 407),
    "proxy: refuses the server": lambda bank: bank.proxied(REFUSES % 403),
    "proxy: sends to a page": lambda bank: bank.proxied(
        b"HTTP/1.1 302 Found\r\nLocation: https://login.bank/\r\n\r\n"
    ),
    "proxy: speaks no HTTP": lambda bank: bank.proxied(b"SSH-2.0-x\r\n\r\n"),
    "proxy: intercepts with its own certificate": lambda bank: bank.intercepting(),
    "proxy: shows a foreign certificate": lambda bank: bank.through(
        bank.server(bank.other.server("localhost", file="proxy"))
    ),
    "proxy: nothing listens there": lambda bank: bank.silent(),
    "setting: proxy that is no URL": lambda _bank: Fault(
        variables={"SEALTRAIN_PROXY": f"the proxy, ask {SECRET}"}
    ),
    "setting: proxy with a path": lambda _bank: Fault(
        settings='proxy = "http://proxy.bank:8080/proxy.pac"'
    ),
    "setting: proxy with a port that no server has": lambda _bank: Fault(
        variables={"HTTPS_PROXY": "http://proxy.bank:80800"}
    ),
    "setting: proxy that speaks SOCKS": lambda _bank: Fault(
        settings='proxy = "socks5://proxy.bank:1080"'
    ),
    "setting: proxy with a password in the project file": lambda _bank: Fault(
        settings=f'proxy = "http://me:{SECRET}@proxy.bank:8080"'
    ),
    "setting: CA file that is absent": lambda _bank: Fault(settings='ca_file = "absent.pem"'),
    "setting: CA file without a certificate": lambda _bank: Fault(settings=f'ca_file = "{NAME}"'),
    "setting: CA file in DER": lambda bank: Fault(settings=f'ca_file = "{in_der(bank)}"'),
    "setting: exception with a port that no server has": lambda _bank: Fault(
        settings='proxy = "http://proxy.bank:8080"\nno_proxy = ["server.bank:99999"]'
    ),
}


def in_der(bank: Bank) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    path = bank.folder / "bank.der"
    path.write_bytes(bank.authority.certificate.public_bytes(Encoding.DER))
    return path.name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("bank")
    (made / "rows.jsonl").write_text(json_lines([{"text": "one"}]))
    sealed_folder(made / "rows.jsonl", made / "a.sealed", sign=signed)
    world = make_world(made / "world")
    (made / "run").mkdir()
    (made / "run/manifest.json").write_bytes(world.manifest())
    (made / "trust.yaml").write_text(yaml_text(world.trust_document()))
    return made


@pytest.fixture
def bank(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bank]:
    for name in list(os.environ):
        if name.startswith("SEALTRAIN_") or name.lower() in ("https_proxy", "no_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(folder)
    with ExitStack() as parts:
        yield Bank(folder, parts)


def row(name: str, command: str, bank: Bank) -> str:
    """The fault, and how it is told."""
    fault = {**FAULTS, **ANSWERS}[name](bank)
    (bank.folder / NAME).write_text(f"version = 1\n{fault.settings}\n")
    pin = new_pin(
        fault.url,
        to_base64(bytes(32)),
        compose_hash="ab" * 32,
        appraisal=policy_from_dict(intel()),
    )
    (bank.folder / "broker.yaml").write_text(pin.to_yaml())
    words = {
        "broker status": ["broker", "status", "--broker", "broker.yaml"],
        "publish": ["publish", "a.sealed", f"{fault.url}/sealed"],
        "run track": [
            "run", "track", "run", "--trust", "trust.yaml", "--tracker", "mlflow",
            "--tracking-uri", fault.url,
        ],
    }[command]  # fmt: skip
    done = CliRunner().invoke(app, words, env=dict(fault.variables))
    error = done.exception
    assert isinstance(error, SealtrainError)
    said = error.to_dict()
    assert SECRET not in json.dumps(said) + done.output
    parts = [str(said[part]) for part in ("message", "got", "hint") if said.get(part)]
    told = "; ".join(parts).replace("|", "/").replace("\n", " ")
    told = re.sub(r":\d{4,5}\b", ":PORT", told).replace(str(bank.folder), "FOLDER")
    return f"{name} | {command} | {error.exit_code} | {said['code']} | {said['check']} | {told}"


def known() -> dict[tuple[str, ...], str]:
    lines = TABLE.read_text("utf-8").splitlines() if TABLE.exists() else []
    return {tuple(line.split(" | ")[:2]): line for line in lines}


CALLS: Final = [
    *((name, command) for name in FAULTS for command in COMMANDS),
    *((name, "run track") for name in ANSWERS),
]
A_SAMPLE: Final = [
    ("TLS: expired certificate", "publish"),
    ("proxy: refuses the server", "publish"),
    ("setting: proxy that is no URL", "publish"),
    ("proxy: wants a password", "run track"),
    *((name, "run track") for name in ANSWERS),
    *((name, "broker status") for name in FAULTS if not name.startswith("setting")),
]


@pytest.mark.parametrize(("name", "command"), variants(CALLS, each_time=A_SAMPLE))
def test_a_fault_of_a_network_is_told_as_the_table_says(
    name: str, command: str, bank: Bank
) -> None:
    found, rows = row(name, command, bank), known()
    if WRITE_TABLE:
        rows[name, command] = found
        TABLE.write_text("".join(f"{line}\n" for line in sorted(rows.values())), "utf-8")
    assert known()[name, command].split(" | ")[:5] == found.split(" | ")[:5]


def test_the_table_has_every_fault_and_no_other() -> None:
    assert set(known()) == set(CALLS)
