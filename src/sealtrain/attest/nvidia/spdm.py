"""Reports of NVIDIA GPUs and NVSwitches: SPDM 1.1 GET_MEASUREMENTS, strict structure, no trust yet.

    report   = request (37) || response
    request  = 11 e0 01 ff | nonce (32) | slot
    response = 11 60 p1 p2 | blocks u8 | length u24 | records | responder nonce (32)
               | opaque length u16 | opaque fields | signature (96)
    record   = index u8 | 01 | size u16 | type u8 | value size u16 | digest (48)
    field    = type u16 | size u16 | value

Little endian. Every length is exact, no block and no field occurs twice, and no byte follows the
signature, which covers everything before it: a report has one encoding but for the signature's own
two. Some drivers append a byte; the collector trims it (``canonical_report``), a verifier never.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Literal

from sealtrain.attest.errors import GpuReportInvalid
from sealtrain.base.digests import sha256_hex

MAX_REPORT_BYTES = 64 << 10
NONCE_BYTES = 32
DIGEST_BYTES = 48
SIGNATURE_BYTES = 96

_REQUEST = bytes.fromhex("11e001ff")
_REQUEST_BYTES = 37
_RESPONSE = bytes.fromhex("1160")
_RECORDS_AT = _REQUEST_BYTES + 8
_RECORD_BYTES = 7 + DIGEST_BYTES
_PDI_BYTES = 8
_GPUS_OF_A_SWITCH = 8
_NEWEST_OPAQUE_VERSION = 1
_ON, _OFF = b"\xaa", b"\x55"
_TEXT = re.compile(rb"[0-9A-Za-z._ -]{0,64}")
_VBIOS_TEXT = re.compile(r"[0-9A-F]{2}(?:\.[0-9A-F]{2}){4}")


class OpaqueField(IntEnum):
    """Opaque fields this release reads; others are signed, kept and not interpreted."""

    DRIVER_VERSION = 3
    VBIOS_VERSION = 6
    NVDEC0_STATUS = 11
    BOARD_ID = 14
    CHIP_SKU = 15
    CHIP_SKU_MOD = 16
    PROJECT = 17
    PROJECT_SKU = 18
    PROJECT_SKU_MOD = 19
    FWID = 20
    PROTECTED_PCIE = 21
    PDI = 22
    POSITION = 24
    LOCK = 25
    GPU_PDIS = 26
    OPAQUE_VERSION = 34
    CHIP = 35
    FEATURE_FLAG = 36


class FeatureFlag(IntEnum):
    """How a GPU says it is passed to its guest: several together, alone, or with its switches."""

    SPT = 0
    MPT = 1
    PPCIE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReport:
    """A parsed report. Nothing in it is true before its signature is verified.

    Attributes:
        signed: What the signature covers: request and response.
        signature: Raw ``r || s`` over P-384.
        nonce: The requester's 32 bytes.
        responder_nonce: The device's 32 bytes.
        measurements: Digest by block index; indices count from 1.
        opaque: Every opaque field by its type, raw.
        driver_version: ``590.12``; empty in a switch's report, which has none.
        vbios_version: ``96.00.A5.00.01``, upper case.
        nvdec0: State of the video decoder, ``None`` where not reported.
        fwid: Digest of the firmware that holds the signing key, ``None`` with older drivers.
        protected_pcie: Whether the GPU runs in protected PCIe mode, ``None`` where not reported.
        switch_pdis: Identities of the switches a GPU is wired to.
        own_pdi: Identity of a switch, empty for a GPU.
        gpu_pdis: Identities of the GPUs a switch is wired to.
        feature_flag: How the GPU is passed to its guest, ``None`` where not reported.
        opaque_version: Version of the opaque fields, 0 where not reported.
    """

    signed: bytes
    signature: bytes
    nonce: bytes
    responder_nonce: bytes
    measurements: Mapping[int, bytes]
    opaque: Mapping[int, bytes]
    driver_version: str
    vbios_version: str
    nvdec0: Literal["on", "off"] | None
    board_id: str
    chip_sku: str
    project: str
    project_sku: str
    chip: str
    fwid: bytes | None
    protected_pcie: bool | None
    switch_pdis: frozenset[str]
    own_pdi: str
    gpu_pdis: frozenset[str]
    feature_flag: FeatureFlag | None
    opaque_version: int

    @property
    def kind(self) -> Literal["gpu", "switch"]:
        """What the report is of: only GPUs name a driver."""
        return "gpu" if self.driver_version else "switch"

    @property
    def identity(self) -> str:
        """SHA-256 of what the signature covers, 64 hex digits: names the report."""
        return sha256_hex(self.signed)


def parse_report(raw: bytes) -> GpuReport:
    """Parse one report.

    Raises:
        GpuReportInvalid: Truncated, a byte too many, a length that does not fit, a block or field
            that occurs twice, or a field of another form.
    """
    records_end, opaque_end = _extent(raw)
    if len(raw) != opaque_end + SIGNATURE_BYTES:
        raise _refusal("report has bytes after its signature", hint="the collector trims them")
    measurements = _records(raw[_RECORDS_AT:records_end], raw[_REQUEST_BYTES + 4])
    opaque = _fields(raw[records_end + NONCE_BYTES + 2 : opaque_end])
    version = _version(opaque)
    driver = _text(opaque, OpaqueField.DRIVER_VERSION)
    pdis = _pdis(opaque.get(OpaqueField.PDI, b""))
    if not driver and len(pdis) > 1:
        raise _refusal("a switch's report names several identities")
    return GpuReport(
        signed=raw[:opaque_end],
        signature=raw[opaque_end:],
        nonce=raw[4 : 4 + NONCE_BYTES],
        responder_nonce=raw[records_end : records_end + NONCE_BYTES],
        measurements=MappingProxyType(measurements),
        opaque=MappingProxyType(opaque),
        driver_version=driver,
        vbios_version=_vbios(opaque.get(OpaqueField.VBIOS_VERSION, b"")),
        nvdec0=_nvdec0(opaque),
        board_id=opaque.get(OpaqueField.BOARD_ID, b"").hex(),
        chip_sku=_text(opaque, OpaqueField.CHIP_SKU),
        project=_text(opaque, OpaqueField.PROJECT),
        project_sku=_text(opaque, OpaqueField.PROJECT_SKU),
        chip=_text(opaque, OpaqueField.CHIP),
        fwid=_fwid(opaque),
        protected_pcie=_read_switch(opaque, OpaqueField.PROTECTED_PCIE),
        # A GPU spells the identities of its switches backwards.
        switch_pdis=frozenset(pdi[::-1].hex() for pdi in pdis if any(pdi)) if driver else _NONE,
        own_pdi="" if driver else b"".join(pdis).hex(),
        gpu_pdis=_NONE if driver else _gpus(opaque.get(OpaqueField.GPU_PDIS, b"")),
        feature_flag=_feature_flag(opaque, version),
        opaque_version=version,
    )


def canonical_report(raw: bytes) -> bytes:
    """Cut what a driver appended after the signature.

    Raises:
        GpuReportInvalid: Truncated, or not a report.
    """
    _, opaque_end = _extent(raw)
    return raw[: opaque_end + SIGNATURE_BYTES]


_NONE: frozenset[str] = frozenset()


def _refusal(message: str, *, got: object = None, hint: str | None = None) -> GpuReportInvalid:
    return GpuReportInvalid(message, check="GPU report structure", got=got, hint=hint)


def _extent(raw: bytes) -> tuple[int, int]:
    """Ends of the measurement records and of the opaque fields, by the report's own lengths."""
    if len(raw) > MAX_REPORT_BYTES:
        raise _refusal("report is too long", got=f"{len(raw)} bytes")
    if len(raw) < _RECORDS_AT:
        raise _refusal("report is truncated", got=f"{len(raw)} bytes")
    if raw[:4] != _REQUEST or raw[_REQUEST_BYTES : _REQUEST_BYTES + 2] != _RESPONSE:
        raise _refusal(
            "not a signed report of all measurements (SPDM 1.1)",
            got=f"{raw[:4].hex()} … {raw[_REQUEST_BYTES : _REQUEST_BYTES + 2].hex()}",
        )
    records_end = _RECORDS_AT + int.from_bytes(raw[_RECORDS_AT - 3 : _RECORDS_AT], "little")
    opaque_at = records_end + NONCE_BYTES + 2
    if len(raw) < opaque_at:
        raise _refusal("report is truncated", got=f"{len(raw)} bytes")
    opaque_end = opaque_at + int.from_bytes(raw[opaque_at - 2 : opaque_at], "little")
    if len(raw) < opaque_end + SIGNATURE_BYTES:
        raise _refusal("report is truncated", got=f"{len(raw)} bytes")
    return records_end, opaque_end


