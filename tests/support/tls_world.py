"""Servers with names and certificates on this machine."""

from __future__ import annotations

import datetime as dt
import socket
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def certificate(folder: Path, *names: str) -> Path:
    """A file with a certificate for names that is its own authority, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "server.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return path


def name_servers(
    monkeypatch: pytest.MonkeyPatch, servers: dict[str, tuple[str, int]], authorities: Path
) -> None:
    """Make names lead to servers here, and the packaged authorities be those of a file."""
    known = socket.getaddrinfo

    def told(host: Any, port: Any, *words: Any, **named: Any) -> Any:
        host, port = servers.get(host, (host, port))
        return known(host, port, *words, **named)

    monkeypatch.setattr(socket, "getaddrinfo", told)
    monkeypatch.setattr("certifi.where", lambda: str(authorities))
