"""Revocation of AMD's authorities, where a policy asks for it."""

from __future__ import annotations

from cryptography import x509

from sealtrain.attest.snp.chain import UNREADABLE, load_certificate, quiet
from sealtrain.errors import CertificateRevoked, RevocationUnknown

__all__ = ["check_revocation"]

_MAX_CRL_BYTES = 64 << 10


def check_revocation(certificates: tuple[bytes, ...], crl: bytes | None, *, now: int) -> int:
    """Look the issuer of a verified chain up in the root's revocation list.

    AMD lists authorities there; a VCEK has no serial number of its own and ends with its TCB.

    Returns:
        When the list was made, seconds since 1970.

    Raises:
        RevocationUnknown: No list, or one that is not authentic or not current.
        CertificateRevoked: The list holds a certificate of the chain.
    """
    if crl is None or len(crl) > _MAX_CRL_BYTES:
        raise RevocationUnknown(
            "no revocation list came along" if crl is None else "revocation list is too large",
            check="revocation",
            hint="fetch it from AMD's key distribution service and hand it to the guest",
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
            revoked = {one.serial_number for one in found}
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
        serials = {one.serial_number for one in chain} - {0}
    if revoked & serials:
        raise CertificateRevoked("a certificate of the chain was revoked", check="revocation")
    return made
