"""Exhibits: recognise a file's form from its bytes alone. Nothing in it is trusted yet.

A reader has a file and asks what it says. Binary forms may also come as hexadecimal or
base64 text; the zeros with which platforms pad quotes are cut. ``raw`` is the file in the form that
is recognised as the same thing again.

The maker of the file chose every byte of it. Recognition therefore uses as few bytes as tell the
forms apart, and never a field that a verifier decides by, such as an algorithm or a version: a
known form with another value in such a field is refused as evidence, like any other forgery.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from sealtrain.attest.bundle import MAX_BUNDLE_BYTES, Bundle
from sealtrain.attest.cloudtpm.confidential_containers import azure_exhibit
from sealtrain.attest.dstack.exhibit import DstackQuote
from sealtrain.attest.dstack.parse import log_entries, parse_event_log, parse_statement
from sealtrain.attest.dstack.ratls import carries_evidence, evidence_of_certificate
from sealtrain.attest.dstack_platforms import find_hosted_exhibit
from sealtrain.attest.errors import (
    CertificateChainInvalid,
    EvidenceMalformed,
    RemoteVerdictRefused,
    RevocationUnknown,
)
from sealtrain.attest.evidence import MAX_EVIDENCE_VALUES, Collateral, Evidence
from sealtrain.attest.foreign import foreign_form, foreign_json
from sealtrain.attest.forms import (
    BootLog,
    Bundled,
    Certificates,
    Claims,
    CollateralExhibit,
    DeploymentExhibit,
    EventLog,
    Exhibit,
    GpuPublished,
    GpuReportFile,
    Gpus,
    OwnEvidence,
    QuotedGpus,
    ReferenceValues,
    RemoteVerdictFile,
    RevocationList,
)
from sealtrain.attest.gcp.collect import show_tpm
from sealtrain.attest.gcp.exhibit import GcpStatement
from sealtrain.attest.nitro.parse import NITRO_TPM, parse_document
from sealtrain.attest.nitrotpm.exhibit import NitroTpmStatement
from sealtrain.attest.nvidia.collateral import GpuCollateral
from sealtrain.attest.nvidia.parse import GpuEvidence, from_nvat, of_service_request
from sealtrain.attest.nvidia.spdm import canonical_report
from sealtrain.attest.nvidia.spdm import parse_report as parse_gpu_report
from sealtrain.attest.registry import TEES
from sealtrain.attest.roots import X509_ERRORS, quiet
from sealtrain.attest.snp.collect import is_table, parse_table
from sealtrain.attest.snp.revocation import crl_der
from sealtrain.attest.tdx.exhibit import Quote
from sealtrain.attest.tdx.parse import canonical_quote, parse_quote
from sealtrain.attest.verifier import verifier_of
from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.errors import DataInvalid, FormatUnknown

MAX_FILE_BYTES = MAX_BUNDLE_BYTES
_MAX_CERTIFICATES = 16
_MAX_TEXT_BYTES = 1 << 20
_HEX = re.compile(rb"\s*+(?:0x)?((?:[0-9A-Fa-f]{2}\s*+)++)\Z")
_BASE64 = re.compile(rb"(?:(?:[A-Za-z0-9+/]\s*+)++|(?:[A-Za-z0-9_-]\s*+)++)={0,2}\s*+\Z")
_FROM_URL = bytes.maketrans(b"-_", b"+/")
_MAX_PEM_BYTES = 1 << 20
_SECRETS = {"k256_key", "disk_crypt_key", "env_crypt_key", "private_key"}
_OF_MACHINES = (b"\0\2", b"\0\3")
"""How dstack's attestations of enclaves and of SEV-SNP begin in version 0."""
_BOOT_LOG = b"Spec ID Event03\0"


def recognise(data: bytes) -> Exhibit:
    """Recognise a file.

    Args:
        data: The whole file, at most ``MAX_FILE_BYTES``.

    Raises:
        FormatUnknown: None of the forms of ``attest.forms``.
        DataInvalid: Secret keys.
        EvidenceRefused: One of the forms, but malformed or too long; a leaf of that branch.
    """
    if len(data) > MAX_FILE_BYTES:
        raise EvidenceMalformed(
            "file is too large",
            check="evidence form",
            got=f"{len(data)} bytes",
            expected=f"at most {MAX_FILE_BYTES}",
        )
    start = data[:64].lstrip()[:1]
    if start in (b"{", b"["):
        return _json(data)
    if start == b"<" and b"SoftwareIdentity" in data[:4096]:
        return _rim(data)
    if b"-----BEGIN " in data[:4096] and data.isascii():
        return _pem(data)
    if (other := foreign_form(data)) is not None:
        raise other.refusal()
    found = _binary(data)
    if found is None:
        inner = _from_text(data)
        if inner is not None and (other := foreign_form(inner)) is not None:
            raise other.refusal()
        found = None if inner is None else _binary(inner)
    if found is None:
        raise _unknown()
    return found


