"""Simulated GPUs and NVSwitches: the vendor's report format under a software root.

The same parser and verifier judge them, under another root. Each lie of ``FAULT_MEANINGS`` is one
wrong thing while all else is right, for tests and for readers who want to see a verifier refuse.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from sealtrain.attest.errors import EvidenceMalformed
from sealtrain.attest.nvidia.parse import MAX_DEVICES, GpuClaims, GpuDevice, GpuEvidence
from sealtrain.attest.nvidia.policy import GpuMode, NvidiaPolicy
from sealtrain.attest.nvidia.spdm import DIGEST_BYTES, NONCE_BYTES, FeatureFlag, OpaqueField
from sealtrain.base.encoding import to_base64
from sealtrain.base.models import load_model
from sealtrain.errors import DataInvalid, TrustInvalid
from sealtrain_rehearsal.simulator.gpu_pki import GpuPki, SimulatedDevice

FAULT_MEANINGS: Final[dict[str, str]] = {
    "devtools-on": "developer mode: the host can read the GPUs (gpu-mode-refused)",
    "cc-off": "confidential computing is off (gpu-mode-refused)",
    "missing-gpu": "the last GPU is left out (gpu-set-refused)",
    "same-gpu-twice": "the first GPU is shown in place of the last (gpu-set-refused)",
    "wrong-nonce": "the first GPU answers another conversation (gpu-nonce-mismatch)",
    "bad-signature": "one bit of the first report is wrong (gpu-report-invalid)",
    "foreign-root": "another vendor made the GPUs (quote-root-untrusted)",
    "other-firmware": "the first GPU runs firmware of unknown digest (reference-value-mismatch)",
    "mixed-modes": "the last GPU is in another mode than the driver says (gpu-mode-refused)",
    "switch-missing": "the last switch is left out (gpu-set-refused)",
    "other-switch": "the last GPU is wired to a switch that is not shown (gpu-set-refused)",
    "other-gpu": "the last GPU is not wired to the switches (gpu-set-refused)",
    "old-driver": "driver 535.43.02 (tcb-status-refused)",
}
"""What the lie is, and the refusal it must end in (under a policy that looks)."""

FAULTS: Final = tuple(FAULT_MEANINGS)
"""Their names."""

DRIVER_VERSION: Final = "580.95.05"
GPU_VBIOS: Final = "96.00.D0.00.01"
SWITCH_VBIOS: Final = "96.10.73.00.01"
DRIVER_BLOCKS: Final = range(22, 42)
"""Measurement blocks that a driver determines; the video decoder's (36) among them."""
VBIOS_BLOCKS: Final = range(2, 22)
"""Measurement blocks that a VBIOS determines."""

