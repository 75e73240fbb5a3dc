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

from sealtrain.attest.errors import CertificateChainInvalid, QuoteInvalid
from sealtrain.attest.roots import (
    CHAIN_ERRORS,
    ChainLink,
    VendorRoot,
    is_simulated_certificate,
    load_link,
    read_link,
)
from sealtrain.base.clock import to_rfc3339

AWS_NITRO_ROOT_SHA256 = "641a0321a3e244efe456463195d606317ed7cdcc3c1756e09893f3c68f79bb5b"
"""SHA-256 of AWS's Nitro Enclaves root certificate (DER), CN=aws.nitro-enclaves, 2019 to 2049. The
digest that AWS prints beside its download is that of the ZIP file."""

_REMEMBERED = 256
_OF = "Nitro document"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedCertificates:
    """The leaf's key, whether a simulator stands behind it, and when every certificate is valid."""

    key: ec.EllipticCurvePublicKey
    simulated: bool
    valid_from: int
    valid_until: int


def verify_chain(
    cabundle: tuple[bytes, ...], leaf: bytes, *, simulator_root: bytes | None, now: int
) -> VerifiedCertificates:
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
        links[-1].check_authority(below=len(cabundle) - len(links))
        links.append(_read_issued(issuer, der))
    links[-1].check_end_entity()
    for link in links:
        if not link.start <= now <= link.end:
            raise CertificateChainInvalid(
                f"certificate {link.name!r} is not valid at the verification time",
                check="certificate time",
                got=_text(now),
                expected=f"from {_text(link.start)} to {_text(link.end)}",
                hint="ask for a new document; verify an archived one at its recorded time",
            )
    return VerifiedCertificates(
        key=_p384(links[-1]),
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


@lru_cache(maxsize=8)
def _root(der: bytes) -> ChainLink:
    return _read(load_link(der, _OF))


@lru_cache(maxsize=_REMEMBERED)
def _read_issued(issuer: bytes, der: bytes) -> ChainLink:
    """Read a certificate whose signature by ``issuer`` holds; nothing of it is read before."""
    certificate = load_link(der, _OF)
    try:
        certificate.verify_directly_issued_by(load_link(issuer, _OF))
    except (InvalidSignature, *CHAIN_ERRORS) as error:
        raise CertificateChainInvalid(
            "a certificate of the document is not signed by the one before it",
            check="certificate chain",
            got=str(error)[:200] or "signature does not verify",
        ) from error
    link = _read(certificate)
    algorithm = certificate.signature_hash_algorithm
    if not isinstance(algorithm, hashes.SHA384):
        raise link.refuse_misplaced(
            f"signed over {algorithm.name if algorithm else None}", "SHA-384"
        )
    return link


def _read(certificate: x509.Certificate) -> ChainLink:
    link = read_link(certificate, _OF)
    _p384(link)
    return link


def _p384(link: ChainLink) -> ec.EllipticCurvePublicKey:
    key = link.key
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP384R1):
        return key
    named = key.curve.name if isinstance(key, ec.EllipticCurvePublicKey) else "no EC key"
    raise link.refuse_misplaced(named, "P-384")


def _text(seconds: int) -> str:
    try:
        return to_rfc3339(seconds)
    except (ValueError, OverflowError, OSError):
        return f"{seconds} s"
