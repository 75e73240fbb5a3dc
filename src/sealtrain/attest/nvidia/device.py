"""Verification of one accelerator: its chain, its signature, and that both speak of one device."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from sealtrain.attest.errors import CertificateChainInvalid, GpuReportInvalid
from sealtrain.attest.nvidia.chain import DeviceChain, verify_chain
from sealtrain.attest.nvidia.parse import Architecture, GpuDevice
from sealtrain.attest.nvidia.spdm import SIGNATURE_BYTES, GpuReport, parse_report

_ECDSA = ec.ECDSA(hashes.SHA384())
_HALF = SIGNATURE_BYTES // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedDevice:
    """A device whose report is signed by a key that the trusted root certifies for it.

    The texts are signed facts: from the report, or from the chain (``architecture``, ``chip``,
    ``hwmodel``, ``ueid``, ``device_serial``, ``pdi``). They are empty where a switch reports none.
    """

    kind: Literal["gpu", "switch"]
    architecture: Architecture
    chip: str
    hwmodel: str
    ueid: str
    device_serial: str
    pdi: str
    driver_version: str
    vbios_version: str
    project: str
    project_sku: str
    chip_sku: str
    measurements: Mapping[int, bytes]
    nvdec0: Literal["on", "off"] | None
    certificates: tuple[bytes, ...]
    report: GpuReport
    simulated: bool


def verify_device(device: GpuDevice, *, simulator_root: bytes | None, now: int) -> VerifiedDevice:
    """Verify one device at a moment. Its nonce and mode are the caller's to compare.

    Args:
        device: Report and chain.
        simulator_root: Trusted software root (DER); ``None`` for NVIDIA's pinned root.
        now: Verification time, seconds since 1970.

    Raises:
        GpuReportInvalid: The report does not parse, is of another kind of device, or its signature
            does not hold.
        CertificateChainInvalid: The chain does not hold, or is for another firmware.
        QuoteRootUntrusted: The chain ends in another root.
        SimulatedEvidence: A simulator's chain where hardware is asked for.
    """
    report = parse_report(device.report_bytes)
    chain = verify_chain(device.certificate_chain, simulator_root=simulator_root, now=now)
    if (device.architecture, device.kind) != (chain.architecture, report.kind):
        raise GpuReportInvalid(
            "evidence calls the device something else than its certificate and report do",
            check="GPU architecture",
            got=f"{device.kind} {device.architecture}",
            expected=f"{report.kind} {chain.architecture}",
        )
    _check_signature(report, chain)
    if report.fwid is not None and not hmac.compare_digest(report.fwid, chain.fwid or b""):
        raise CertificateChainInvalid(
            "report comes from other firmware than its certificate was made for",
            check="firmware id",
            got=report.fwid.hex(),
            expected="none" if chain.fwid is None else chain.fwid.hex(),
        )
    return VerifiedDevice(
        kind=report.kind,
        architecture=chain.architecture,
        chip=report.chip or chain.chip,
        hwmodel=chain.hwmodel,
        ueid=chain.ueid,
        device_serial=chain.device_serial,
        pdi=chain.pdi,
        driver_version=report.driver_version,
        vbios_version=report.vbios_version,
        project=report.project,
        project_sku=report.project_sku,
        chip_sku=report.chip_sku,
        measurements=report.measurements,
        nvdec0=report.nvdec0,
        certificates=chain.certificates,
        report=report,
        simulated=chain.simulated,
    )


def _check_signature(report: GpuReport, chain: DeviceChain) -> None:
    signature = report.signature
    r, s = int.from_bytes(signature[:_HALF], "big"), int.from_bytes(signature[_HALF:], "big")
    try:
        chain.key.verify(encode_dss_signature(r, s), report.signed, _ECDSA)
    except (InvalidSignature, ValueError) as error:
        raise GpuReportInvalid(
            "report's signature does not hold under its certificate",
            check="GPU report signature",
            hint="the report was altered, or belongs to another device",
        ) from error
