"""Evidence inside RA-TLS certificates, as dstack guests and key services show them.

Such a certificate carries a quote over ``SHA-512("ratls-cert:" || SPKI)``: some guest once held
that key. It does not prove who is at the other end of a connection now (evidence in certificates
can be diverted and relayed, CVE-2026-33697), it is not fresh, and the issuer of the certificate
says nothing about the guest. It therefore only carries evidence to where it is verified.
"""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass
from typing import Any

from cryptography import x509
from cryptography.hazmat import asn1
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from sealtrain.attest.dstack.msgpack import unpack
from sealtrain.attest.dstack.parse import parse_attestation, parse_event_log
from sealtrain.attest.errors import EvidenceMalformed, ReportDataMismatch
from sealtrain.attest.roots import X509_ERRORS
from sealtrain.attest.statement import LogEntry
from sealtrain.attest.tdx.parse import canonical_quote, parse_quote

MAX_CERTIFICATE_BYTES = 256 << 10
_MAX_LOG_BYTES = 16 << 10  # as dstack bounds it
_MAX_ATTESTATION_BYTES = 1 << 20
_GZIP = b"ELGZv1"
_ARC = "1.3.6.1.4.1.62397.1"
_QUOTE, _LOG, _APP_ID, _USAGE = (f"{_ARC}.{number}" for number in (1, 2, 3, 4))
_ATTESTATION, _APP_INFO = f"{_ARC}.8", f"{_ARC}.9"


@dataclass(frozen=True, slots=True, kw_only=True)
class RaTlsEvidence:
    """Parts of a certificate. The quote names its key; nothing else here is verified."""

    public_key: bytes
    """SubjectPublicKeyInfo, DER."""
    report_data: bytes
    """What the quote must commit to, and does."""
    quote: bytes
    event_log: tuple[LogEntry, ...]
    vm_config: str | None
    app_id: str | None
    """As the certificate says; the event log is what counts. Hex."""
    app_info: dict[str, Any] | None
    usage: str | None
    """What its issuer made it for: ``kms:rpc``, ``app:ca``, ``app:custom``."""


def ratls_report_data(public_key: bytes) -> bytes:
    """Report data of a certificate's quote; ``public_key`` is a SubjectPublicKeyInfo in DER."""
    return hashlib.sha512(b"ratls-cert:" + public_key).digest()


def carries_evidence(der: bytes) -> bool:
    """Whether a certificate has an extension of this arc, readable or not.

    Raises:
        ValueError: Not a certificate that the library reads (``attest.roots.X509_ERRORS``).
    """
    try:
        names = [
            extension.oid.dotted_string
            for extension in x509.load_der_x509_certificate(der).extensions
        ]
    except (x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        return True  # malformed either way, and refused as evidence
    return any(name.startswith(f"{_ARC}.") for name in names)


def evidence_of_certificate(der: bytes) -> RaTlsEvidence:
    """Read the evidence that a certificate carries.

    Args:
        der: The certificate.

    Raises:
        EvidenceMalformed: Not one certificate in DER, no evidence in it, evidence twice and
            different, or a part over its limit.
        QuoteInvalid: The quote cannot be parsed.
        PlatformMismatch: The quote is not of a TDX guest.
        ReportDataMismatch: The quote was made for another key.
    """
    public_key, extensions = _parse(der)
    quote, log, config = _evidence(extensions)
    raw = canonical_quote(quote)
    expected = ratls_report_data(public_key)
    found = parse_quote(raw).report_data
    if found != expected:
        raise ReportDataMismatch(
            "the quote inside the certificate was made for another key",
            check="report data",
            got=found.hex(),
            expected=expected.hex(),
        )
    app_id, info, usage = (extensions.get(name) for name in (_APP_ID, _APP_INFO, _USAGE))
    return RaTlsEvidence(
        public_key=public_key,
        report_data=expected,
        quote=raw,
        event_log=log,
        vm_config=config,
        app_id=None if app_id is None else app_id.hex(),
        app_info=None if info is None else _app_info(info),
        usage=None if usage is None else _usage(usage),
    )


def _parse(der: bytes) -> tuple[bytes, dict[str, bytes]]:
    """Public key and this arc's extensions, each out of its OCTET STRING."""
    if len(der) > MAX_CERTIFICATE_BYTES:
        raise EvidenceMalformed("certificate is too long", check="RA-TLS", got=len(der))
    found: dict[str, bytes] = {}
    try:
        certificate = x509.load_der_x509_certificate(der)
        public_key = certificate.public_key().public_bytes(
            Encoding.DER, PublicFormat.SubjectPublicKeyInfo
        )
        for extension in certificate.extensions:  # refuses an extension that occurs twice
            name = extension.oid.dotted_string
            if name.startswith(_ARC + "."):
                value = extension.value
                content = value.value if isinstance(value, x509.UnrecognizedExtension) else b""
                found[name] = asn1.decode_der(bytes, content)
    except (x509.DuplicateExtension, *X509_ERRORS) as error:
        raise EvidenceMalformed("certificate cannot be parsed", check="RA-TLS") from error
    return public_key, found


def _evidence(
    extensions: dict[str, bytes],
) -> tuple[bytes, tuple[LogEntry, ...], str | None]:
    blob, quote = extensions.get(_ATTESTATION), extensions.get(_QUOTE)
    if blob is not None:
        blob = _inflate(blob, _MAX_ATTESTATION_BYTES)
        inner, log, config, _ = parse_attestation(blob)
        if quote not in (None, inner):
            raise EvidenceMalformed("certificate carries two different quotes", check="RA-TLS")
        return inner, log, config
    if quote is None or _LOG not in extensions:
        raise EvidenceMalformed(
            "certificate carries no evidence",
            check="RA-TLS",
            expected=f"extension {_ATTESTATION}, or {_QUOTE} and {_LOG}",
            hint="ask the guest for a certificate with usage_ra_tls",
        )
    text = _inflate(extensions[_LOG], _MAX_LOG_BYTES)
    try:
        return quote, parse_event_log(text.decode("utf-8")), None
    except UnicodeDecodeError as error:
        raise EvidenceMalformed("event log is not JSON", check="event log") from error


def _inflate(data: bytes, limit: int) -> bytes:
    """The value itself, or what it unpacks to: one whole gzip stream of bounded length."""
    if data.startswith(_GZIP):
        stream = zlib.decompressobj(wbits=31)
        try:
            data = stream.decompress(data[len(_GZIP) :], limit + 1)
        except zlib.error as error:
            raise EvidenceMalformed("certificate's evidence is not gzip", check="RA-TLS") from error
        if len(data) <= limit and (not stream.eof or stream.unused_data):
            raise EvidenceMalformed(
                "certificate's evidence is truncated or prolonged", check="RA-TLS"
            )
    if len(data) > limit:
        raise EvidenceMalformed(
            "certificate's evidence is too long", check="RA-TLS", expected=f"at most {limit} bytes"
        )
    return data


def _app_info(data: bytes) -> dict[str, Any]:
    value = unpack(data)
    if not isinstance(value, dict):
        raise EvidenceMalformed("certificate's app info is not a map", check="RA-TLS")
    return value


def _usage(data: bytes) -> str:
    try:
        return data.decode("ascii")
    except UnicodeDecodeError as error:
        raise EvidenceMalformed("certificate's usage is not text", check="RA-TLS") from error
