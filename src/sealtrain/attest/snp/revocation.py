"""Revocation of AMD's authorities, where a policy asks for it."""

from __future__ import annotations

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from sealtrain.attest.errors import CertificateRevoked, RevocationUnknown
from sealtrain.attest.roots import quiet
from sealtrain.attest.snp.chain import UNREADABLE, load_certificate
from sealtrain.attest.statement import MAX_CRL_BYTES

__all__ = ["MAX_CRL_BYTES", "check_revocation", "crl_der"]


def crl_der(data: bytes) -> bytes:
    """A revocation list as DER, whether it was stored so or as PEM.

    Raises:
        RevocationUnknown: Too long, or no revocation list.
    """
    try:
        if len(data) > MAX_CRL_BYTES * 2:  # PEM is a third longer
            raise ValueError("too long")
        load = x509.load_pem_x509_crl if data.startswith(b"-----BEGIN") else x509.load_der_x509_crl
        return load(data).public_bytes(Encoding.DER)
    except UNREADABLE as error:
        raise RevocationUnknown("revocation list cannot be parsed", check="revocation") from error


def check_revocation(certificates: tuple[bytes, ...], crl: bytes | None, *, now: int) -> int:
    """Look the issuer of a verified chain up in the root's revocation list.

    AMD lists authorities there; a VCEK has no serial number of its own and ends with its TCB.

    Args:
        certificates: DER of a verified chain, its root last.
        crl: The list, DER.
        now: Verification time, seconds since 1970.

    Returns:
        When the list was made, seconds since 1970.

    Raises:
        RevocationUnknown: No list, or one that is not authentic or not current.
        CertificateRevoked: The list holds a certificate of the chain.
    """
    if crl is None or len(crl) > MAX_CRL_BYTES:
        raise RevocationUnknown(
            "there is no revocation list" if crl is None else "revocation list is too large",
            check="revocation",
            hint="fetch https://kdsintf.amd.com/vcek/v1/PRODUCT/crl once (vlek for a VLEK) and "
            "name it with --crl, or give it to the guest",
        )
    chain = tuple(load_certificate(der) for der in certificates)
    root = chain[-1]
    try:
        found = x509.load_der_x509_crl(crl)
        authentic = found.issuer == root.subject and found.is_signature_valid(
            root.public_key()  # type: ignore[arg-type]  # the root verified: RSA or elliptic
        )
        delta = any(extension.critical for extension in found.extensions)
        start, end = found.last_update_utc, found.next_update_utc
        with quiet():
            revoked = {entry.serial_number for entry in found}
    except UNREADABLE as error:
        raise RevocationUnknown("revocation list cannot be parsed", check="revocation") from error
    if not authentic or delta or end is None:
        raise RevocationUnknown(
            "revocation list is not one of the chain's root", check="revocation"
        )
    made, until = int(start.timestamp()), int(end.timestamp())
    if not made <= now <= until:
        raise RevocationUnknown(
            "revocation list is not valid at the verification time",
            check="revocation",
            got=now,
            expected=f"{made} to {until}",
        )
    # Serial number 0 is every VCEK's: it can name none of them.
    with quiet():
        serials = {certificate.serial_number for certificate in chain} - {0}
    if revoked & serials:
        raise CertificateRevoked("a certificate of the chain was revoked", check="revocation")
    return made
