"""Azure's HCL report: the processor's report, and the runtime data that it commits to.

The paravisor (VMPL 0 or its TDX counterpart) asks the processor for a report whose report data are
SHA-256 of a JSON text, padded with zeros. The text names the vTPM's attestation key (``HCLAkPub``)
and the machine's configuration. So AMD's or Intel's signature covers the key, and the key's quote
covers what booted. What stands between them is Microsoft's paravisor: the guest's operator trusts
it with the vTPM.

Layout, little-endian: header of 32 bytes (``HCLA``, version, size, request 2, status 0, zeros), the
report in 1184 bytes, then size, version, report type (2 SNP, 4 TDX), hash type (1 SHA-256), length
of the JSON, the JSON, zeros.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal

from cryptography.hazmat.primitives.asymmetric import rsa

from sealtrain.attest.errors import EvidenceMalformed, QuoteInvalid, ReportDataMismatch
from sealtrain.attest.tpm.byte_cursor import Octets
from sealtrain.attest.tpm.quote import AttestationKey, check_key
from sealtrain.base.canonical import parse_json
from sealtrain.errors import DataInvalid

HCL: Final = "HCL report"
MAX_HCL_BYTES: Final = 16 << 10
_HEADER_BYTES, _REPORT_BYTES, _DATA_HEADER_BYTES = 32, 1184, 20
_TD_REPORT_BYTES = 1024
_KINDS: Final[dict[int, Literal["snp", "tdx"]]] = {2: "snp", 4: "tdx"}
_REPORT_DATA = {"snp": slice(0x50, 0x90), "tdx": slice(0x80, 0xC0)}
_KEY_NAME = "HCLAkPub"
_BASE64URL = re.compile(r"[A-Za-z0-9_-]{1,1024}")
_VM_ID = re.compile(r"[0-9A-Za-z-]{0,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeData:
    """What the paravisor says of a machine; claims until a processor signed for the text.

    Attributes:
        text: The JSON text, as it is hashed.
        key: The vTPM's attestation key.
        secure_boot: Whether Secure Boot is on.
        vm_id: The machine's id.
    """

    text: bytes
    key: AttestationKey
    secure_boot: bool
    vm_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HclReport:
    """Fields of a parsed HCL report; claims until the processor's report is verified.

    Attributes:
        kind: Which processor's report it holds.
        report: That report; a TD report where it is TDX's.
        report_data: 64 bytes of it.
        runtime: What the paravisor says of the machine.
    """

    kind: Literal["snp", "tdx"]
    report: bytes
    report_data: bytes
    runtime: RuntimeData


def parse_hcl(raw: bytes) -> HclReport:
    """Parse an HCL report.

    Args:
        raw: Contents of NV index 0x01400001, at most 16 KiB; zeros may follow the report.

    Raises:
        EvidenceMalformed: Another structure.
        QuoteInvalid: The attestation key is of another kind than RSA of 2048 to 4096 bits.
    """
    reader = Octets(raw, HCL, "little")
    if len(raw) > MAX_HCL_BYTES:
        raise reader.malformed_error(f"it is longer than {MAX_HCL_BYTES} bytes")
    if reader.take(4) != b"HCLA":
        raise reader.malformed_error("it does not begin with HCLA")
    version, size, request, status = (reader.number(4) for _ in range(4))
    if version not in (1, 2) or request != 2 or status or any(reader.take(12)):
        raise reader.malformed_error("its header is of another request")
    report = reader.take(_REPORT_BYTES)
    data_size, data_version, kind, digest = (reader.number(4) for _ in range(4))
    runtime = reader.read_sized(4, MAX_HCL_BYTES)
    if data_version != 1 or kind not in _KINDS or digest != 1:
        raise reader.malformed_error("its runtime data are of another kind, or not under SHA-256")
    if data_size != _DATA_HEADER_BYTES + len(runtime) or any(reader.take(reader.left)):
        raise reader.malformed_error("its lengths disagree, or bytes follow it")
    if version == 1 and size != _HEADER_BYTES + _REPORT_BYTES + data_size:
        raise reader.malformed_error("its lengths disagree")
    found = _KINDS[kind]
    if found == "tdx" and any(report[_TD_REPORT_BYTES:]):
        raise reader.malformed_error("bytes follow its TD report")
    return HclReport(
        kind=found,
        report=report if found == "snp" else report[:_TD_REPORT_BYTES],
        report_data=report[_REPORT_DATA[found]],
        runtime=parse_runtime(runtime),
    )


def check_runtime(runtime: RuntimeData, report_data: bytes) -> None:
    """Compare the runtime data with report data that a processor signed.

    Args:
        runtime: Parsed runtime data.
        report_data: 64 bytes of a verified SNP report or TDX quote of the same machine.

    Raises:
        ReportDataMismatch: The processor signed for other runtime data: another key or machine.
    """
    expected = hashlib.sha256(runtime.text).digest().ljust(64, b"\0")
    if len(report_data) != len(expected) or not hmac.compare_digest(report_data, expected):
        raise ReportDataMismatch(
            "the processor did not sign for the attestation key of these runtime data",
            check="runtime data",
            got=report_data.hex(),
            expected=expected.hex(),
        )


@lru_cache(maxsize=64)
def parse_runtime(text: bytes) -> RuntimeData:
    """Parse runtime data by themselves; remembered by their exact bytes, refusals never are.

    Raises:
        EvidenceMalformed: Not such a JSON text.
        QuoteInvalid: The attestation key is of another kind than RSA of 2048 to 4096 bits.
    """
    try:
        value = parse_json(text, max_bytes=MAX_HCL_BYTES, max_depth=8)
    except DataInvalid as error:
        raise _refuse_malformed("runtime data are not JSON") from error
    document: dict[str, Any] = value if isinstance(value, dict) else {}
    keys, configuration = document.get("keys"), document.get("vm-configuration")
    if not isinstance(keys, list) or not isinstance(configuration, dict):
        raise _refuse_malformed("runtime data name no keys or no configuration")
    secure_boot, vm_id = configuration.get("secure-boot"), configuration.get("vmUniqueId")
    if (
        not isinstance(secure_boot, bool)
        or not isinstance(vm_id, str)
        or not _VM_ID.fullmatch(vm_id)
    ):
        raise _refuse_malformed("runtime data do not say what was booted")
    named = [key for key in keys if isinstance(key, dict) and key.get("kid") == _KEY_NAME]
    if len(named) != 1 or named[0].get("kty") != "RSA":
        raise _refuse_malformed("runtime data name not exactly one attestation key")
    try:
        exponent, modulus = (
            int.from_bytes(_base64url(named[0].get(part)), "big") for part in ("e", "n")
        )
        key = check_key(rsa.RSAPublicNumbers(exponent, modulus).public_key())
    except ValueError as error:
        raise QuoteInvalid(
            "attestation key of the runtime data is no RSA key", check="attestation key"
        ) from error
    return RuntimeData(text=text, key=key, secure_boot=secure_boot, vm_id=vm_id)


def _base64url(text: object) -> bytes:
    if not isinstance(text, str) or not _BASE64URL.fullmatch(text):
        raise ValueError("not base64url")
    found = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if urlsafe_b64encode(found).rstrip(b"=").decode("ascii") != text:
        raise ValueError("bits are left over")
    return found


def _refuse_malformed(message: str) -> EvidenceMalformed:
    return EvidenceMalformed(message, check=HCL)
