"""Attestation of others that sealtrain knows by name, and does not verify.

A reader who brings such a file learns what it is, who vouches for it, and what would stand in its
place. Nothing in it is trusted; it is read as far as its name.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from sealtrain.base.canonical import parse_json
from sealtrain.errors import DataInvalid, FormatUnknown

__all__ = ["NITRO_TPM", "Foreign", "foreign_form", "foreign_json"]

_JWT: Final = re.compile(rb"\s*([\w-]{4,})\.([\w-]{4,})\.[\w-]*\s*\Z", re.ASCII)
_MAX_TOKEN_BYTES: Final = 256 << 10


@dataclass(frozen=True, slots=True)
class Foreign:
    """A form of attestation that is not verified here.

    Attributes:
        name: What it is.
        instead: What vouches for it, and what to bring.
    """

    name: str
    instead: str

    def refusal(self) -> FormatUnknown:
        """The error that tells a reader so."""
        return FormatUnknown(
            f"{self.name}: this release does not verify it",
            check="evidence form",
            got=self.name,
            hint=self.instead,
        )


_SERVICE: Final = (
    "its signature is the service's word about the machine, and not the machine's own evidence: "
    "bring the quote or report that the service was given"
)
_TPM: Final = (
    "a TPM says what booted, and not that memory is encrypted: bring the processor's quote or "
    "report of the same machine"
)
_CPU: Final = "bring a quote of Intel TDX, a report of AMD SEV-SNP or a document of AWS Nitro"

NITRO_TPM: Final = Foreign("NitroTPM attestation document of an EC2 instance", _TPM)
_AZURE: Final = Foreign("token of Microsoft Azure Attestation", _SERVICE)
_INTEL: Final = Foreign("token of Intel Trust Authority", _SERVICE)
_GOOGLE: Final = Foreign("token of Google's Confidential Space", _SERVICE)
_EAR: Final = Foreign("attestation result (EAR) of a verifier", _SERVICE)
_JSON_TOKEN: Final = Foreign("a signed token (JWT) of another service", _SERVICE)
_CCA: Final = Foreign("token of an Arm CCA realm", _CPU)
_HCL: Final = Foreign("HCL report of an Azure guest", _TPM)
_TPM_QUOTE: Final = Foreign("quote of a TPM", _TPM)
_VAPOR: Final = Foreign("vTPM attestation of vaportpm", _TPM)

_ISSUERS: Final[Mapping[str, Foreign]] = {
    "attest.azure.net": _AZURE,
    "trustauthority.intel.com": _INTEL,
    "confidentialcomputing.googleapis.com": _GOOGLE,
}
"""Domain of the issuer → what its tokens are; subdomains too."""
_BEGINS: Final[tuple[tuple[bytes, Foreign], ...]] = (
    (b"HCLA", _HCL),
    (b"\xffTCG\x80\x18", _TPM_QUOTE),
    (b"\xd9\x01\x8f", _CCA),  # CBOR tags 399 and 907
    (b"\xd9\x03\x8b", _CCA),
)


def foreign_form(data: bytes) -> Foreign | None:
    """The form of a file that is no JSON, where it is one of those above."""
    for begin, found in _BEGINS:
        if data.startswith(begin):
            return found
    if len(data) > _MAX_TOKEN_BYTES or (token := _JWT.match(data)) is None:
        return None
    header, payload = _part(token[1]), _part(token[2])
    if header is None or payload is None or "alg" not in header:
        return None
    if "ear.verifier-id" in payload:
        return _EAR
    issuer = payload.get("iss")
    host = urlsplit(issuer).hostname if isinstance(issuer, str) else None
    for domain, found in _ISSUERS.items():
        if host is not None and (host == domain or host.endswith(f".{domain}")):
            return found
    return _JSON_TOKEN


def foreign_json(value: Mapping[str, Any]) -> Foreign | None:
    """The form of a JSON object, where it is one of those above."""
    if {"ak_pubkeys", "attestation"} <= value.keys():
        return _VAPOR
    if "ear.verifier-id" in value:
        return _EAR
    return None


def _part(encoded: bytes) -> Mapping[str, Any] | None:
    """A part of a token, decoded; ``None`` where it is no JSON object."""
    try:
        text = urlsafe_b64decode(encoded + b"=" * (-len(encoded) % 4))
        value = parse_json(text, max_bytes=_MAX_TOKEN_BYTES, max_depth=32)
    except (ValueError, DataInvalid):
        return None
    return value if isinstance(value, dict) else None