def _records(data: bytes, count: int) -> dict[int, bytes]:
    if len(data) != count * _RECORD_BYTES or not count:
        raise _refusal("measurement records do not fill their length", got=f"{count} blocks")
    found: dict[int, bytes] = {}
    for at in range(0, len(data), _RECORD_BYTES):
        index, form, size, kind, value_size = struct.unpack_from("<BBHBH", data, at)
        # The high bit of the kind would make the value raw data instead of a digest.
        if (form, size, value_size) != (1, DIGEST_BYTES + 3, DIGEST_BYTES) or kind & 0x80:
            raise _refusal(f"measurement block {index} is not a SHA-384 digest")
        if index in found or not index:
            raise _refusal(f"measurement block {index} occurs twice or counts from zero")
        found[index] = data[at + 7 : at + _RECORD_BYTES]
    return found


def _fields(data: bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    at = 0
    while at < len(data):
        if len(data) - at < 4:
            raise _refusal("opaque fields end inside a field's head")
        kind, size = struct.unpack_from("<HH", data, at)
        at += 4
        if size > len(data) - at:
            raise _refusal(f"opaque field {kind} runs past the end")
        if kind in found:
            raise _refusal(f"opaque field {kind} occurs twice")
        found[kind] = data[at : at + size]
        at += size
    return found


def _text(opaque: Mapping[int, bytes], field: OpaqueField) -> str:
    value = opaque.get(field, b"").rstrip(b"\0")
    if _TEXT.fullmatch(value) is None:
        raise _refusal(f"opaque field {field.value} is not a short text")
    return value.decode("ascii")


def _vbios(value: bytes) -> str:
    """GPUs write eight bytes backwards with the last part in the other half, switches text."""
    if len(value) == 8:
        digits = value[::-1].hex().upper()
        digits = digits[8:] + digits[6:8]
        return ".".join(digits[at : at + 2] for at in range(0, 10, 2))
    text = value.rstrip(b"\0").decode("latin-1").upper()
    if _VBIOS_TEXT.fullmatch(text) is None:
        raise _refusal("report names no VBIOS version of a known form")
    return text


def _read_switch(opaque: Mapping[int, bytes], field: OpaqueField) -> bool | None:
    value = opaque.get(field)
    if value is not None and value not in (_ON, _OFF):
        raise _refusal(f"opaque field {field.value} is neither on nor off", got=value[:8].hex())
    return None if value is None else value == _ON


def _nvdec0(opaque: Mapping[int, bytes]) -> Literal["on", "off"] | None:
    state = _read_switch(opaque, OpaqueField.NVDEC0_STATUS)
    if state is None:
        return None
    return "on" if state else "off"


def _fwid(opaque: Mapping[int, bytes]) -> bytes | None:
    value = opaque.get(OpaqueField.FWID)
    if value is not None and len(value) != DIGEST_BYTES:
        raise _refusal("firmware id is not a SHA-384 digest", got=f"{len(value)} bytes")
    return value


def _pdis(value: bytes) -> tuple[bytes, ...]:
    if len(value) % _PDI_BYTES:
        raise _refusal("device identities are not eight bytes each", got=f"{len(value)} bytes")
    return tuple(value[at : at + _PDI_BYTES] for at in range(0, len(value), _PDI_BYTES))


def _gpus(value: bytes) -> frozenset[str]:
    """The first eight entries; behind them stands a map of ports."""
    entries = _pdis(value)[:_GPUS_OF_A_SWITCH]
    return frozenset(pdi.hex() for pdi in entries if any(pdi))


def _version(opaque: Mapping[int, bytes]) -> int:
    value = opaque.get(OpaqueField.OPAQUE_VERSION, b"")
    version = int.from_bytes(value, "little")
    if len(value) > 8 or version > _NEWEST_OPAQUE_VERSION:
        raise _refusal(
            "report's fields are of a later version than this release reads",
            got=f"version {version}" if len(value) <= 8 else f"{len(value)} bytes",
            hint="update sealtrain",
        )
    return version


def _feature_flag(opaque: Mapping[int, bytes], version: int) -> FeatureFlag | None:
    value = opaque.get(OpaqueField.FEATURE_FLAG)
    if value is None or version < 1:
        return None
    try:
        return FeatureFlag(int.from_bytes(value, "little"))
    except ValueError:
        raise _refusal("feature flag has an unknown value", got=value[:8].hex()) from None
