"""Google's endorsement of a firmware: which launch measurements its machines show.

Google signs, for each build of its firmware, the MRTD of TDX machines and the MEASUREMENT of
SEV-SNP machines (``VMLaunchEndorsement``, published by measurement at
``storage.googleapis.com/gce_tcb_integrity/ovmf_x64_csm/``). The values are worth as much as the
root that their signature leads to: the certificate stands inside of what it signed, so a file
without a root proves nothing. The author of a policy names the root
(``pki.goog/cloud_integrity/GCE-cc-tcb-root_1.crt``) and reads its digest in the answer.

Protocol buffers are read strictly: fields that are known, each in its form, none twice where it
may stand once, every length within its message; unknown fields are passed over, since the signature
covers them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding

from sealtrain.attest.errors import (
    CertificateChainInvalid,
    EvidenceMalformed,
    QuoteInvalid,
    QuoteRootUntrusted,
)
from sealtrain.attest.roots import X509_ERRORS, certificates_of_pem, load_certificate
from sealtrain.base.digests import sha256_hex
from sealtrain.errors import DataInvalid

MAX_ENDORSEMENT_BYTES: Final = 1 << 20
_CHECK: Final = "launch endorsement"
_MAX_MEASUREMENTS: Final = 4096
_MEASUREMENT_BYTES: Final = 48
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchEndorsement:
    """What Google signed.

    Attributes:
        root: SHA-256 of the root certificate that it was verified under, hex.
        made: When it was signed, seconds since 1970.
        firmware: SHA-384 of the firmware, hex.
        tdx: Memory in GiB (0 where it does not matter), whether all memory was accepted early, and
            MRTD, hex, of each size.
        snp: Number of CPUs and MEASUREMENT, hex.
    """

    root: str
    made: int
    firmware: str
    tdx: tuple[tuple[int, bool, str], ...]
    snp: tuple[tuple[int, str], ...]


def verify_endorsement(raw: bytes, root: bytes, *, now: int) -> LaunchEndorsement:
    """Read an endorsement whose signature leads to a root.

    Args:
        raw: The file, at most 1 MiB.
        root: The root certificate, DER or PEM.
        now: Verification time, seconds since 1970.

    Raises:
        EvidenceMalformed: Another form, or the root is no certificate.
        QuoteRootUntrusted: The signing certificate was not issued by this root.
        CertificateChainInvalid: It, or the root, is not valid at ``now`` or may not sign.
        QuoteInvalid: The signature does not hold.
    """
    if len(raw) > MAX_ENDORSEMENT_BYTES:
        raise _malformed_error(f"it is longer than {MAX_ENDORSEMENT_BYTES} bytes")
    outer = _message(raw, {1: _BYTES, 2: _BYTES})
    signed, signature = _one(outer, 1, b""), _one(outer, 2, b"")
    golden = _message(signed, {1: _BYTES, 4: _BYTES, 5: _BYTES, 7: _BYTES, 8: _BYTES})
    trusted = _root(root)
    key = _signer(_one(golden, 4, b""), trusted, now)
    try:
        scheme = padding.PSS(mgf=padding.MGF1(hashes.SHA256()), salt_length=32)
        key.verify(signature, signed, scheme, hashes.SHA256())
    except InvalidSignature as error:
        raise QuoteInvalid(
            "Google's endorsement is not signed by its certificate", check=_CHECK
        ) from error
    when = _message(_one(golden, 1, b""), {1: _VARINT})
    return LaunchEndorsement(
        root=sha256_hex(trusted.public_bytes(Encoding.DER)),
        made=_one(when, 1, 0),
        firmware=_one(golden, 5, b"").hex(),
        tdx=tuple(_tdx(_one(golden, 8, b""))),
        snp=tuple(_snp(_one(golden, 7, b""))),
    )


def _tdx(raw: bytes) -> Iterator[tuple[int, bool, str]]:
    for each in _message(raw, {2: _BYTES}, several={2}).get(2, ()):
        found = _message(each, {1: _VARINT, 2: _VARINT, 3: _BYTES})
        yield _one(found, 1, 0), bool(_one(found, 2, 0)), _measurement(_one(found, 3, b""))


def _snp(raw: bytes) -> Iterator[tuple[int, str]]:
    seen: set[int] = set()
    for entry in _message(raw, {2: _BYTES}, several={2}).get(2, ()):
        found = _message(entry, {1: _VARINT, 2: _BYTES})
        number = _one(found, 1, 0)
        if number in seen:
            raise _malformed_error("it names a number of CPUs twice")
        seen.add(number)
        yield number, _measurement(_one(found, 2, b""))


def _measurement(value: bytes) -> str:
    if len(value) != _MEASUREMENT_BYTES:
        raise _malformed_error("a measurement has another length")
    return value.hex()


def _root(root: bytes) -> x509.Certificate:
    try:
        (der,) = certificates_of_pem(root) if root.startswith(b"-----BEGIN") else (root,)
        return load_certificate(der)
    except (DataInvalid, *X509_ERRORS) as error:
        raise _malformed_error("the root is no certificate") from error


def _signer(der: bytes, root: x509.Certificate, now: int) -> rsa.RSAPublicKey:
    """The key that signs, which the root issued a certificate for; there is nothing between."""
    try:
        leaf = load_certificate(der)
        leaf.verify_directly_issued_by(root)
    except (InvalidSignature, *X509_ERRORS) as error:
        raise QuoteRootUntrusted(
            "Google's endorsement does not lead to the named root", check=_CHECK
        ) from error
    for certificate in (leaf, root):
        start = int(certificate.not_valid_before_utc.timestamp())
        end = int(certificate.not_valid_after_utc.timestamp())
        if not start <= now <= end:
            raise CertificateChainInvalid(
                "a certificate of Google's endorsement is not valid at this time",
                check=_CHECK,
                got=now,
                expected=f"{start} to {end}",
            )
    key = leaf.public_key()
    if not isinstance(key, rsa.RSAPublicKey) or not _may_sign(leaf):
        raise CertificateChainInvalid(
            "the certificate of Google's endorsement is for something else", check=_CHECK
        )
    return key


def _may_sign(leaf: x509.Certificate) -> bool:
    try:
        usage = leaf.extensions.get_extension_for_class(x509.KeyUsage).value
    except x509.ExtensionNotFound:
        return True
    except X509_ERRORS:
        return False
    return bool(usage.digital_signature)


def _message(
    raw: bytes, known: dict[int, int], *, several: set[int] | None = None
) -> dict[int, list[Any]]:
    """Fields of a message by number: whole numbers and bytes."""
    found: dict[int, list[Any]] = {}
    at = 0
    while at < len(raw):
        key, at = _number(raw, at)
        field, form = key >> 3, key & 7
        value: int | bytes
        if form == _VARINT:
            value, at = _number(raw, at)
        elif form == _BYTES:
            size, at = _number(raw, at)
            value, at = raw[at : at + size], at + size
        elif form in (_FIXED32, _FIXED64):
            size = 4 if form == _FIXED32 else 8
            value, at = raw[at : at + size], at + size
        else:
            raise _malformed_error("a field is of an unknown form")
        if at > len(raw) or not 0 < field < 1 << 29:
            raise _malformed_error("a field ends behind its message")
        if field not in known:
            continue
        values = found.setdefault(field, [])
        most = _MAX_MEASUREMENTS if several and field in several else 1
        if form != known[field] or len(values) == most:
            raise _malformed_error("a field has another form, or is there too often")
        values.append(value)
    return found


def _number(raw: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(raw):
            raise _malformed_error("it is truncated")
        value |= (raw[at] & 0x7F) << shift
        at += 1
        if raw[at - 1] < 0x80:
            if value >= 1 << 64:
                break
            return value, at
    raise _malformed_error("a number is too long")


def _one(fields: dict[int, list[Any]], number: int, otherwise: Any) -> Any:
    return fields[number][0] if number in fields else otherwise


def _malformed_error(problem: str) -> EvidenceMalformed:
    return EvidenceMalformed(f"Google's endorsement is malformed: {problem}", check=_CHECK)
