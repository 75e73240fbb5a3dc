"""Ask a machine of Azure or Google for its evidence: the processor's statement, the cloud's TPM.

**Azure.** The paravisor made one report when the machine started and keeps it in the TPM (HCL
report, index ``0x01400001``); the attestation key that it names is loaded for ever
(``0x81000003``). The report never changes, so the TPM's quote answers the conversation. What lacks
to verify the report comes from the machine's metadata service: AMD's certificates, or the quoting
of a TD report.
**Google, SEV-SNP.** The kernel asks the processor for a report over the conversation, and the
TPM quotes the hash of that report.

Nothing that comes back is believed here but its form: evidence is verified where it is judged.
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from sealtrain.attest.errors import (
    CollateralUnreachable,
    EvidenceMalformed,
    GuestApiUnreachable,
    ReportDataMismatch,
)
from sealtrain.attest.gcp.collect import fetch_issuers, google_issuers
from sealtrain.attest.roots import certificates_of_pem
from sealtrain.attest.snp.collect import certificates_in, collect, order_chain, revocations_in
from sealtrain.attest.snp.parse import parse_report
from sealtrain.attest.tdx.parse import canonical_quote, parse_quote
from sealtrain.attest.tee import Shown
from sealtrain.attest.tpm.collect import quote_by, quote_registers
from sealtrain.attest.tpm.device import DEVICES, OWNER, Tpm, open_tpm
from sealtrain.attest.tpm.hcl import MAX_HCL_BYTES, HclReport, parse_hcl
from sealtrain.attest.tsm import Folders
from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.base.http import Bounds, HttpClient, Problem
from sealtrain.errors import DataInvalid

HCL_INDEX: Final = 0x01400001
KEY_HANDLE: Final = 0x81000003
_SERVICE: Final = "http://169.254.169.254"
"""Link-local: a request never leaves the machine's host."""
_CERTIFICATES: Final = "/metadata/THIM/amd/certification"
_QUOTES: Final = "/acc/tdquote"
_MAX_ANSWER_BYTES: Final = 128 << 10
_BOUNDS: Final = Bounds(connect=5, read=20, total=40, tries=3, pause=0.5)
_CHECK: Final = "metadata service"

Ask = Callable[[str, bytes | None], bytes]
"""Path, and what is posted → the answer of the metadata service."""
OpenTpm = Callable[[Path], AbstractContextManager[Tpm]]


def collect_azure(
    kind: str,
    device: Path,
    report_data: bytes,
    options: Mapping[str, str],
    *,
    ask: Ask | None = None,
    tpm: OpenTpm = open_tpm,
) -> Shown:
    """Evidence of a machine on Azure.

    Args:
        kind: ``snp`` or ``tdx``.
        device: The TPM's file.
        report_data: 64 bytes that the TPM's quote commits to.
        options: ``certificates``: a folder with AMD's revocation list.
        ask: The metadata service; ``None`` for the machine's.

    Raises:
        GuestApiUnreachable: The TPM does not answer, or holds no report of a paravisor: the
            machine is no confidential one. Or the report is of the other processor.
        CollateralUnreachable: The metadata service has no certificates or makes no quote.
        EvidenceMalformed: An answer is of another form.
        QuoteInvalid: The key in the report is of another kind, or the quote is none.
        ReportDataMismatch: The quote is of another report.
    """
    with tpm(device) as opened:
        hcl = parse_hcl(opened.read_index(HCL_INDEX, MAX_HCL_BYTES, by=OWNER))
        if hcl.kind != kind:
            raise GuestApiUnreachable(
                "this machine has another processor",
                check="HCL report",
                got=hcl.kind,
                expected=kind,
                hint=f"name the guest azure-{hcl.kind}:{device}",
            )
        asked = hashlib.sha256(report_data).digest()
        quoted = quote_by(opened, KEY_HANDLE, asked, None)
    beside = {
        "tee": f"azure-{kind}",
        "runtime": hcl.runtime.text.decode("ascii"),
        "tpm": quoted,
        "report_data": report_data.hex(),
    }
    if kind == "tdx":
        return {**beside, "quote": to_base64(_td_quote(hcl, ask))}
    folder = Path(options["certificates"]) if options.get("certificates") else None
    crl = revocations_in(folder)
    return {
        **beside,
        "report": to_base64(hcl.report),
        "certificates": [to_base64(der) for der in _azure_chain(hcl, folder, ask)],
        "crl": None if crl is None else to_base64(crl),
    }


