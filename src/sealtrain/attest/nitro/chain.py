"""The certificate chain of a Nitro document, from the root down to the key that signed it.

Checked one by one, because the path validation of the certificate library is made for web servers
and asks for names and uses that these certificates do not have:

1. root: byte for byte the pinned one, or the simulator's;
2. every certificate: parses, key on P-384, no critical extension that is not looked at here, valid
   at the verification time (both ends included);
3. every link: issuer name is subject name, signed by the issuer with ECDSA and SHA-384;
4. issuers: basicConstraints CA, keyCertSign, path length respected; leaf: no CA, digitalSignature.

No revocation list: AWS says to disable that check, the certificates live hours to weeks.

A link that held is remembered by the bytes of both certificates: the signature of the same bytes
under the same key cannot stop holding. Only links below a trusted root are ever looked at, times
and roles are looked at each time, and what failed is not remembered.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtensionOID

from sealtrain.attest.roots import (
    X509_ERRORS,
    VendorRoot,
    is_simulated_certificate,
    load_certificate,
)
from sealtrain.base.clock import to_rfc3339
from sealtrain.errors import (
    CertificateChainInvalid,
    QuoteInvalid,
)

__all__ = ["AWS_NITRO_ROOT_SHA256", "VerifiedChain", "verify_chain"]

AWS_NITRO_ROOT_SHA256 = "641a0321a3e244efe456463195d606317ed7cdcc3c1756e09893f3c68f79bb5b"
"""SHA-256 of AWS's Nitro Enclaves root certificate (DER), CN=aws.nitro-enclaves, 2019 to 2049. The
digest that AWS prints beside its download is that of the ZIP file."""

_REMEMBERED = 256
_LOOKED_AT = {ExtensionOID.BASIC_CONSTRAINTS, ExtensionOID.KEY_USAGE}
_UNREADABLE = (
    *X509_ERRORS,
    x509.DuplicateExtension,
    x509.ExtensionNotFound,
    x509.UnsupportedGeneralNameType,
    UserWarning,  # what the library frowns upon, where a program turns warnings into errors
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedChain:
    """The leaf's key, whether a simulator stands behind it, and when every certificate is valid."""

    key: ec.EllipticCurvePublicKey
    simulated: bool
    valid_from: int
    valid_until: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Link:
    """A certificate, read once."""

    key: ec.EllipticCurvePublicKey
    name: str
    start: int
    end: int
    is_issuer: bool
    path_length: int | None
    signs_certificates: bool
    signs_documents: bool


def verify_chain(
    cabundle: tuple[bytes, ...], leaf: bytes, *, simulator_root: bytes | None, now: int
) -> VerifiedChain:
    """Verify a chain at a moment.

    Args:
        cabundle: Issuers, DER, the root first.
        leaf: DER.
        simulator_root: The one software root to trust, or ``None`` for AWS's.
        now: Verification time, seconds since 1970.

    Raises:
        SimulatedEvidence: A simulator's root where hardware is asked for.
        QuoteRootUntrusted: Another foreign root.
        CertificateChainInvalid: One of the checks above fails.
    """
    simulated = _AWS.admit(cabundle[0], simulator_root)
    links = [_root(cabundle[0])]
    for issuer, der in zip(cabundle, (*cabundle[1:], leaf), strict=True):
        _check_issuer(links[-1], below=len(cabundle) - len(links))
        links.append(_issued(issuer, der))
    end_entity = links[-1]
    if end_entity.is_issuer:
        raise _invalid(end_entity, "leaf is a CA", "no CA")
    if not end_entity.signs_documents:
        raise _invalid(end_entity, "no digitalSignature", "digitalSignature")
    for link in links:
        if not link.start <= now <= link.end:
            raise CertificateChainInvalid(
                f"certificate {link.name!r} is not valid at the verification time",
                check="certificate time",
                got=_text(now),
                expected=f"from {_text(link.start)} to {_text(link.end)}",
                hint="ask for a new document; verify an archived one at its recorded time",
            )
    return VerifiedChain(
        key=end_entity.key,
        simulated=simulated,
        valid_from=max(link.start for link in links),
        valid_until=min(link.end for link in links),
    )