def _binary(data: bytes) -> Exhibit | None:
    """Binary forms, by how they begin; the first bytes of no two are alike."""
    for tee in TEES:
        found = verifier_of(tee.name).recognise(data)
        if found is not None:
            return found
    if data[:2] == b"\x11\xe0":
        raw = canonical_report(data)
        return GpuReportFile(raw=raw, report=parse_gpu_report(raw))
    if data[32:48] == _BOOT_LOG:
        return BootLog(raw=data)
    if is_table(data):
        table = parse_table(data)
        names = [name for name in ("vcek", "vlek", "ask", "ark") if name in table]
        return Certificates(raw=data, certificates=tuple(table[name] for name in names))
    if data[:2] in (b"\x30\x81", b"\x30\x82"):
        return _certificate(data) or _revocations(data)
    if data[:1] == b"\0" or 0x81 <= (data[0] if data else 0) <= 0x8F:
        return _attestation(data)
    return None


def _json(data: bytes) -> Exhibit:
    try:
        value = parse_json(
            data, max_bytes=MAX_FILE_BYTES, max_depth=32, max_values=MAX_EVIDENCE_VALUES
        )
    except DataInvalid as error:
        raise EvidenceMalformed(
            f"file cannot be parsed: {error.message}",
            check="evidence form",
            got=error.got,
            expected=error.expected,
        ) from error
    if isinstance(value, list):
        return _list(data, value)
    if (other := foreign_json(value)) is not None:
        raise other.refusal()
    names = set(value)
    if {"version", "platform", "cpu"} <= names:
        return OwnEvidence(raw=data, evidence=Evidence.from_bytes(data))
    if {"kind", "evidence", "verified_at"} <= names:
        return Bundled(raw=data, bundle=Bundle.from_bytes(data))
    if (azure := azure_exhibit(data, value)) is not None:
        return azure
    if {"quote", "event_log"} <= names:
        return _dstack_answer(data, value)
    if "attestation" in names:
        return _read_attested(_hex_field(value["attestation"]))
    if {"intel_quote", "nvidia_payload"} <= names:
        return _read_quoted_gpus(data, value)
    if "evidence_list" in names:
        return Gpus(raw=data, devices=of_service_request(value), claims=None)
    if {"tcb_info", "pck_crl"} <= names:
        return CollateralExhibit(raw=data, collateral=Collateral.from_dict(value))
    if {"rims", "ocsp"} <= names:
        return GpuPublished(raw=data, collateral=GpuCollateral.from_dict(value))
    if {"devices", "claims"} <= names:
        shown = GpuEvidence.from_dict(value)
        return Gpus(raw=data, devices=shown.devices, claims=shown.claims)
    if "detached_eat" in names:
        return _verdict(data, value["detached_eat"])
    if names & _SECRETS:
        raise DataInvalid(
            "this file holds secret keys and is not evidence; its content is not shown",
            check="secret key",
            hint="keep it where only its guest reads it",
        )
    if "manifest_version" in names and names & {"docker_compose_file", "runner"}:
        return DeploymentExhibit(raw=data)
    if value and all(
        isinstance(answer, dict) and "eat_nonce" in answer for answer in value.values()
    ):
        return Claims(raw=data, claims=value)
    raise _unknown()


def _list(data: bytes, value: list[Any]) -> Exhibit:
    first = value[0] if value else None
    if isinstance(first, list):
        return _verdict(data, value)
    if isinstance(first, dict) and {"evidence", "certificate"} <= set(first):
        return Gpus(raw=data, devices=from_nvat(data), claims=None)
    if isinstance(first, dict) and "imr" in first:
        return EventLog(raw=data, log=log_entries(value))
    raise _unknown()


def _dstack_answer(data: bytes, value: dict[str, Any]) -> Exhibit:
    raw = canonical_quote(_hex_field(value["quote"]))
    log, config = value["event_log"], value.get("vm_config")
    return DstackQuote(
        raw=data,
        quote=parse_quote(raw),
        log=parse_event_log(log) if isinstance(log, str) else log_entries(log),
        vm_config=config if isinstance(config, str) else None,
    )


def _read_quoted_gpus(data: bytes, value: dict[str, Any]) -> Exhibit:
    """What inference servers answer with: one quote, and what NVIDIA's service is asked."""
    written, payload = value["intel_quote"], value["nvidia_payload"]
    raw = _from_text(written.encode("utf-8")) if isinstance(written, str) else None
    if raw is None:
        raise EvidenceMalformed("the quote is no hex or base64 text", check="evidence form")
    if isinstance(payload, str):
        payload = _parse_embedded(payload)
    raw = canonical_quote(raw)
    quote = parse_quote(raw)
    return QuotedGpus(
        raw=data,
        quote=Quote(raw=raw, quote=quote),
        report_data=quote.report_data,
        devices=of_service_request(payload),
    )


