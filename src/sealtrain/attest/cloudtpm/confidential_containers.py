"""Azure evidence as the attestation agent of Confidential Containers writes it.

Three versions: bytes as arrays of numbers (no version, SEV-SNP with names of its own), then hex and
base64url. The signature of the TPM is the bare RSA number. The nonce is whatever the relying party
chose, so such a file proves a machine, and nothing of a conversation of ours.
"""

from __future__ import annotations

import re
import struct
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from typing import Any

from sealtrain.attest.cloudtpm.exhibit import AzureSnp, AzureTdx
from sealtrain.attest.errors import EvidenceMalformed
from sealtrain.attest.roots import certificates_of_pem
from sealtrain.attest.snp.parse import parse_report
from sealtrain.attest.tdx.parse import canonical_quote, parse_quote
from sealtrain.attest.tpm.form import WholeTpm
from sealtrain.attest.tpm.hcl import parse_hcl
from sealtrain.base.encoding import to_base64
from sealtrain.base.models import load_model
from sealtrain.errors import DataInvalid

_MAX_BYTES = 64 << 10
_BASE64URL = re.compile(r"[A-Za-z0-9_-]*={0,2}")
_RSASSA_SHA256 = struct.pack(">HH", 0x0014, 0x000B)


def azure_exhibit(data: bytes, value: Mapping[str, Any]) -> AzureSnp | AzureTdx | None:
    """The statement in such a file; ``None`` of another form.

    Raises:
        EvidenceMalformed: A part is of another form.
        QuoteInvalid: The processor's statement is.
    """
    names = set(value)
    if {"quote", "report", "vcek"} <= names:
        hcl, tpm = value["report"], value["quote"]
    elif {"hcl_report", "tpm_quote"} <= names:
        hcl, tpm = value["hcl_report"], value["tpm_quote"]
    else:
        return None
    report, shown = parse_hcl(_octets(hcl)), _tpm(tpm)
    if report.kind == "snp":
        return AzureSnp(
            raw=data,
            report=parse_report(report.report),
            inside=_certificates(value.get("vcek")),
            runtime=report.runtime,
            tpm=shown,
        )
    quote = parse_quote(canonical_quote(_octets(value.get("td_quote"))))
    return AzureTdx(raw=data, quote=quote, runtime=report.runtime, tpm=shown)


def _tpm(value: object) -> WholeTpm:
    parts: Mapping[str, Any] = value if isinstance(value, dict) else {}
    registers = parts.get("pcrs")
    signature = _octets(parts.get("signature"))
    document = {
        "message": to_base64(_octets(parts.get("message"))),
        "signature": to_base64(_RSASSA_SHA256 + struct.pack(">H", len(signature)) + signature),
        "registers": [
            {"index": index, "value": _octets(register).hex()}
            for index, register in enumerate(registers if isinstance(registers, list) else ())
        ],
        "events": [],
    }
    return load_model(WholeTpm, document, EvidenceMalformed, "TPM quote")


def _certificates(value: object) -> tuple[bytes, ...]:
    if isinstance(value, str) and value.startswith("-----BEGIN"):
        try:
            return certificates_of_pem(value.encode("utf-8"))
        except DataInvalid as error:
            raise _refuse_malformed("a certificate") from error
    return () if value is None else (_octets(value),)


def _octets(value: object) -> bytes:
    """Bytes as an array of numbers, hex, or base64url without its padding."""
    try:
        if isinstance(value, list) and len(value) <= _MAX_BYTES:
            if all(type(byte) is int for byte in value):
                return bytes(value)
        elif isinstance(value, str) and len(value) <= 2 * _MAX_BYTES and value.isascii():
            if not value.strip("0123456789abcdef"):
                return bytes.fromhex(value)
            if _BASE64URL.fullmatch(value) is not None:  # the library skips what is none of it
                bare = value.rstrip("=")
                return urlsafe_b64decode(bare + "=" * (-len(bare) % 4))
    except ValueError:
        pass
    raise _refuse_malformed("a field")


def _refuse_malformed(what: str) -> EvidenceMalformed:
    return EvidenceMalformed(
        f"{what} of Azure's evidence is of another form", check="evidence form"
    )
