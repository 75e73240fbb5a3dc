"""DCAP collateral from a PCCS or from Intel's own service.

Nothing that is fetched here is trusted for where it came from: all of it is signed, and the
verifier checks signatures, dates and platform. What signatures cannot show is that something newer
exists; that is what ``cache`` remembers.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from json import JSONDecoder
from typing import Literal
from urllib.parse import unquote, urlsplit

import dcap_qvl
import httpx2
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from sealtrain.attest.errors import CollateralMismatch, CollateralUnreachable, QuoteInvalid
from sealtrain.attest.roots import X509_ERRORS, certificates_of_pem
from sealtrain.attest.statement import Collateral
from sealtrain.attest.tdx.parse import TdxQuote
from sealtrain.base.canonical import parse_json
from sealtrain.base.http import Bounds, HttpClient, NoAnswer, parts_of
from sealtrain.errors import DataInvalid, UsageError

MAX_ANSWER_BYTES = 2 << 20
_INTEL_HOST = "api.trustedservices.intel.com"
_INTEL_ROOT_CRL = "https://certificates.trustedservices.intel.com/IntelSGXRootCA.der"
"""Intel's service, unlike a PCCS, has no method for the root's own revocation list."""
_SIGNED = re.compile(r'\s*\{\s*"(tcbInfo|enclaveIdentity)"\s*:\s*')
_SIGNATURE = re.compile(r'\s*,\s*"signature"\s*:\s*"([0-9a-fA-F]{128})"\s*\}\s*')

Update = Literal["standard", "early"]
"""Which of Intel's two streams: ``early`` has new TCB levels from the day they are published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """What a PCK certificate says about where to look. Not secret, not yet trusted."""

    fmspc: str
    ca: str


def fetch_collateral(
    base_url: str,
    quote: TdxQuote,
    *,
    update: Update = "standard",
    timeout: float = 20.0,
    sleep: Callable[[float], None] = time.sleep,
) -> Collateral:
    """Ask a PCCS, or Intel, for what is needed to verify a quote.

    Args:
        base_url: ``https://pccs.example:8081``, ``https://api.trustedservices.intel.com``, or the
            same with ``/sgx/certification/v4``.
        quote: Names the platform family and its CA.
        update: Which of Intel's streams.
        timeout: Seconds for one answer, tries and the pauses between them included.
        sleep: Waits between tries.

    Raises:
        UsageError: Not such a URL.
        QuoteInvalid: The quote's certificates do not say which platform it is.
        CollateralUnreachable: No answer in time, an error of the service, or an answer that is too
            long or compressed.
        CollateralMismatch: An answer is not in the form of the API.
    """
    base = _base(base_url)
    platform = platform_of(quote)
    bounds = Bounds(connect=timeout, read=timeout, total=timeout)
    tls = base.scheme == "https"
    with HttpClient(bounds, tls=tls, sleep=sleep) as client:

        def get(path: str, **query: str) -> tuple[bytes, httpx2.Headers]:
            url = base.copy_with(raw_path=base.raw_path.rstrip(b"/") + path.encode("ascii"))
            return _get(client, url.copy_merge_params(query))

        crl, crl_headers = get("/sgx/certification/v4/pckcrl", ca=platform.ca, encoding="der")
        if base.host == _INTEL_HOST:
            root_crl, _ = _get(client, httpx2.URL(_INTEL_ROOT_CRL))
        else:
            root_crl, _ = get("/sgx/certification/v4/rootcacrl")
        tcb, tcb_headers = get(
            "/tdx/certification/v4/tcb", fmspc=platform.fmspc.upper(), update=update
        )
        identity, identity_headers = get("/tdx/certification/v4/qe/identity", update=update)
    tcb_info, tcb_signature = _split_signed("tcbInfo", tcb)
    qe_identity, qe_signature = _split_signed("enclaveIdentity", identity)
    tcb_chain = ("TCB-Info-Issuer-Chain", "SGX-TCB-Info-Issuer-Chain")
    return Collateral.from_dict(
        {
            "pck_crl_issuer_chain": _chain(crl_headers, "SGX-PCK-CRL-Issuer-Chain"),
            "root_ca_crl": _revocations(root_crl).hex(),
            "pck_crl": _revocations(crl).hex(),
            "tcb_info_issuer_chain": _chain(tcb_headers, *tcb_chain),
            "tcb_info": tcb_info,
            "tcb_info_signature": tcb_signature,
            "qe_identity_issuer_chain": _chain(
                identity_headers, "SGX-Enclave-Identity-Issuer-Chain"
            ),
            "qe_identity": qe_identity,
            "qe_identity_signature": qe_signature,
        }
    )