def _parse_embedded(text: str) -> Any:
    try:
        return parse_json(
            text.encode("utf-8"),
            max_bytes=MAX_FILE_BYTES,
            max_depth=8,
            max_values=MAX_EVIDENCE_VALUES,
        )
    except (DataInvalid, UnicodeEncodeError) as error:
        raise EvidenceMalformed("nvidia_payload is not JSON", check="evidence form") from error


def _attestation(data: bytes) -> Exhibit | None:
    """Dstack's attestation blob; ``None`` where it is something else."""
    try:
        return _read_attested(data)
    except EvidenceMalformed:
        if data[:2] in _OF_MACHINES:
            raise
        return None  # whatever begins with such a byte


def _read_attested(data: bytes) -> Exhibit:
    found = parse_statement(data)
    if (hosted := find_hosted_exhibit(data, found)) is not None:
        return hosted
    if found.kind == "aws-nitro-tpm":
        document = parse_document(found.statement, NITRO_TPM)
        return NitroTpmStatement(raw=data, document=document, log=found.log, vm_config=found.config)
    parsed = parse_quote(canonical_quote(found.statement))
    if found.tpm_quote is not None:
        shown = show_tpm(found.tpm_quote, ())
        return GcpStatement(
            raw=data, quote=parsed, log=found.log, vm_config=found.config, tpm=shown
        )
    return DstackQuote(raw=data, quote=parsed, log=found.log, vm_config=found.config)


def _verdict(data: bytes, value: Any) -> Exhibit:
    match value:
        case [["JWT", str()], dict(devices)] if devices:
            return RemoteVerdictFile(raw=data, token=canonical_json(value).decode("utf-8"))
    raise RemoteVerdictRefused(
        "NVIDIA's verdict: answer is not one overall token with one token for each device",
        check="remote verdict",
    )


def _rim(data: bytes) -> Exhibit:
    from sealtrain.attest.nvidia.swid import parse_rim  # loads an XML library

    return ReferenceValues(raw=data, rim=parse_rim(data))


def _pem(data: bytes) -> Exhibit:
    if b"PRIVATE KEY-----" in data:
        raise DataInvalid(
            "this file holds a private key; its content is not shown", check="secret key"
        )
    if b"-----BEGIN X509 CRL-----" in data:
        return RevocationList(raw=data, crl=crl_der(data))
    count = data.count(b"-----BEGIN ")
    if count > _MAX_CERTIFICATES or len(data) > _MAX_PEM_BYTES:
        raise _no_chain("too many certificates", count, f"at most {_MAX_CERTIFICATES}")
    try:
        with quiet():
            found = x509.load_pem_x509_certificates(data)
    except X509_ERRORS as error:
        raise _no_chain("not PEM certificates that can be read") from error
    return Certificates(
        raw=data,
        certificates=tuple(certificate.public_bytes(Encoding.DER) for certificate in found),
    )


def _no_chain(message: str, got: object = None, expected: object = None) -> CertificateChainInvalid:
    return CertificateChainInvalid(message, check="certificates", got=got, expected=expected)


def _certificate(data: bytes) -> Exhibit | None:
    """One certificate; that of an RA-TLS endpoint carries a quote."""
    try:
        with quiet():
            x509.load_der_x509_certificate(data)
            carrying = carries_evidence(data)
    except X509_ERRORS:
        return None
    if not carrying:
        return Certificates(raw=data, certificates=(data,))
    with quiet():
        shown = evidence_of_certificate(data)
    return DstackQuote(
        raw=data, quote=parse_quote(shown.quote), log=shown.event_log, vm_config=shown.vm_config
    )


def _revocations(data: bytes) -> Exhibit | None:
    try:
        return RevocationList(raw=data, crl=crl_der(data))
    except RevocationUnknown:
        return None


def _from_text(data: bytes) -> bytes | None:
    """Bytes written as hexadecimal, base64, or base64url with or without its padding."""
    if len(data) > _MAX_TEXT_BYTES:
        return None
    found = _HEX.match(data)
    if found is not None:
        return bytes.fromhex(found[1].decode("ascii"))
    if _BASE64.match(data) is None:
        return None
    text = b"".join(data.split())
    if not text.endswith(b"="):
        text += b"=" * (-len(text) % 4)
    try:
        return b64decode(text.translate(_FROM_URL), validate=True)
    except (binascii.Error, ValueError):
        return None


def _hex_field(value: Any) -> bytes:
    try:
        return bytes.fromhex(value)
    except (TypeError, ValueError) as error:
        raise EvidenceMalformed("evidence holds malformed hex", check="evidence form") from error


def _unknown() -> FormatUnknown:
    return FormatUnknown(
        "not a form of evidence that this release knows",
        hint="TDX quote, dstack answer, Nitro document, SEV-SNP report, NVIDIA evidence, or what "
        "belongs to them",
    )
