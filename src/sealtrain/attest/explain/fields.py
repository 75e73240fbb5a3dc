"""Every field of an exhibit, with its value and its meaning in one sentence."""

from __future__ import annotations

from collections import Counter
from typing import Any

from cryptography import x509

from sealtrain.attest import forms
from sealtrain.attest.bundle import Attachments
from sealtrain.attest.certificates import certificate_fields
from sealtrain.attest.dstack.exhibit import log_fields
from sealtrain.attest.errors import EvidenceMalformed
from sealtrain.attest.evidence import Collateral, Evidence
from sealtrain.attest.explain.fields_gpu import (
    claims_fields,
    device_fields,
    gpu_collateral_fields,
    report_fields,
    rim_fields,
    token_fields,
)
from sealtrain.attest.field import Field, shorten, time_of
from sealtrain.attest.roots import X509_ERRORS, quiet
from sealtrain.attest.tdx.bootlog import parse_ccel, replay_events
from sealtrain.attest.verifier import verifier_of
from sealtrain.base.canonical import parse_json
from sealtrain.base.digests import sha256_hex
from sealtrain.errors import DataInvalid, FormatUnknown


def fields_of(exhibit: forms.Exhibit, beside: Attachments) -> list[Field]:
    """What a file says.

    Raises:
        EvidenceRefused: A part of sealtrain's own evidence does not parse; a leaf of that branch.
        FormatUnknown: A boot log cannot be read.
    """
    match exhibit:
        case forms.OwnEvidence(evidence=evidence):
            return _own(evidence)
        case forms.StatementExhibit():
            return exhibit.fields(beside)
        case forms.SgxQuote(raw=raw):
            return _sgx(raw)
        case forms.Gpus(devices=devices, claims=claims):
            return device_fields(devices, claims)
        case forms.QuotedGpus(quote=quote, devices=devices):
            return [*quote.fields(beside), *device_fields(devices, None)]
        case forms.GpuReportFile(report=report):
            chain = certificate_fields("gpu0", beside.certificates)
            return [*report_fields(report, "gpu0"), *chain]
        case forms.RemoteVerdictFile(token=token):
            return token_fields(token)
        case forms.Claims(claims=claims):
            return claims_fields(claims)
    return _list_published(exhibit)


def _list_published(exhibit: forms.Exhibit) -> list[Field]:
    """Files that belong to evidence but are not evidence."""
    match exhibit:
        case forms.ReferenceValues(rim=rim):
            return rim_fields(rim)
        case forms.CollateralExhibit(collateral=collateral):
            return _collateral(collateral)
        case forms.GpuPublished(collateral=collateral):
            return gpu_collateral_fields(collateral)
        case forms.Certificates(certificates=certificates):
            return certificate_fields("chain", certificates)
        case forms.RevocationList(crl=crl):
            return _revocations("list", crl)
        case forms.EventLog(log=log):
            return log_fields(log, "event log")
        case forms.BootLog(raw=raw):
            return [
                Field(
                    part="boot log",
                    name=f"RTMR{index}",
                    value=register,
                    meaning=f"What its {count} events lead to; compare with a verified quote.",
                )
                for index, (count, register) in sorted(replay_boot_log(raw).items())
            ]
        case forms.DeploymentExhibit(raw=raw):
            return _deployment(raw)
    return []


def _own(evidence: Evidence) -> list[Field]:
    shown = evidence.cpu
    found = [
        _field("document", "platform", evidence.platform, "What the evidence is offered as."),
        _field("document", "digest", evidence.digest, "SHA-256 of this document."),
    ]
    found += verifier_of(shown.tee).fields(shown)
    found += _deployment(shown.app_compose_bytes)
    if evidence.gpu is not None:
        digest = evidence.gpu_digest.hex()
        found.append(_field("gpus", "digest", digest, "Report data commit to these 32 bytes."))
        found += device_fields(evidence.gpu.devices, evidence.gpu.claims)
    if evidence.collateral is not None:
        found += _collateral(evidence.collateral)
    if evidence.gpu_collateral is not None:
        found += gpu_collateral_fields(evidence.gpu_collateral)
    return found


def _sgx(raw: bytes) -> list[Field]:
    version = str(int.from_bytes(raw[:2], "little"))
    told = "Of an enclave inside a process. sealtrain runs in guests and refuses it."
    return [_field("cpu0", "version", version, told)]


def _deployment(raw: bytes) -> list[Field]:
    digest = sha256_hex(raw)
    return [
        _field("deployment", "compose hash", digest, "SHA-256 of the document, byte for byte."),
        _field("deployment", "app id", digest[:40], "The app, where nothing else names it."),
        _field("deployment", "size", f"{len(raw)} bytes", "How long the document is."),
    ]


def _collateral(collateral: Collateral) -> list[Field]:
    found: list[Field] = []
    for name, text in (("TCB info", collateral.tcb_info), ("QE identity", collateral.qe_identity)):
        try:
            document: Any = parse_json(text.encode("utf-8"), max_depth=16, max_values=1 << 15)
        except DataInvalid:
            document = None
        if not isinstance(document, dict):
            found.append(_field("collateral", name, "cannot be read", "Signed by Intel, if so."))
            continue
        for key, meaning in (
            ("id", "What it is for."),
            ("fmspc", "Family of platforms that it is for."),
            ("issueDate", "When Intel issued it."),
            ("nextUpdate", "Until when it counts."),
            ("tcbEvaluationDataNumber", "Which of Intel's security reviews it reflects."),
        ):
            if key in document:
                found.append(_field("collateral", f"{name} {key}", str(document[key]), meaning))
    for name, crl in (("root", collateral.root_ca_crl), ("PCK", collateral.pck_crl)):
        found += _revocations(f"{name} CRL", bytes.fromhex(crl), part="collateral")
    return found


def _revocations(name: str, crl: bytes, part: str = "revocation") -> list[Field]:
    try:
        listed = x509.load_der_x509_crl(crl)
        start, until = listed.last_update_utc, listed.next_update_utc
        with quiet():
            count = len({revoked.serial_number for revoked in listed})
        end = "no end" if until is None else time_of(int(until.timestamp()))
        issuer = shorten(listed.issuer.rfc4514_string())
    except X509_ERRORS:
        return [_field(part, name, "cannot be read", "List of revoked certificates.")]
    value = f"{count} revoked, from {time_of(int(start.timestamp()))} to {end}"
    return [_field(part, name, value, f"Revoked certificates, as {issuer} lists them.")]


def _field(part: str, name: str, value: str, meaning: str) -> Field:
    return Field(part=part, name=name, value=value, meaning=meaning)


def replay_boot_log(data: bytes) -> dict[int, tuple[int, str]]:
    """Register (0 is RTMR0) → number of events and the SHA-384 they lead to, hex.

    Raises:
        FormatUnknown: It is no such log, as ``parse_ccel`` says.
    """
    try:
        events = parse_ccel(data)
    except EvidenceMalformed as error:
        raise FormatUnknown(
            f"boot log cannot be read: {error.message}", hint="check that the file is complete"
        ) from error
    counted = Counter(event.index for event in events)
    return {index: (count, replay_events(events, index).hex()) for index, count in counted.items()}
