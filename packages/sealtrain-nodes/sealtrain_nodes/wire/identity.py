"""The key of a node, and TLS 1.3 that accepts the keys of its peers and nothing else (spec §2).

The key exists for one run and in memory only. X.509 is here only because TLS carries keys in
certificates: a node issues itself a certificate under its own key, and a peer trusts an anchor
made of the key that the membership names, so there is no authority and no name to compare.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final, Self

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sealtrain.base.secret import Random, Secret
from sealtrain.training.errors import ChannelRefused

PROTOCOL: Final = "sealtrain/node-wire/1"
"""What TLS negotiates (ALPN): no other protocol of ours or of others speaks it."""

# Certificates have dates; these keys live as long as their run, and no clock decides about it.
_BEFORE: Final = datetime(2000, 1, 1, tzinfo=UTC)
_AFTER: Final = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
_LEAF: Final = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sealtrain node")])


class NodeKey:
    """An Ed25519 key made for one run. Never written anywhere; a fork inherits it."""

    def __init__(self, seed: Secret) -> None:
        self._private = Ed25519PrivateKey.from_private_bytes(seed.reveal())
        self.public_key: bytes = self._private.public_key().public_bytes(
            Encoding.Raw, PublicFormat.Raw
        )
        """32 bytes, for the membership."""

    @classmethod
    def make(cls, random: Random = os.urandom) -> Self:
        """A fresh key."""
        return cls(Secret(random(32)))

    def context(self, side: int, accepted: Iterable[bytes]) -> ssl.SSLContext:
        """TLS 1.3 under this key, for peers that have one of the accepted keys.

        Args:
            side: ``ssl.PROTOCOL_TLS_CLIENT`` or ``ssl.PROTOCOL_TLS_SERVER``.
            accepted: Public keys.
        """
        context = ssl.SSLContext(side)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
        context.options |= ssl.OP_NO_TICKET
        if side == ssl.PROTOCOL_TLS_SERVER:
            context.num_tickets = 0
        context.set_alpn_protocols([PROTOCOL])
        pem = self._certificate().public_bytes(Encoding.PEM) + self._private.private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        )
        with _in_memory(pem) as path:
            context.load_cert_chain(path)
        # After the chain: loading that empties the thread's queue of OpenSSL errors first, and
        # loading anchors reports whatever another library has left there as its own failure.
        context.load_verify_locations(cadata=b"".join(_anchor(key) for key in set(accepted)))
        return context

    def _certificate(self) -> x509.Certificate:
        public = self._private.public_key()
        return (
            _certificate(_LEAF, _name(self.public_key), public)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage(
                    [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
                ),
                critical=True,
            )
            .sign(self._private, None)
        )


def key_of(certificate: bytes) -> bytes:
    """The public key of a certificate that a peer showed.

    Args:
        certificate: DER.

    Raises:
        ChannelRefused: It has a key of another kind.
    """
    found = x509.load_der_x509_certificate(certificate).public_key()
    if not isinstance(found, Ed25519PublicKey):
        raise ChannelRefused("the peer has a key of another kind", check="key")
    return found.public_bytes(Encoding.Raw, PublicFormat.Raw)


def _anchor(public_key: bytes) -> bytes:
    """The key as a trust anchor, in DER. An anchor's signature is not verified by anything."""
    name = _name(public_key)
    return (
        _certificate(name, name, Ed25519PublicKey.from_public_bytes(public_key))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(Ed25519PrivateKey.generate(), None)
        .public_bytes(Encoding.DER)
    )


def _certificate(
    subject: x509.Name, issuer: x509.Name, public: Ed25519PublicKey
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_BEFORE)
        .not_valid_after(_AFTER)
    )


def _name(public_key: bytes) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, public_key.hex())])


@contextmanager
def _in_memory(data: bytes) -> Iterator[str]:
    """A path that leads to bytes in memory: the ssl module reads keys from files alone."""
    descriptor = os.memfd_create("sealtrain-node", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, data)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.ftruncate(descriptor, 0)
        os.close(descriptor)
