"""What accelerators, their vendor's files and its service say, and what each field means."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from sealtrain.attest.certificates import certificate_fields
from sealtrain.attest.field import Field, time_of
from sealtrain.attest.nvidia.collateral import GpuCollateral
from sealtrain.attest.nvidia.parse import GpuClaims, GpuDevice
from sealtrain.attest.nvidia.spdm import GpuReport, parse_report
from sealtrain.attest.nvidia.swid import Rim
from sealtrain.attest.roots import X509_ERRORS
from sealtrain.base.canonical import parse_json
from sealtrain.base.digests import sha256_hex
from sealtrain.errors import DataInvalid

_MAX_CLAIMS = 512

_TOLD = {
    "iss": "Who says it.",
    "sub": "What it is about.",
    "aud": "Whom it was made for.",
    "exp": "Until when it counts.",
    "iat": "When it was made.",
    "nbf": "From when on it counts.",
    "jti": "Its number.",
    "eat_nonce": "The nonce that the reports were made for.",
    "ueid": "The device, by the serial number of its certificate.",
    "hwmodel": "The model of the device.",
    "oemid": "Who made it; 5703 is NVIDIA.",
    "measres": "Whether measurements equal the reference values.",
    "secboot": "Whether the device booted signed firmware only.",
    "dbgstat": "Whether the device is in debug mode.",
    "submods": "The devices, with the SHA-256 of each one's own token.",
    "x-nvidia-overall-att-result": "The service's judgement over all devices.",
    "x-nvidia-gpu-driver-version": "The driver.",
    "x-nvidia-gpu-vbios-version": "The VBIOS.",
}


def device_fields(devices: tuple[GpuDevice, ...], claims: GpuClaims | None) -> list[Field]:
    """Every field of each report, and what the guest read from its driver."""
    kinds = [device.kind for device in devices]
    found: list[Field] = []
    for index, device in enumerate(devices):
        part = f"{device.kind}{kinds[:index].count(device.kind)}"
        architecture = Field(
            part=part,
            name="architecture",
            value=device.architecture,
            meaning="Family, as the file's author says.",
        )
        found += [architecture, *report_fields(parse_report(device.report_bytes), part)]
        found += certificate_fields(part, _der(device.certificate_chain))
    if claims is None:
        return found
    rows = (
        ("environment", claims.environment, "PROD is a production device."),
        ("confidential computing", _on(claims.cc_feature), "Off leaves its memory in clear."),
        ("developer tools", _on(claims.dev_tools), "On lets the host read its memory."),
        ("multi-GPU mode", claims.multi_gpu_mode, "How GPUs protect what they say to each other."),
        ("driver", claims.driver_version, "The driver that the guest runs."),
        ("GPUs", str(claims.gpu_count), "How many GPUs the driver sees."),
    )
    found += [
        Field(part="gpus", name=name, value=value, meaning=what) for name, value, what in rows
    ]
    return found


def report_fields(report: GpuReport, part: str) -> list[Field]:
    """Every field of one report but its signature."""
    flag = report.feature_flag
    rows = [
        ("kind", report.kind, "A GPU, or an NVSwitch between GPUs."),
        ("nonce", report.nonce.hex(), "Nonce chosen by the verifier."),
        ("device nonce", report.responder_nonce.hex(), "What the device added by chance."),
        ("driver", report.driver_version or "none", "The driver on the GPU; switches have none."),
        ("VBIOS", report.vbios_version, "The firmware of the board."),
        ("chip", report.chip or "not reported", "The chip, as it calls itself."),
        ("board", report.board_id or "not reported", "The board's id."),
        ("project", f"{report.project} {report.project_sku}".strip() or "none", "The product."),
        ("chip SKU", report.chip_sku or "not reported", "The variant of the chip."),
        ("firmware id", _hex(report.fwid), "Digest of the firmware that holds the signing key."),
        ("video decoder", report.nvdec0 or "not reported", "On changes one measurement."),
        (
            "feature flag",
            "not reported" if flag is None else flag.name,
            "MPT: several GPUs, encrypted; SPT: one GPU; PPCIE: all GPUs and switches.",
        ),
        (
            "protected PCIe",
            "not reported" if report.protected_pcie is None else _on(report.protected_pcie),
            "On means that every GPU and switch of the machine is one guest's.",
        ),
        ("switches", _set(report.switch_pdis), "NVSwitches that the GPU is wired to."),
        ("own identity", report.own_pdi or "none", "How GPUs name this switch."),
        ("GPUs", _set(report.gpu_pdis), "GPUs that the switch is wired to."),
        ("field version", str(report.opaque_version), "Version of the fields above."),
        (
            "measurements",
            " ".join(f"{index}:{value.hex()}" for index, value in report.measurements.items()),
            f"{len(report.measurements)} digests of firmware and configuration, to be compared "
            "with the vendor's reference values.",
        ),
        ("identity", report.identity, "SHA-256 of what the signature covers."),
    ]
    return [Field(part=part, name=name, value=value, meaning=what) for name, value, what in rows]


def rim_fields(rim: Rim) -> list[Field]:
    """Every field of a file of reference values."""
    part = "reference values"
    rows = [
        ("product", rim.product, "The chip that the values are for."),
        ("version", rim.version, "The firmware or driver that the values are for."),
        ("edition", rim.edition, "The vendor's word for the kind of product."),
        ("sha256", rim.digest, "Names this file; a policy can pin it."),
        ("indices", str(len(rim.measurements)), "How many measurements it decides about."),
    ]
    rows += [
        (f"index {index}", " or ".join(value.hex() for value in values), "What is accepted there.")
        for index, values in sorted(rim.measurements.items())
    ]
    return [Field(part=part, name=name, value=value, meaning=what) for name, value, what in rows]


def gpu_collateral_fields(collateral: GpuCollateral) -> list[Field]:
    """What an archive of the vendor's files holds."""
    part = "collateral"
    found = [
        Field(
            part=part,
            name=rim_id,
            value=f"sha256 {sha256_hex(collateral.rim(rim_id) or b'')}",
            meaning="A file of reference values, under the name it is published.",
        )
        for rim_id in collateral.rims
    ]
    answers, verdict = len(collateral.ocsp), "none" if collateral.nras is None else "one"
    told = "Signed answers: is a certificate revoked?"
    found.append(Field(part=part, name="OCSP answers", value=str(answers), meaning=told))
    told = "A verdict of NVIDIA's service, with its keys of that day."
    found.append(Field(part=part, name="remote verdict", value=verdict, meaning=told))
    return found