def services_of(uri: str) -> tuple[str, ...]:
    """URLs that collateral at an address is asked for at; none where it is a file."""
    if urlsplit(uri).scheme not in ("https", "http"):
        return ()
    return (uri, _INTEL_ROOT_CRL) if urlsplit(uri).hostname == _INTEL_HOST else (uri,)


def platform_of(quote: TdxQuote) -> Platform:
    """Platform family and CA that a quote's certificate names.

    Raises:
        QuoteInvalid: It names none.
    """
    try:
        leaf = x509.load_der_x509_certificate(quote.certificates[0])
        # The library that verifies reads the extension here, too.
        pck = dcap_qvl.parse_pck_extension_from_pem(leaf.public_bytes(Encoding.PEM))
        fmspc = bytes(pck.fmspc)
        issuer = str(leaf.issuer.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
    except (LookupError, *X509_ERRORS) as error:
        raise QuoteInvalid(
            "quote's certificate does not name a platform", check="quote structure"
        ) from error
    ca = re.search(r"(Platform|Processor) CA$", issuer)
    if len(fmspc) != 6 or ca is None:
        raise QuoteInvalid(
            "quote's certificate does not name a platform",
            check="quote structure",
            got=f"FMSPC of {len(fmspc)} bytes, issuer {issuer[:64]!r}",
            expected="6 bytes, Platform CA or Processor CA",
        )
    return Platform(fmspc=fmspc.hex(), ca=ca[1].lower())


def _base(url: str) -> httpx2.URL:
    parts = parts_of(url)
    if parts is None:
        raise UsageError(
            "not the URL of a collateral service",
            check="collateral",
            got=url.rpartition("@")[2][:200],  # what stands before it may be a password
            expected="https://host",
        )
    path = parts.raw_path.rstrip(b"/").removesuffix(b"/sgx/certification/v4")
    return parts.copy_with(raw_path=path or b"/")


def _get(client: HttpClient, url: httpx2.URL) -> tuple[bytes, httpx2.Headers]:
    try:
        answer = client.ask("GET", url, cap=MAX_ANSWER_BYTES, idempotent=True)
    except NoAnswer as error:
        raise _unreachable(url, error.problem.reason) from None
    if answer.status != 200:
        raise _unreachable(url, f"HTTP {answer.status}")
    return answer.body, answer.headers


def _unreachable(url: httpx2.URL, got: str) -> CollateralUnreachable:
    return CollateralUnreachable(
        f"{url.host} does not hand out collateral",
        check="collateral",
        got=f"{got} at {url.path}",
        hint="check the URL of the PCCS, or use a bundle: collateral as file:PATH",
    )


def _split_signed(name: str, body: bytes) -> tuple[str, str]:
    """The exact text that is signed, and its signature. Re-serialising it would break it."""
    try:
        parse_json(body, max_bytes=MAX_ANSWER_BYTES, max_depth=16)  # one value, no key twice
        text = body.decode("utf-8")
    except (DataInvalid, UnicodeDecodeError) as error:
        raise _odd(f"{name} is not JSON") from error
    start = _SIGNED.match(text)
    if start is None or start[1] != name:
        raise _odd(f"answer does not begin with {name}")
    end = JSONDecoder().raw_decode(text, start.end())[1]
    signature = _SIGNATURE.fullmatch(text, end)
    if signature is None:
        raise _odd(f"{name} has no signature")
    return text[start.end() : end], signature[1].lower()


def _chain(headers: httpx2.Headers, *names: str) -> str:
    for name in names:
        if name in headers:
            text = unquote(headers[name])
            try:
                certificates_of_pem(text.encode("ascii"))
            except (DataInvalid, UnicodeEncodeError) as error:
                raise _odd(f"{name} is not a chain of certificates") from error
            return text
    raise _odd(f"{names[0]} is missing in the answer")


def _revocations(body: bytes) -> bytes:
    """DER of a revocation list; services send it as DER, as its hex, or as PEM."""
    try:
        if re.fullmatch(rb"\s*(?:[0-9a-fA-F]{2})+\s*", body):
            body = bytes.fromhex(body.decode("ascii").strip())
        load = x509.load_pem_x509_crl if body.startswith(b"-----") else x509.load_der_x509_crl
        return load(body).public_bytes(Encoding.DER)
    except X509_ERRORS as error:
        raise _odd("revocation list cannot be parsed") from error


def _odd(problem: str) -> CollateralMismatch:
    return CollateralMismatch(
        f"collateral service: {problem}",
        check="collateral",
        hint="the service must speak version 4 of Intel's API",
    )
