"""Fetch what NVIDIA publishes about devices: reference values, revocation answers, a verdict.

For the author of a bundle, never for a verifier: verification reads the collateral it is given.
Addresses are arguments, so that a site can put its own cache before the vendor's services. Nothing
that arrives is trusted here; it is bounded and put in its place.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Self

from sealtrain.attest.errors import CollateralUnreachable
from sealtrain.attest.nvidia.collateral import (
    MAX_JWKS_CHARS,
    MAX_OCSP_BYTES,
    MAX_RIM_BYTES,
    MAX_TOKEN_CHARS,
    RIM_ID,
    GpuCollateral,
    RemoteVerdict,
)
from sealtrain.attest.nvidia.device import VerifiedDevice
from sealtrain.attest.nvidia.ocsp import list_asked, ocsp_request
from sealtrain.attest.nvidia.parse import GpuDevice
from sealtrain.attest.nvidia.rim import rim_ids
from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.base.digests import sha256_hex
from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.base.http import Bounds, HttpClient, NoAnswer, parts_of
from sealtrain.errors import DataInvalid, UsageError

RIM_URL = "https://rim.attestation.nvidia.com/v1/rim"
OCSP_URL = "https://ocsp.ndis.nvidia.com"
NRAS_URL = "https://nras.attestation.nvidia.com"

_CHECK = "collateral"
_CLAIMS_VERSION = "3.0"
_HINT = "check the address and the network, or use collateral fetched elsewhere"


class NvidiaServices:
    """A bounded HTTP client of NVIDIA's services or of a cache that stands in for them.

    Every request is idempotent, so each is retried where that may help.

    Args:
        timeout: Seconds to wait for a connection and between bytes.
        total: Seconds for one whole answer, tries and the pauses between them included.
        sleep: Waits between tries.
    """

    def __init__(
        self,
        timeout: float = 30.0,
        total: float = 120.0,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        bounds = Bounds(connect=timeout, read=timeout, total=total)
        self._client = HttpClient(bounds, sleep=sleep)

    def __enter__(self) -> Self:
        """Use in a ``with`` block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close connections."""
        self._client.close()

    def get(self, url: str, limit: int) -> bytes:
        """Body of a successful answer.

        Raises:
            UsageError: Not an HTTP address, or one with a user or a query.
            CollateralUnreachable: No answer in time, another status than 200, or an answer that is
                compressed or longer than ``limit`` bytes.
        """
        return self._exchange("GET", url, limit, None, {})

    def post(self, url: str, body: bytes, media_type: str, limit: int) -> bytes:
        """Send a body and return the answer's. Errors as ``get``."""
        return self._exchange("POST", url, limit, body, {"content-type": media_type})

    def _exchange(
        self, method: str, url: str, limit: int, body: bytes | None, headers: dict[str, str]
    ) -> bytes:
        if parts_of(url) is None:
            raise UsageError(
                "not the address of a service",
                check=_CHECK,
                got=url.rpartition("@")[2][:200],  # what stands before it may be a password
                expected="http(s)://host",
            )
        try:
            answer = self._client.ask(
                method, url, cap=limit, content=body, headers=headers, idempotent=True
            )
        except NoAnswer as error:
            raise _unreachable(url, error.problem.reason) from None
        if answer.status != 200:
            raise _unreachable(url, f"HTTP {answer.status}")
        return answer.body