def collect_google_snp(
    reports: Path,
    report_data: bytes,
    options: Mapping[str, str],
    *,
    fetch: Callable[[str], bytes] | None = None,
    folders: Folders | None = None,
    tpm: OpenTpm = open_tpm,
) -> Shown:
    """Evidence of a SEV-SNP machine on Google Cloud.

    Args:
        reports: The folder of configfs-tsm, or the older driver's file.
        report_data: 64 bytes that the processor's report commits to.
        options: ``certificates`` as for ``snp``; ``tpm``: the TPM's file.
        fetch: Reads the issuers of the TPM's key; ``None`` for HTTP.
        folders: How to touch the reports.

    Raises:
        GuestApiUnreachable: Processor or TPM do not answer.
        CollateralUnreachable: Certificates of either are missing.
        EvidenceMalformed: An answer is of another form.
    """
    folder = Path(options["certificates"]) if options.get("certificates") else None
    found = collect(reports, report_data, certificates=certificates_in(folder), folders=folders)
    place = Path(options["tpm"]) if options.get("tpm") else DEVICES[0]
    with tpm(place) as opened:
        quoted: dict[str, Any] = dict(
            quote_registers(opened, hashlib.sha256(found.report).digest(), None)
        )
    shown = quoted["certificates"]
    if len(shown) == 1:  # Google keeps the issuers elsewhere
        leaf = from_base64(shown[0])
        issuers = google_issuers(leaf) if fetch is None else fetch_issuers(leaf, fetch)
        quoted["certificates"] = [*shown, *map(to_base64, issuers)]
    crl = revocations_in(folder) or found.crl
    return {
        "tee": "gcp-snp",
        "report": to_base64(found.report),
        "certificates": [to_base64(der) for der in found.certificates],
        "crl": None if crl is None else to_base64(crl),
        "tpm": quoted,
    }


def _azure_chain(hcl: HclReport, folder: Path | None, ask: Ask | None) -> tuple[bytes, ...]:
    at_hand = certificates_in(folder)
    if not at_hand:
        at_hand = _own_certificates() if ask is None else _certificates_of(ask(_CERTIFICATES, None))
    return order_chain(parse_report(hcl.report), {}, at_hand)


def _certificates_of(answer: bytes) -> tuple[bytes, ...]:
    found = read_fields(answer, "vcekCert", "certificateChain")
    try:
        return tuple(der for pem in found for der in certificates_of_pem(pem.encode()))
    except DataInvalid as error:
        raise EvidenceMalformed(
            "the metadata service hands out no certificates", check=_CHECK
        ) from error


def _td_quote(hcl: HclReport, ask: Ask | None) -> bytes:
    """The quote of a TD report, which names the report's data again."""
    if ask is None:
        return _own_quote(hcl.report, hcl.report_data)
    return _quote_of(ask(_QUOTES, _quote_request(hcl.report)), hcl.report_data)


def _quote_of(answer: bytes, signed: bytes) -> bytes:
    (text,) = read_fields(answer, "quote")
    try:
        raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError as error:
        raise EvidenceMalformed("the metadata service makes no quote", check=_CHECK) from error
    quote = canonical_quote(raw)
    found = parse_quote(quote).report_data
    if found != signed:
        raise ReportDataMismatch(
            "the metadata service quoted another report than it was given",
            check="report data",
            got=found.hex(),
            expected=signed.hex(),
        )
    return quote


def _quote_request(report: bytes) -> bytes:
    text = urlsafe_b64encode(report).rstrip(b"=").decode("ascii")
    return canonical_json({"report": text})


def read_fields(answer: bytes, *names: str) -> list[str]:
    """Texts of an answer of the metadata service.

    Args:
        answer: JSON of at most 128 KiB.
        names: Fields, each of which must be a text of ASCII characters.

    Raises:
        EvidenceMalformed: Another form, or a field is missing.
    """
    try:
        value = parse_json(answer, max_bytes=_MAX_ANSWER_BYTES, max_depth=4)
    except DataInvalid as error:
        raise EvidenceMalformed(
            "the metadata service answers with something else", check=_CHECK
        ) from error
    found = [value.get(name) if isinstance(value, dict) else None for name in names]
    if not all(isinstance(text, str) and text.isascii() for text in found):
        raise EvidenceMalformed(
            "the metadata service's answer lacks a field", check=_CHECK, expected=", ".join(names)
        )
    return [str(text) for text in found]


@lru_cache(maxsize=1)
def _own_certificates() -> tuple[bytes, ...]:
    """Asked once in a process: the report never changes. What is refused is not remembered."""
    return _certificates_of(_ask(_CERTIFICATES, None))


@lru_cache(maxsize=1)
def _own_quote(report: bytes, signed: bytes) -> bytes:
    """Likewise the quote of a report."""
    return _quote_of(_ask(_QUOTES, _quote_request(report)), signed)


def _ask(path: str, content: bytes | None) -> bytes:
    headers = {"metadata": "true"} | (
        {} if content is None else {"content-type": "application/json"}
    )
    with HttpClient(_BOUNDS, failed=_silent, tls=False) as client:
        answer = client.ask(
            "GET" if content is None else "POST",
            _SERVICE + path,
            cap=_MAX_ANSWER_BYTES,
            content=content,
            headers=headers,
            idempotent=True,
        )
    if answer.status != 200:
        raise _unreachable(f"HTTP {answer.status} at {path}")
    return answer.body


def _silent(problem: Problem) -> Exception:
    return _unreachable(problem.reason)


def _unreachable(got: str) -> CollateralUnreachable:
    return CollateralUnreachable(
        "the machine's metadata service does not answer",
        check=_CHECK,
        got=got,
        hint="let the guest reach 169.254.169.254 over HTTP, and ask inside a confidential machine",
    )
