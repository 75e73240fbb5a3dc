"""A bank's network on loopback: a private authority, servers with its certificates, a proxy."""

from __future__ import annotations

import datetime as dt
import ipaddress
import select
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from raw_server import head_of


@dataclass
class Authority:
    """A private certificate authority, and the files of the certificates that it signed."""

    folder: Path
    name: str = "Bank CA"
    key: ec.EllipticCurvePrivateKey = field(init=False)
    certificate: x509.Certificate = field(init=False)

    def __post_init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = _signed(self.name, self.key, self.name, self.key, (), authority=True)
        self.folder.mkdir(exist_ok=True, parents=True)
        self.file.write_bytes(self.pem)

    @property
    def file(self) -> Path:
        """Its own certificate."""
        return self.folder / f"{self.name}.pem"

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def server(self, *names: str, days: tuple[int, int] = (-1, 30), file: str = "") -> Path:
        """A file with a key and a certificate for names or addresses, signed by this authority."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = _signed(self.name, self.key, names[0], key, names, days=days)
        path = self.folder / f"{file or names[0]}.server.pem"
        path.write_bytes(_private(key) + made.public_bytes(serialization.Encoding.PEM))
        return path

    def self_signed(self, name: str) -> Path:
        """A file with a key and a certificate that this authority did not sign."""
        key = ec.generate_private_key(ec.SECP256R1())
        path = self.folder / "self-signed.server.pem"
        made = _signed(name, key, name, key, (name,))
        path.write_bytes(_private(key) + made.public_bytes(serialization.Encoding.PEM))
        return path


@dataclass
class Proxy:
    """A proxy that makes tunnels. Thread-safe enough for tests.

    Attributes:
        url: Where it listens.
        asked: Request lines and authorizations of the tunnels that it was asked for.
    """

    url: str
    asked: list[bytes] = field(default_factory=list)


@contextmanager
def proxy(
    *,
    answer: bytes = b"HTTP/1.1 200 Connection established\r\n\r\n",
    to: str | None = None,
    names: Mapping[str, str] | None = None,
    host: str = "127.0.0.1",
) -> Iterator[Proxy]:
    """A proxy on loopback, or at another address of this machine.

    Args:
        answer: What it says to each request for a tunnel; the tunnel is made for a 2xx alone.
        to: ``HOST:PORT`` that every tunnel leads to, in place of the one that is asked for: the
            proxy intercepts, or a name of the bank's own network is meant.
        names: ``HOST:PORT`` that a tunnel leads to, by the one that is asked for.
        host: Address at which it listens.
    """
    listener = socket.create_server((host, 0))
    made = Proxy(f"http://{host}:{listener.getsockname()[1]}")

    def handle(client: socket.socket) -> None:
        with suppress(OSError), client:
            head = head_of(client)
            if not head:  # the caller only tried whether the port is open
                return
            made.asked.append(head)
            target = to or head.split(b" ")[1].decode()
            target = (names or {}).get(target, target)
            if not answer.startswith(b"HTTP/1.1 2"):
                client.sendall(answer)
                return
            host, _, port = target.rpartition(":")
            with socket.create_connection((host, int(port))) as server:
                client.sendall(answer)
                _relay(client, server)

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=handle, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield made
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _relay(client: socket.socket, server: socket.socket) -> None:
    while True:
        ready, _, _ = select.select([client, server], [], [], 30)
        for here, there in ((client, server), (server, client)):
            if here in ready:
                data = here.recv(65536)
                if not data:
                    return
                there.sendall(data)
        if not ready:
            return


def _signed(
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    subject: str,
    key: ec.EllipticCurvePrivateKey,
    names: tuple[str, ...],
    *,
    days: tuple[int, int] = (-1, 30),
    authority: bool = False,
) -> x509.Certificate:
    now = dt.datetime.now(dt.UTC)
    begun = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + dt.timedelta(days=days[0]))
        .not_valid_after(now + dt.timedelta(days=days[1]))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    )
    if names:
        begun = begun.add_extension(
            x509.SubjectAlternativeName([_named(name) for name in names]), critical=False
        )
    return begun.sign(issuer_key, hashes.SHA256())


def _named(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