def fetch_collateral(
    devices: Sequence[VerifiedDevice],
    services: NvidiaServices,
    *,
    rim_url: str = RIM_URL,
    ocsp_url: str = OCSP_URL,
    nras: RemoteVerdict | None = None,
) -> GpuCollateral:
    """Fetch reference values and revocation answers for devices; each file and question once.

    Args:
        devices: Verified devices, GPUs and switches.
        services: Client.
        rim_url: Base address of the RIM service, up to and without the file's id.
        ocsp_url: Address of the OCSP responder.
        nras: A remote verdict to keep beside them.

    Raises:
        UsageError: Not an HTTP address.
        CollateralUnreachable: A service does not answer, or answers with something else.
        EvidenceMalformed: More files or answers than collateral holds.
    """
    rims: dict[str, bytes] = {}
    questions: dict[bytes, None] = {}
    for device in devices:
        for rim_id in rim_ids(device):
            if rim_id not in rims:
                rims[rim_id] = _fetch_rim(services, rim_url, rim_id)
        for certificate, issuer in list_asked(device.certificates):
            questions[ocsp_request(certificate, issuer)] = None
    answers = tuple(
        services.post(ocsp_url, question, "application/ocsp-request", MAX_OCSP_BYTES)
        for question in questions
    )
    return GpuCollateral.build(rims=rims, ocsp=answers, nras=nras)


def fetch_remote_verdict(
    devices: Sequence[GpuDevice],
    services: NvidiaServices,
    *,
    nonce: bytes,
    nras_url: str = NRAS_URL,
) -> RemoteVerdict:
    """Ask NVIDIA's attestation service about GPUs, and archive its keys with the answer.

    The reports and certificates of the GPUs leave for the vendor's service.

    Args:
        devices: GPUs of one architecture; switches are passed over.
        services: Client.
        nonce: The nonce the reports were made for.
        nras_url: Base address of the service.

    Raises:
        UsageError: Not an HTTP address, no GPU, or GPUs of several architectures.
        CollateralUnreachable: The service does not answer, or answers with something else.
    """
    gpus = [device for device in devices if device.kind == "gpu"]
    architectures = sorted({device.architecture for device in gpus})
    if len(architectures) != 1:
        raise UsageError(
            "the service judges GPUs of one architecture at a time",
            check=_CHECK,
            got=", ".join(architectures) or "no GPU",
        )
    question = {
        "nonce": nonce.hex(),
        "arch": architectures[0],
        "claims_version": _CLAIMS_VERSION,
        "evidence_list": [
            {
                "evidence": device.report,
                "certificate": to_base64(device.certificate_chain.encode("ascii")),
            }
            for device in gpus
        ],
    }
    base = nras_url.rstrip("/")
    body = canonical_json(question)
    token = services.post(f"{base}/v4/attest/gpu", body, "application/json", MAX_TOKEN_CHARS)
    keys = services.get(f"{base}/.well-known/jwks.json", MAX_JWKS_CHARS)
    try:
        return RemoteVerdict(token=token.decode("utf-8"), jwks=keys.decode("utf-8"))
    except ValueError as error:  # not UTF-8, or empty
        raise _unreachable(base, "an answer that is not text") from error


def _fetch_rim(services: NvidiaServices, base: str, rim_id: str) -> bytes:
    if re.fullmatch(RIM_ID, rim_id) is None:
        raise CollateralUnreachable(
            "device's board or firmware has no name under which reference values are published",
            check=_CHECK,
            got=rim_id[:128],
        )
    url = f"{base.rstrip('/')}/{rim_id}"
    data = services.get(url, 2 * MAX_RIM_BYTES)
    try:
        answer = parse_json(data, max_bytes=2 * MAX_RIM_BYTES, max_depth=4)
        xml = from_base64(answer["rim"])
        claimed, named = answer["sha256"], answer["id"]
    except (DataInvalid, KeyError, TypeError, AttributeError) as error:
        raise _unreachable(url, "something else than a file of reference values") from error
    # Not a matter of trust, the file is signed: a damaged or exchanged one shows here already.
    if named != rim_id or claimed != sha256_hex(xml):
        raise _unreachable(url, "another or a damaged file")
    return xml


def _unreachable(url: str, got: str) -> CollateralUnreachable:
    return CollateralUnreachable(
        "a service of the GPU's vendor does not answer as it must",
        check=_CHECK,
        got=f"{url[:200]}: {got}",
        hint=_HINT,
    )