_BLOCKS = {"gpu": 64, "switch": 31}
_OLD_DRIVER = "535.43.02"
_WIRES = 18
_GPUS_OF_A_BOARD = 8
_PORTS = bytes([0xFF]) * 64  # which GPU each port of a switch leads to: not played
_ECDSA = ec.ECDSA(hashes.SHA384(), deterministic_signing=True)
_FLAGS = {
    "single": FeatureFlag.SPT,
    "mpt": FeatureFlag.MPT,
    "protected_pcie": FeatureFlag.PPCIE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Statement:
    """What one device is to report."""

    kind: Literal["gpu", "switch"]
    device: SimulatedDevice
    nonce: bytes
    driver: str
    mode: GpuMode
    switches: tuple[bytes, ...]
    gpus: tuple[bytes, ...]
    altered_block: int | None = None


class SimulatedGpus:
    """The accelerators of one simulated machine.

    Args:
        seed: At least 16 bytes; keys, certificates and reports are a function of it.
        count: GPUs.
        switches: NVSwitches that every GPU is wired to; then at most eight GPUs.
        mode: How the GPUs protect what they say to each other.

    Raises:
        DataInvalid: Seed too short, no GPU, too many devices, or a mode that does not go with
            the numbers.
    """

    def __init__(
        self, seed: bytes, *, count: int = 1, switches: int = 0, mode: GpuMode = "single"
    ) -> None:
        if not 1 <= count <= MAX_DEVICES or not 0 <= switches <= MAX_DEVICES - count:
            raise DataInvalid("no GPU, or too many devices", expected=f"1 to {MAX_DEVICES}")
        fits = (switches > 0) == (mode == "protected_pcie") and (mode != "single" or count == 1)
        if not fits or (switches and count > _GPUS_OF_A_BOARD):
            raise DataInvalid(
                "GPUs and switches do not go together",
                got=f"{count} GPUs, {switches} switches, {mode}",
                expected="several GPUs in mode mpt, or at most eight with switches in "
                "protected_pcie",
            )
        self.count, self.switches, self.mode = count, switches, mode
        self.pki = GpuPki(seed)
        self._seed = bytes(seed)

    @property
    def root_der(self) -> bytes:
        """Root certificate of the devices."""
        return self.pki.root.der

    @property
    def rim_root_der(self) -> bytes:
        """Root certificate of the reference values."""
        return self.pki.rim_signer[-1].der

    @cached_property
    def gpu_devices(self) -> tuple[SimulatedDevice, ...]:
        """Keys and chains of the GPUs."""
        return tuple(self.pki.device("GH100", number) for number in range(self.count))

    @cached_property
    def switch_devices(self) -> tuple[SimulatedDevice, ...]:
        """Keys and chains of the switches."""
        return tuple(self.pki.device("LS_10", number) for number in range(self.switches))

    def policy(self, **changes: object) -> NvidiaPolicy:
        """A policy that accepts exactly these devices, with fields replaced by ``changes``.

        Raises:
            TrustInvalid: A change that no policy can have.
        """
        fields: dict[str, object] = {
            "root": {"insecure_simulator_root": to_base64(self.root_der)},
            "rim_root": {"insecure_simulator_root": to_base64(self.rim_root_der)},
            "gpu_count": self.count,
            "switch_count": self.switches,
            "architectures": ["HOPPER"],
            "mode": [self.mode],
            "cc": "on",
            "devtools": "off",
            "devices": "any",
            "driver_versions": {"minimum": "550.0", "denied": []},
            "vbios_versions": "any",
            "reference_values": "require",
            "revocation": "any",
            "max_ocsp_age_s": 86400,
            "nras": "local",
        }
        return load_model(NvidiaPolicy, {**fields, **changes}, TrustInvalid, "GPU policy")

    def evidence(self, nonce: bytes, *, fault: str | None = None) -> GpuEvidence:
        """Evidence of all devices for one conversation.

        Args:
            nonce: 32 bytes.
            fault: One of ``FAULTS``: the lie to tell.

        Raises:
            DataInvalid: Another length, an unknown fault, or one that needs more devices.
        """
        if len(nonce) != NONCE_BYTES:
            raise DataInvalid("nonce of GPUs is not 32 bytes", got=f"{len(nonce)} bytes")
        self._check_fault(fault)
        driver = _OLD_DRIVER if fault == "old-driver" else DRIVER_VERSION
        vendor = self
        if fault == "foreign-root":
            vendor = SimulatedGpus(
                hashlib.sha256(b"foreign" + self._seed).digest(),
                count=self.count,
                switches=self.switches,
                mode=self.mode,
            )
        honest = _Statement(
            kind="gpu",
            device=vendor.gpu_devices[0],
            nonce=nonce,
            driver=driver,
            mode=self.mode,
            switches=tuple(device.pdi for device in vendor.switch_devices),
            gpus=tuple(device.pdi for device in vendor.gpu_devices),
        )
        gpus = [replace(honest, device=device) for device in vendor.gpu_devices]
        switches = [
            replace(honest, kind="switch", device=device) for device in vendor.switch_devices
        ]
        if fault == "other-gpu":
            gpus[-1] = replace(gpus[-1], device=self.pki.device("GH100", self.count))
        statements = _tell_devices(gpus, switches, fault)
        reports = [_report(statement) for statement in statements]
        if fault == "bad-signature":
            reports[0] = reports[0][:-1] + bytes([reports[0][-1] ^ 1])
        devices = tuple(
            GpuDevice.build(
                "LS10" if statement.kind == "switch" else "HOPPER", report, statement.device.pem
            )
            for statement, report in zip(statements, reports, strict=True)
        )
        return GpuEvidence.build(devices, self._claims(devices, driver, fault))

    def measurements(self, kind: Literal["gpu", "switch"], driver: str) -> dict[int, bytes]:
        """Digest by block index of an honest device."""
        return _measurements(kind, driver)

    def _claims(self, devices: tuple[GpuDevice, ...], driver: str, fault: str | None) -> GpuClaims:
        protected = self.mode == "protected_pcie" and fault != "cc-off"
        return load_model(
            GpuClaims,
            {
                "environment": "PROD",
                "cc_feature": self.mode != "protected_pcie" and fault != "cc-off",
                "dev_tools": fault == "devtools-on",
                "multi_gpu_mode": "protected_pcie" if protected else "none",
                "driver_version": driver,
                "gpu_count": sum(device.kind == "gpu" for device in devices),
            },
            EvidenceMalformed,
            "GPU claims",
        )

    def _check_fault(self, fault: str | None) -> None:
        if fault is not None and fault not in FAULTS:
            raise DataInvalid("no such fault", got=fault[:40], expected=", ".join(FAULTS))
        needed = {"missing-gpu": 2, "same-gpu-twice": 2}.get(fault or "", 1)
        wired = fault in ("switch-missing", "other-switch", "other-gpu")
        if self.count < needed or (wired and not self.switches):
            raise DataInvalid("fault needs more devices", got=fault)


def _tell_devices(
    gpus: list[_Statement], switches: list[_Statement], fault: str | None
) -> list[_Statement]:
    """The devices as the lie wants them."""
    first, last = gpus[0], gpus[-1]
    if fault == "missing-gpu":
        gpus = gpus[:-1]
    elif fault == "same-gpu-twice":
        gpus = [*gpus[:-1], first]
    elif fault == "wrong-nonce":
        other = hashlib.sha256(b"another conversation" + first.nonce).digest()
        gpus = [replace(first, nonce=other), *gpus[1:]]
    elif fault == "other-firmware":
        gpus = [replace(first, altered_block=VBIOS_BLOCKS[3]), *gpus[1:]]
    elif fault == "mixed-modes":
        mode: GpuMode = "mpt" if last.mode == "protected_pcie" else "protected_pcie"
        gpus = [*gpus[:-1], replace(last, mode=mode)]
    elif fault == "switch-missing":
        switches = switches[:-1]
    elif fault == "other-switch":
        elsewhere = hashlib.sha256(last.switches[0]).digest()[:8]
        gpus = [*gpus[:-1], replace(last, switches=(elsewhere, *last.switches[1:]))]
    return gpus + switches


def _report(statement: _Statement) -> bytes:
    measurements = _measurements(statement.kind, statement.driver)
    if statement.altered_block is not None:
        measurements[statement.altered_block] = hashlib.sha384(b"unknown firmware").digest()
    records = b"".join(
        struct.pack("<BBHBH", index, 1, DIGEST_BYTES + 3, 1, DIGEST_BYTES) + digest
        for index, digest in measurements.items()
    )
    fields = _gpu_fields(statement) if statement.kind == "gpu" else _switch_fields(statement)
    opaque = b"".join(
        struct.pack("<HH", kind, len(value)) + value for kind, value in fields.items()
    )
    responder = hashlib.sha256(b"responder" + statement.nonce + statement.device.pdi).digest()
    signed = bytes.fromhex("11e001ff") + statement.nonce + b"\0"
    signed += bytes.fromhex("11600000") + bytes([len(measurements)])
    signed += len(records).to_bytes(3, "little") + records + responder
    signed += struct.pack("<H", len(opaque)) + opaque
    r, s = decode_dss_signature(statement.device.key.sign(signed, _ECDSA))
    return signed + r.to_bytes(48, "big") + s.to_bytes(48, "big")


def _measurements(kind: Literal["gpu", "switch"], driver: str) -> dict[int, bytes]:
    found = {}
    for index in range(1, _BLOCKS[kind] + 1):
        firmware = driver if kind == "gpu" and index in DRIVER_BLOCKS else kind
        found[index] = hashlib.sha384(f"SIMULATED {firmware} {index}".encode("ascii")).digest()
    return found


def _gpu_fields(statement: _Statement) -> dict[int, bytes]:
    parts = bytes.fromhex(GPU_VBIOS.replace(".", ""))
    on, off = b"\xaa", b"\x55"
    wires = [pdi[::-1] for pdi in statement.switches]
    fields: dict[int, bytes] = {
        # Backwards, and the last part stands in the other half.
        OpaqueField.VBIOS_VERSION: (bytes(3) + parts[4:] + parts[:4])[::-1],
        OpaqueField.BOARD_ID: bytes(4),
        OpaqueField.CHIP_SKU: b"000\0",
        OpaqueField.PROJECT: b"0000\0",
        OpaqueField.PROJECT_SKU: b"0000\0",
        OpaqueField.DRIVER_VERSION: statement.driver.encode("ascii") + b"\0",
        OpaqueField.NVDEC0_STATUS: off,
        OpaqueField.FWID: statement.device.fwid,
        OpaqueField.PROTECTED_PCIE: on if statement.mode == "protected_pcie" else off,
        OpaqueField.OPAQUE_VERSION: struct.pack("<H", 1),
        OpaqueField.FEATURE_FLAG: struct.pack("<H", _FLAGS[statement.mode]),
    }
    if wires:
        fields[OpaqueField.PDI] = b"".join(wires[wire % len(wires)] for wire in range(_WIRES))
    return fields


def _switch_fields(statement: _Statement) -> dict[int, bytes]:
    return {
        OpaqueField.VBIOS_VERSION: SWITCH_VBIOS.encode("ascii"),
        OpaqueField.PDI: statement.device.pdi,
        OpaqueField.POSITION: struct.pack("<H", 1),
        OpaqueField.LOCK: struct.pack("<H", 1),
        OpaqueField.FWID: statement.device.fwid,
        OpaqueField.GPU_PDIS: b"".join(statement.gpus).ljust(8 * _GPUS_OF_A_BOARD, b"\0") + _PORTS,
    }
