"""Roots of trust by their public key, and the one word by which a simulator's root is known."""

from __future__ import annotations

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from sealtrain.base.digests import sha256_hex
from sealtrain.errors import QuoteInvalid

__all__ = [
    "INTEL_ROOT_KEY_SHA256",
    "SIMULATED_LABEL",
    "X509_ERRORS",
    "is_simulated_certificate",
    "root_key_sha256",
]

INTEL_ROOT_KEY_SHA256 = "a0af031289f5d5d4132f9186068a7fc13628633ba235777472e29b6b6c67a49e"
"""SHA-256 of the Intel SGX Root CA's SubjectPublicKeyInfo. It names a foreign root early; the
certificate itself is inside the verification library."""

X509_ERRORS = (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion)
"""What the certificate library raises on bytes that are no certificate it can read."""

SIMULATED_LABEL = "SIMULATED — NOT ATTESTED"
"""What every artefact made under a simulator says."""


def is_simulated_certificate(der: bytes) -> bool:
    """Whether a certificate calls itself SIMULATED.

    Raises:
        QuoteInvalid: Not an X.509 certificate in DER.
    """
    try:
        names = _load(der).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    except X509_ERRORS as error:
        raise QuoteInvalid("certificate cannot be parsed", check="quote structure") from error
    return any(str(name.value).startswith("SIMULATED") for name in names)


def root_key_sha256(der: bytes) -> str:
    """SHA-256 of a certificate's SubjectPublicKeyInfo, 64 hex digits.

    Raises:
        QuoteInvalid: Not an X.509 certificate in DER, or its key is unreadable.
    """
    try:
        key = _load(der).public_key()
    except X509_ERRORS as error:
        raise QuoteInvalid("root key cannot be parsed", check="quote structure") from error
    return sha256_hex(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))


def _load(der: bytes) -> x509.Certificate:
    try:
        certificate = x509.load_der_x509_certificate(der)
        _ = certificate.subject  # parsed on first use
    except (ValueError, x509.InvalidVersion) as error:
        raise QuoteInvalid("certificate cannot be parsed", check="quote structure") from error
    return certificate
