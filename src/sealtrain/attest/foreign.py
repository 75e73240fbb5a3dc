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

_JWT: Final = re.compile(rb"\s*([\w-]{4,})\.([\w-]{4,})\.[\w-]*\s*\Z", re.ASCII)
_MAX_TOKEN_BYTES: Final = 256 << 10
# go-tpm-tools' Attestation (proto/attest.proto) begins with its key, a TPMT_PUBLIC of RSA or ECC.
_TPM_TOOLS: Final = re.compile(rb"\n[\x80-\xff]?[\0-\x7f]\0[\x01\x23]\0\x0b", re.DOTALL)
_TPM_TOOLS_TEXT: Final = re.compile(rb'\s*ak_pub:\s*"')
_MAX_FIELDS: Final = 256


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
_APART: Final = (
    "its TPM signed for a nonce and not for the processor's statement, so nothing says that both "
    "are of one machine, and that statement is not held as it was signed: bring the report or "
    "quote itself, or evidence of kind gcp-snp or dstack-gcp-tdx"
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
_CVM_QUOTE: Final = Foreign("quote of an Azure guest's TPM, of az-cvm-vtpm", _TPM)
_TRUSTEE_TPM: Final = Foreign("TPM evidence of Confidential Containers", _TPM)
_VAPOR: Final = Foreign("vTPM attestation of vaportpm", _TPM)
_VAPOR_GOOGLE: Final = Foreign("vTPM attestation of a Google machine, of vaportpm", _TPM)
_VAPOR_NITRO: Final = Foreign("NitroTPM attestation of an EC2 instance, of vaportpm", _TPM)
_TOOLS: Final = Foreign("vTPM attestation of go-tpm-tools", _TPM)
_TOOLS_SNP: Final = Foreign("attestation of go-tpm-tools with a SEV-SNP report", _APART)
_TOOLS_TDX: Final = Foreign("attestation of go-tpm-tools with a TDX quote", _APART)

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


_CVM_SIGNATURE: Final = (256).to_bytes(8, "little")
"""az-cvm-vtpm's quotes begin with the length of an RSA signature; the message follows it."""


def foreign_form(data: bytes) -> Foreign | None:
    """The form of a file that is no JSON, where it is one of those above."""
    for begin, found in _BEGINS:
        if data.startswith(begin):
            return found
    if data[:8] == _CVM_SIGNATURE and data[272:278] == b"\xffTCG\x80\x18":
        return _CVM_QUOTE
    if _TPM_TOOLS.match(data) is not None:
        fields = _fields(data)
        return _TOOLS_SNP if 8 in fields else _TOOLS_TDX if 9 in fields else _TOOLS
    if _TPM_TOOLS_TEXT.match(data) is not None:
        if b"\nsev_snp_attestation" in data:
            return _TOOLS_SNP
        return _TOOLS_TDX if b"\ntdx_attestation" in data else _TOOLS
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
        shown = value["attestation"]
        clouds = shown.keys() & {"gcp", "nitro"} if isinstance(shown, dict) else set()
        return _VAPOR_GOOGLE if "gcp" in clouds else _VAPOR_NITRO if clouds else _VAPOR
    if {"ak_public", "tpm_quote"} <= value.keys():
        return _TRUSTEE_TPM
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


def _fields(message: bytes) -> set[int]:
    """Numbers of the fields that a protobuf message begins with, as far as all have a length."""
    found: set[int] = set()
    at = 0
    for _ in range(_MAX_FIELDS):
        key, at = _varint(message, at)
        if key & 7 != 2:
            break
        found.add(key >> 3)
        length, at = _varint(message, at)
        at += length
    return found


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """A number of at most five bytes and where it ends; 0 behind the message."""
    value = 0
    for place, byte in enumerate(message[at : at + 5]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    return 0, len(message)