def token_fields(token: str) -> list[Field]:
    """What the tokens of NVIDIA's service claim; nothing of it is verified here."""
    answer = parse_json(token.encode("utf-8"))
    found = _token("overall", answer[0][1])
    for name, device_token in answer[1].items():
        found += _token(name, device_token)
    return found


def claims_fields(claims: dict[str, Any]) -> list[Field]:
    """Claims, decoded."""
    return [
        claim
        for name, said in claims.items()
        for claim in _claims(name, said if isinstance(said, dict) else {})
    ]


def _token(name: str, token: Any) -> list[Field]:
    parts = token.split(".") if isinstance(token, str) else []
    try:
        head, payload = (
            base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in parts[:2]
        )
        header, claims = parse_json(head, max_depth=8), parse_json(payload, max_depth=8)
        key = str(header["kid"])
    except (binascii.Error, ValueError, DataInvalid, KeyError, TypeError):
        broken = "This token cannot be read."
        return [Field(part=name, name="token", value="malformed", meaning=broken)]
    key_field = Field(part=name, name="key", value=key, meaning="Names the key that signed it.")
    return [key_field, *_claims(name, claims if isinstance(claims, dict) else {})]


def _claims(part: str, claims: dict[str, Any]) -> list[Field]:
    found: list[Field] = []
    for name, value in list(claims.items())[:_MAX_CLAIMS]:
        shown = str(value)
        if name in ("exp", "iat", "nbf") and isinstance(value, int):
            shown = time_of(value)
        meaning = _TOLD.get(name, "A claim of the service.")
        found.append(Field(part=part, name=name, value=shown, meaning=meaning))
    return found


def _der(chain: str) -> tuple[bytes, ...]:
    try:
        found = x509.load_pem_x509_certificates(chain.encode("ascii"))
    except (UnicodeEncodeError, *X509_ERRORS):
        return ()
    return tuple(certificate.public_bytes(Encoding.DER) for certificate in found)


def _hex(value: bytes | None) -> str:
    return "not reported" if value is None else value.hex()


def _set(values: frozenset[str]) -> str:
    return ", ".join(sorted(values)) or "none"


def _on(state: bool) -> str:
    return "on" if state else "off"
