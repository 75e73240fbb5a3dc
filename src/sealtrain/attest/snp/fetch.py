"""What AMD publishes about one chip: its certificate, the issuers, the revocation list.

All of it is verified before it is handed on: the chain against the report that it is for, the list
against the chain. AMD's service asks for patience: an address answers once in ten seconds or so, so
each is asked once for one refresh.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from cryptography import x509

from sealtrain.attest.errors import CollateralUnreachable
from sealtrain.attest.roots import certificates_of_pem, quiet
from sealtrain.attest.snp.collect import SERVICE, distribution_addresses, order_chain
from sealtrain.attest.snp.parse import parse_report
from sealtrain.attest.snp.revocation import check_revocation, crl_der
from sealtrain.attest.snp.verify import verify_report
from sealtrain.attest.statement import MAX_CRL_BYTES
from sealtrain.base.http import Bounds, HttpClient, Problem
from sealtrain.errors import DataInvalid, UsageError

_MAX_CERTIFICATE_BYTES: Final = 64 << 10
_BOUNDS: Final = Bounds(connect=10, read=30, total=90, tries=3, pause=10)

Get = Callable[[str, int], bytes]
"""URL, most bytes → the body of a successful answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnpPublished:
    """Verified certificates and list.

    Attributes:
        files: By the names that a guest's ``certificates=FOLDER`` and ``--crl`` read.
        made: When the list was made, seconds since 1970.
        until: When list or chain end, whichever is first.
    """

    files: Mapping[str, bytes]
    made: int
    until: int


def fetch_published(
    raw: bytes,
    *,
    now: int,
    service: str = SERVICE,
    get: Get | None = None,
    simulator_root: bytes | None = None,
) -> SnpPublished:
    """Fetch for the chip that made a report.

    Args:
        raw: The report, 1184 bytes.
        now: Seconds since 1970.
        service: Address of AMD's key distribution service, or of a mirror.
        get: Reads a URL; ``None`` for HTTPS.
        simulator_root: The only trusted root (DER), ``None`` for AMD's.

    Raises:
        UsageError: The report names no certificate that AMD publishes (a VLEK, a hidden chip, or a
            report of version 2), or the service is no ``https`` address.
        CollateralUnreachable: No answer in time, or another than asked for.
        EvidenceRefused: What was fetched does not verify, as ``verify_report`` and
            ``check_revocation``.
    """
    report = parse_report(raw)
    addresses = distribution_addresses(report)
    if addresses is None:
        raise UsageError(
            "AMD publishes no certificate for this report",
            check="collateral",
            got=f"{report.signing_key}, version {report.version}",
            expected="a report by a VCEK that names its chip and product",
            hint="ask the cloud for its VLEK chain",
        )
    if urlsplit(service).scheme != "https":
        raise UsageError(
            "not the address of a service", check="collateral", expected="https://HOST"
        )
    ask = _get if get is None else get
    leaf_url, chain_url = (service.rstrip("/") + url.removeprefix(SERVICE) for url in addresses)
    leaf = ask(leaf_url, _MAX_CERTIFICATE_BYTES)
    try:
        issuers = certificates_of_pem(ask(chain_url, _MAX_CERTIFICATE_BYTES))
    except DataInvalid as error:
        raise _unreachable(chain_url, "no PEM certificates") from error
    chain = order_chain(report, {report.signing_key: leaf}, issuers)
    crl = crl_der(ask(chain_url.removesuffix("cert_chain") + "crl", 2 * MAX_CRL_BYTES))
    verify_report(raw, chain, simulator_root=simulator_root, now=now)
    made = check_revocation(chain, crl, now=now)
    with quiet():
        ends = [x509.load_der_x509_certificate(der).not_valid_after_utc for der in chain]
        ends.append(x509.load_der_x509_crl(crl).next_update_utc or ends[0])
    files = {f"{name}.der": der for name, der in zip(("leaf", "ask", "ark"), chain, strict=True)}
    return SnpPublished(
        files={**files, "amd.crl": crl},
        made=made,
        until=min(int(end.timestamp()) for end in ends),
    )


def _get(url: str, most: int) -> bytes:
    def fail(problem: Problem) -> Exception:
        return _unreachable(url, problem.reason)

    with HttpClient(_BOUNDS, failed=fail) as client:
        answer = client.ask("GET", url, cap=most, idempotent=True)
    if answer.status != 200:
        raise _unreachable(url, f"HTTP {answer.status}")
    return answer.body


def _unreachable(url: str, got: str) -> CollateralUnreachable:
    parts = urlsplit(url)
    return CollateralUnreachable(
        f"{parts.hostname} does not hand out certificates",
        check="collateral",
        got=f"{got} at {parts.path}",
        hint="check the network, or fetch the files elsewhere",
    )
