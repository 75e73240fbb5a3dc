"""From what dstack's agent shows on Google Cloud to evidence: the vTPM's quote and its issuers.

The agent shows the attestation key's certificate alone. Its issuers are fetched where the
certificates say (RFC 5280 §4.2.2.1): over plain HTTP, from Google's store of authorities and from
nowhere else. What comes back proves nothing; the chain is verified where evidence is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import AuthorityInformationAccessOID

from sealtrain.attest.dstack.parse import AgentStatement, octets_of
from sealtrain.attest.errors import CollateralUnreachable, EvidenceMalformed
from sealtrain.attest.roots import X509_ERRORS, load_certificate
from sealtrain.attest.tdx.parse import canonical_quote
from sealtrain.attest.tee import Shown
from sealtrain.attest.tpm.chain import MAX_AK_CERTIFICATE_BYTES, MAX_AK_CERTIFICATES
from sealtrain.attest.tpm.form import TpmShown
from sealtrain.base.encoding import to_base64
from sealtrain.base.http import Bounds, HttpClient, Problem
from sealtrain.base.models import load_model

_STORE: Final = re.compile(
    r"http://privateca-content-[0-9a-f-]{36}\.storage\.googleapis\.com/[0-9a-f]{1,64}/ca\.crt"
)
_BOUNDS: Final = Bounds(connect=10, read=10, total=20, tries=2, pause=0.2)
_PEM_FACTOR: Final = 2
Fetch = Callable[[str], bytes]


def collect_gcp(found: AgentStatement, fetch: Fetch | None = None) -> Shown:
    """Evidence in this TEE's form.

    Args:
        found: What the agent showed.
        fetch: Reads a URL; ``None`` for HTTP.

    Raises:
        CollateralUnreachable: The issuers cannot be had.
        EvidenceMalformed: The vTPM's part is of another form.
    """
    return {
        "tee": "dstack-gcp-tdx",
        "quote": to_base64(canonical_quote(found.statement)),
        "event_log": [entry.to_dict() for entry in found.log],
        "vm_config": found.config or None,
        "tpm": gcp_tpm(found, fetch).to_dict(),
    }


def gcp_tpm(found: AgentStatement, fetch: Fetch | None = None) -> TpmShown:
    """The vTPM's part of an agent's statement, with the issuers of its key; as ``collect_gcp``."""
    parts = {} if found.tpm_quote is None else found.tpm_quote
    leaf = octets_of(parts.get("ak_cert"))
    return show_tpm(parts, google_issuers(leaf) if fetch is None else fetch_issuers(leaf, fetch))


def show_tpm(parts: dict[str, Any], issuers: tuple[bytes, ...]) -> TpmShown:
    """The vTPM's quote in the form of evidence.

    Args:
        parts: As dstack writes it.
        issuers: Certificates above the attestation key's own, DER, the root last.

    Raises:
        EvidenceMalformed: Another form.
    """
    registers, events = parts.get("pcr_values"), parts.get("event_log")
    if parts.get("platform") != "gcp" or not all(
        isinstance(part, list) and all(isinstance(item, dict) for item in part)
        for part in (registers, events)
    ):
        raise EvidenceMalformed("TPM quote is not of Google's platform", check="TPM quote")
    certificates = (octets_of(parts.get("ak_cert")), *issuers)
    document = {
        "message": to_base64(octets_of(parts.get("message"))),
        "signature": to_base64(octets_of(parts.get("signature"))),
        "registers": [
            {"index": register.get("index"), "value": octets_of(register.get("value")).hex()}
            for register in registers or ()
        ],
        "certificates": [to_base64(der) for der in certificates],
        "events": [
            {"index": event.get("pcr_index"), "digest": octets_of(event.get("digest")).hex()}
            for event in events or ()
        ],
    }
    return load_model(TpmShown, document, EvidenceMalformed, "TPM quote")


def with_issuers(shown: TpmShown, issuers: tuple[bytes, ...]) -> TpmShown:
    """The same with issuers from elsewhere, where it shows the key's own certificate alone."""
    if len(shown.certificates) != 1:
        return shown
    found = tuple(map(to_base64, issuers[: MAX_AK_CERTIFICATES - 1]))
    return shown.model_copy(update={"certificates": (*shown.certificates, *found)})


def fetch_issuers(leaf: bytes, fetch: Fetch) -> tuple[bytes, ...]:
    """Issuers of a certificate, each where the one below it says, until one issued itself.

    Raises:
        CollateralUnreachable: A certificate names no issuer in Google's store, or it cannot be
            read.
    """
    found: list[bytes] = []
    current = leaf
    while len(found) < MAX_AK_CERTIFICATES - 1:
        certificate = _load(current)
        if certificate.subject == certificate.issuer:
            return tuple(found)
        answer = fetch(_issuer_url(certificate))
        current = _der(answer)
        found.append(current)
    return tuple(found)


@lru_cache(maxsize=4)
def google_issuers(leaf: bytes) -> tuple[bytes, ...]:
    """As ``fetch_issuers``, over HTTP and once in a process: later the border may close it."""
    return fetch_issuers(leaf, _get)


def _issuer_url(certificate: x509.Certificate) -> str:
    try:
        access = certificate.extensions.get_extension_for_class(x509.AuthorityInformationAccess)
        urls = [
            place.access_location.value
            for place in access.value
            if place.access_method == AuthorityInformationAccessOID.CA_ISSUERS
        ]
    except (*X509_ERRORS, x509.ExtensionNotFound, x509.DuplicateExtension) as error:
        raise _unreachable("a certificate names no issuer") from error
    for url in urls:
        if isinstance(url, str) and _STORE.fullmatch(url):
            return url
    raise _unreachable("a certificate names an issuer outside Google's store of authorities")


def _load(der: bytes) -> x509.Certificate:
    try:
        certificate = load_certificate(der)
        _ = certificate.subject, certificate.issuer
    except X509_ERRORS as error:
        raise _unreachable("a certificate cannot be read") from error
    return certificate


def _der(answer: bytes) -> bytes:
    if not answer.startswith(b"-----BEGIN"):
        return answer
    try:
        return x509.load_pem_x509_certificate(answer).public_bytes(Encoding.DER)
    except X509_ERRORS as error:
        raise _unreachable("a certificate cannot be read") from error


def _get(url: str) -> bytes:
    with HttpClient(_BOUNDS, failed=_silent, tls=False) as client:
        answer = client.ask("GET", url, cap=_PEM_FACTOR * MAX_AK_CERTIFICATE_BYTES)
    if answer.status != 200:
        raise _unreachable(f"Google's store of authorities answered {answer.status}")
    return answer.body


def _silent(problem: Problem) -> Exception:
    return _unreachable(f"Google's store of authorities does not answer: {problem.reason}")


def _unreachable(why: str) -> CollateralUnreachable:
    return CollateralUnreachable(
        f"issuers of the vTPM's attestation key cannot be had: {why}",
        check="AK certificate",
        hint="let the guest reach storage.googleapis.com over HTTP",
    )
