"""Reports of accelerators taken apart and put together again, by code of its own.

Whoever holds a simulated device's key can make it say anything; tests do, to reach the checks that
stand behind the signature.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from sealtrain.attest.nvidia.collateral import GpuCollateral
from sealtrain.attest.nvidia.parse import GpuClaims, GpuDevice, GpuEvidence, from_nvat
from sealtrain.attest.nvidia.verify import VerifiedGpus, verify_gpus
from sealtrain.base.encoding import to_base64
from sealtrain_rehearsal.simulator.gpu import SimulatedGpus
from sealtrain_rehearsal.simulator.gpu_pki import SimulatedDevice

NOW = 1_800_000_000
NONCE = bytes(range(32))


@dataclass(frozen=True)
class Parts:
    """A report's parts; ``tail`` follows the signature."""

    nonce: bytes
    blocks: tuple[tuple[int, bytes], ...]
    fields: tuple[tuple[int, bytes], ...]
    tail: bytes = b""
    count: int | None = None
    reclen: int | None = None
    request: bytes = bytes.fromhex("11e001ff")
    response: bytes = bytes.fromhex("11600000")
    record_head: Callable[[int, bytes], bytes] = field(
        default=lambda index, value: struct.pack("<BBHBH", index, 1, len(value) + 3, 1, len(value))
    )

    def with_field(self, kind: int, value: bytes | None) -> Parts:
        rest = tuple(field for field in self.fields if field[0] != kind)
        return replace(self, fields=rest if value is None else (*rest, (kind, value)))


def take_apart(raw: bytes) -> Parts:
    end = 45 + int.from_bytes(raw[42:45], "little")
    blocks = tuple((raw[at], raw[at + 7 : at + 55]) for at in range(45, end, 55))
    at = end + 34
    fields = []
    while at < end + 34 + int.from_bytes(raw[end + 32 : end + 34], "little"):
        kind, size = struct.unpack_from("<HH", raw, at)
        fields.append((kind, raw[at + 4 : at + 4 + size]))
        at += 4 + size
    return Parts(raw[4:36], blocks, tuple(fields))


def put_together(parts: Parts, key: ec.EllipticCurvePrivateKey) -> bytes:
    records = b"".join(parts.record_head(index, value) + value for index, value in parts.blocks)
    opaque = b"".join(struct.pack("<HH", kind, len(value)) + value for kind, value in parts.fields)
    count = len(parts.blocks) if parts.count is None else parts.count
    length = len(records) if parts.reclen is None else parts.reclen
    signed = parts.request + parts.nonce + b"\0" + parts.response + bytes([count])
    signed += length.to_bytes(3, "little") + records + bytes(32)
    signed += struct.pack("<H", len(opaque)) + opaque
    r, s = decode_dss_signature(key.sign(signed, ec.ECDSA(hashes.SHA384())))
    return signed + r.to_bytes(48, "big") + s.to_bytes(48, "big") + parts.tail


def resigned(
    evidence: GpuEvidence, at: int, device: SimulatedDevice, change: Callable[[Parts], Parts]
) -> GpuEvidence:
    """``evidence`` whose device ``at`` says something else, under its own key."""
    told = evidence.devices[at]
    report = put_together(change(take_apart(told.report_bytes)), device.key)
    devices = list(evidence.devices)
    devices[at] = GpuDevice.build(told.architecture, report, told.certificate_chain.encode("ascii"))
    return GpuEvidence.build(tuple(devices), evidence.claims)


def claiming(evidence: GpuEvidence, **changes: Any) -> GpuEvidence:
    """``evidence`` whose guest read something else from the driver."""
    return GpuEvidence.build(evidence.devices, evidence.claims.model_copy(update=changes))


def showing(evidence: GpuEvidence, *places: int) -> GpuEvidence:
    """Only these devices of ``evidence``, in this order; the driver sees as many GPUs."""
    devices = tuple(evidence.devices[place] for place in places)
    gpus = sum(device.kind == "gpu" for device in devices)
    return GpuEvidence.build(devices, evidence.claims.model_copy(update={"gpu_count": gpus}))


def claims(**changes: Any) -> GpuClaims:
    fields = {
        "environment": "PROD",
        "cc_feature": True,
        "dev_tools": False,
        "multi_gpu_mode": "none",
        "driver_version": "590.12",
        "gpu_count": 1,
    }
    return GpuClaims(**{**fields, **changes})


def hardware_policy_fields(**changes: Any) -> dict[str, Any]:
    fields = {
        "root": "nvidia",
        "rim_root": "nvidia",
        "gpu_count": 1,
        "switch_count": 0,
        "architectures": ["HOPPER"],
        "mode": ["single", "mpt"],
        "cc": "on",
        "devtools": "off",
        "devices": "any",
        "driver_versions": "any",
        "vbios_versions": "any",
        "reference_values": "any",
        "revocation": "any",
        "max_ocsp_age_s": 86400,
        "nras": "local",
    }
    return {**fields, **changes}


def machine(seed: bytes = b"a simulated machine with GPUs") -> SimulatedGpus:
    """Four GPUs and two switches in protected PCIe mode."""
    return SimulatedGpus(seed, count=4, switches=2, mode="protected_pcie")


def judged_by(
    gpus: SimulatedGpus,
    evidence: GpuEvidence,
    collateral: GpuCollateral | None,
    *,
    nonce: bytes = NONCE,
    **changes: Any,
) -> VerifiedGpus:
    """``evidence`` under the simulated machine's own policy, with ``changes`` to its rules."""
    return verify_gpus(
        evidence,
        gpus.policy(**changes),
        collateral,
        nonce=nonce,
        simulator_root=gpus.root_der,
        now=NOW,
    )


def captured(shared: Path, name: str) -> tuple[GpuDevice, ...]:
    """Devices of a captured vector, trimmed and re-spelled as a collector does."""
    folder = shared / "vectors" / "nvidia"
    if (folder / f"{name}.json").is_file():
        return from_nvat((folder / f"{name}.json").read_bytes())
    report, chain = (folder / f"{name}{end}" for end in (".report.bin", ".chain.pem"))
    return (GpuDevice.build("HOPPER", report.read_bytes(), chain.read_bytes()),)


def expected(shared: Path, name: str) -> list[dict[str, Any]]:
    """What the vectors' own notes say of each device."""
    notes = json.loads((shared / "vectors" / "nvidia" / "expected.json").read_text())
    found = notes[name] if name in notes else notes[f"{name}.json"]
    return found if isinstance(found, list) else [found]


def nvat_file(devices: tuple[GpuDevice, ...]) -> bytes:
    """Devices as NVIDIA's own tools write them: a list, nothing of the guest's driver."""
    return json.dumps(
        [
            {
                "arch": device.architecture,
                "nonce": device.report_bytes[4:36].hex(),
                "evidence": device.report,
                "certificate": to_base64(device.certificate_chain.encode("ascii")),
            }
            for device in devices
        ]
    ).encode("ascii")