def _is_simulated(root: bytes) -> bool:
    try:
        return is_simulated_certificate(root)
    except (QuoteInvalid, UserWarning):
        return False  # no certificate at all: foreign, whatever it calls itself


_AWS = VendorRoot(
    pins=(AWS_NITRO_ROOT_SHA256,),
    subject="document",
    name="AWS Nitro Enclaves root",
    foreign=f"AWS Nitro Enclaves root {AWS_NITRO_ROOT_SHA256[:16]}…",
    is_simulated=_is_simulated,
    simulator_hint="use the root of the simulator's own state folder",
    hardware_hint="run the enclave on hardware; a simulator proves nothing",
)


def _check_issuer(link: _Link, *, below: int) -> None:
    """``below`` issuers stand between this one and the leaf."""
    if not link.is_issuer:
        raise _invalid(link, "issuer without CA", "basicConstraints CA")
    if not link.signs_certificates:
        raise _invalid(link, "issuer without keyCertSign", "keyCertSign")
    if link.path_length is not None and link.path_length < below:
        raise _invalid(link, f"{below} issuers below it", f"at most {link.path_length}")


@lru_cache(maxsize=8)
def _root(der: bytes) -> _Link:
    return _read(_load(der))


@lru_cache(maxsize=_REMEMBERED)
def _issued(issuer: bytes, der: bytes) -> _Link:
    """Read a certificate whose signature by ``issuer`` holds; nothing of it is read before."""
    certificate = _load(der)
    try:
        certificate.verify_directly_issued_by(_load(issuer))
    except (InvalidSignature, *_UNREADABLE) as error:
        raise CertificateChainInvalid(
            "a certificate of the document is not signed by the one before it",
            check="certificate chain",
            got=str(error)[:200] or "signature does not verify",
        ) from error
    link = _read(certificate)
    algorithm = certificate.signature_hash_algorithm
    if not isinstance(algorithm, hashes.SHA384):
        raise _invalid(link, f"signed over {algorithm.name if algorithm else None}", "SHA-384")
    return link


def _load(der: bytes) -> x509.Certificate:
    try:
        return load_certificate(der)
    except _UNREADABLE as error:
        raise _unreadable() from error


def _read(certificate: x509.Certificate) -> _Link:
    try:
        key = certificate.public_key()
        extensions = certificate.extensions
        usage = extensions.get_extension_for_class(x509.KeyUsage).value
        constraints = extensions.get_extension_for_class(x509.BasicConstraints).value
        name = certificate.subject.rfc4514_string()[:120]
        start = int(certificate.not_valid_before_utc.timestamp())
        end = int(certificate.not_valid_after_utc.timestamp())
    except _UNREADABLE as error:
        raise _unreadable() from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise CertificateChainInvalid(
            f"certificate {name!r} has another kind of key",
            check="certificate chain",
            got=key.curve.name if isinstance(key, ec.EllipticCurvePublicKey) else "no EC key",
            expected="P-384",
        )
    link = _Link(
        key=key,
        name=name,
        start=start,
        end=end,
        is_issuer=constraints.ca,
        path_length=constraints.path_length,
        signs_certificates=usage.key_cert_sign,
        signs_documents=usage.digital_signature,
    )
    for extension in extensions:
        if extension.critical and extension.oid not in _LOOKED_AT:
            raise _invalid(
                link, f"critical extension {extension.oid.dotted_string}", "none unknown"
            )
    return link


def _unreadable() -> CertificateChainInvalid:
    return CertificateChainInvalid(
        "a certificate of the document cannot be read", check="certificate chain"
    )


def _invalid(link: _Link, got: str, expected: str) -> CertificateChainInvalid:
    return CertificateChainInvalid(
        f"certificate {link.name!r} does not fit its place in the chain",
        check="certificate chain",
        got=got,
        expected=expected,
    )


def _text(seconds: int) -> str:
    try:
        return to_rfc3339(seconds)
    except (ValueError, OverflowError, OSError):
        return f"{seconds} s"
