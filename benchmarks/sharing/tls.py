"""TLS 1.3 in which both sides show a certificate that the other knows beforehand.

What parties without attested channels would use. A certificate is accepted because it is the one
that was handed over, so no name and no authority is looked at.
"""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAYS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A party's certificate and the key to it.

    Attributes:
        certificate: PEM; for everybody.
        key: PEM; for itself.
    """

    certificate: bytes
    key: bytes = field(repr=False)

    @classmethod
    def make(cls, name: str, now: int) -> Identity:
        """A fresh one for a few days.

        Args:
            name: Common name; decides nothing.
            now: Seconds since the epoch.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        moment = datetime.fromtimestamp(now, UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(moment - timedelta(days=1))
            .not_valid_after(moment + timedelta(days=_DAYS))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .sign(key, hashes.SHA256())
        )
        return cls(
            certificate=certificate.public_bytes(serialization.Encoding.PEM),
            key=key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
        )


def server_context(me: Identity, others: Sequence[bytes]) -> ssl.SSLContext:
    """For who is called.

    Args:
        me: Shown to the other side.
        others: Certificates that are accepted, PEM.
    """
    return _context(ssl.PROTOCOL_TLS_SERVER, me, others)


def client_context(me: Identity, others: Sequence[bytes]) -> ssl.SSLContext:
    """For who calls. Arguments as ``server_context``."""
    return _context(ssl.PROTOCOL_TLS_CLIENT, me, others)


def _context(side: int, me: Identity, others: Sequence[bytes]) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=b"".join(others).decode())
    with tempfile.TemporaryDirectory() as folder:  # the library reads keys from files alone
        path = Path(folder) / "identity.pem"
        path.touch(mode=0o600)
        path.write_bytes(me.certificate + me.key)
        context.load_cert_chain(path)
    return context
