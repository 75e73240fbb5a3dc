"""Rules for NVIDIA accelerators: which devices, in which mode, with which firmware.

Every field is written; ``any`` says that a value does not matter (spec/evidence.md).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from sealtrain.attest.nvidia.parse import MAX_DEVICES, Architecture
from sealtrain.attest.roots import SimulatorRoot
from sealtrain.base.models import Hex64, StrictModel

GpuMode = Literal["single", "mpt", "protected_pcie"]
"""``single``: one GPU. ``mpt``: GPUs encrypt what they say to each other. ``protected_pcie``: every
GPU and switch of a machine belongs to one guest, and NVLink between them is in clear."""

_DriverVersion = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,6}(?:\.[0-9]{1,6}){1,3}$")]
_VbiosVersion = Annotated[str, StringConstraints(pattern=r"^[0-9A-F]{2}(?:\.[0-9A-F]{2}){4}$")]
_Ueid = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{8,64}$")]
_RimId = Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z._-]{1,128}$")]


class DriverFloor(StrictModel):
    """Driver versions, compared number by number: ``535.86.09`` equals ``535.86.9``."""

    minimum: _DriverVersion
    denied: Annotated[tuple[_DriverVersion, ...], Field(max_length=256)]


class VbiosFloor(StrictModel):
    """VBIOS versions of one architecture, compared part by part in hexadecimal.

    Architectures number their VBIOS apart, so the floor of one says nothing about another.
    """

    architecture: Architecture
    minimum: _VbiosVersion
    denied: Annotated[tuple[_VbiosVersion, ...], Field(max_length=256)]


class NvidiaPolicy(StrictModel):
    """What a guest's accelerators must show.

    Attributes:
        root: The authority that certifies devices: NVIDIA's device identity CA, or a simulator.
        rim_root: The authority that signs reference values: NVIDIA's RIM CA, or a simulator.
        gpu_count: Exactly so many GPUs.
        switch_count: Exactly so many NVSwitches, or ``any``. Whatever the number, protected GPUs
            must show every switch that they name.
        architectures: Accepted families of GPUs.
        mode: Accepted ways in which GPUs talk to each other.
        cc: Confidential computing is on.
        devtools: Developer mode, in which the host reads the GPU's memory, is off.
        devices: ``any``, or the ueids of every device that may take part, switches included.
        driver_versions: ``any``, or a floor and versions below which or on which is refused.
        vbios_versions: ``any``, or one floor for each architecture that may take part.
        reference_values: ``any``; ``require`` NVIDIA's signed files; or the digests of exactly
            the files that may be used, by id.
        revocation: ``any``, or ``require`` a fresh answer for each certificate.
        max_ocsp_age_s: Oldest accepted such answer, in seconds.
        nras: ``local`` verification alone, or ``require`` the verdict of NVIDIA's service as well.
    """

    root: Literal["nvidia"] | SimulatorRoot
    rim_root: Literal["nvidia"] | SimulatorRoot
    gpu_count: Annotated[int, Field(ge=1, le=MAX_DEVICES)]
    switch_count: Literal["any"] | Annotated[int, Field(ge=0, le=MAX_DEVICES)]
    architectures: Annotated[
        tuple[Literal["HOPPER", "BLACKWELL"], ...], Field(min_length=1, max_length=2)
    ]
    mode: Annotated[tuple[GpuMode, ...], Field(min_length=1, max_length=3)]
    cc: Literal["on"]
    devtools: Literal["off"]
    devices: Literal["any"] | Annotated[tuple[_Ueid, ...], Field(max_length=4096)]
    driver_versions: Literal["any"] | DriverFloor
    vbios_versions: Literal["any"] | Annotated[tuple[VbiosFloor, ...], Field(max_length=3)]
    reference_values: (
        Literal["any", "require"]
        | Annotated[
            dict[_RimId, Annotated[tuple[Hex64, ...], Field(min_length=1, max_length=16)]],
            Field(min_length=1, max_length=256),
        ]
    )
    revocation: Literal["any", "require"]
    max_ocsp_age_s: Annotated[int, Field(ge=1, le=1 << 31)]
    nras: Literal["local", "require"]

    @property
    def simulator_root(self) -> bytes | None:
        """The trusted software root of devices (DER), ``None`` where hardware is asked for."""
        return self.root.der if isinstance(self.root, SimulatorRoot) else None

    @property
    def simulator_rim_root(self) -> bytes | None:
        """The trusted software root of reference values (DER), ``None`` for NVIDIA's."""
        return self.rim_root.der if isinstance(self.rim_root, SimulatorRoot) else None

    @model_validator(mode="after")
    def _consistent(self) -> NvidiaPolicy:
        for root in (self.root, self.rim_root):
            if isinstance(root, SimulatorRoot):
                root.require_simulated()
        if isinstance(self.root, SimulatorRoot) != isinstance(self.rim_root, SimulatorRoot):
            raise ValueError("root and rim_root are either both simulated or both NVIDIA's")
        if self.mode == ("protected_pcie",) and self.switch_count == 0:
            raise ValueError(
                "in protected PCIe mode GPUs talk in clear through switches: say how many, or any"
            )
        if self.vbios_versions != "any":
            floors = [floor.architecture for floor in self.vbios_versions]
            if len(set(floors)) != len(floors):
                raise ValueError("vbios_versions names an architecture twice")
        return self


def driver_key(version: str) -> tuple[int, ...]:
    """A driver version as numbers, without trailing zeros.

    Raises:
        ValueError: Not decimal numbers between dots.
    """
    return _key(version, 10)


def vbios_key(version: str) -> tuple[int, ...]:
    """A VBIOS version as numbers.

    Raises:
        ValueError: Not hexadecimal numbers between dots.
    """
    return _key(version, 16)


def _key(version: str, base: int) -> tuple[int, ...]:
    parts = version.split(".")
    if len(version) > 64 or not all(part.isascii() and part.isalnum() for part in parts):
        raise ValueError("not a version")
    numbers = [int(part, base) for part in parts]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


_DAY = 24 * 3600


def board(architectures: list[str], count: int, switches: int, mode: list[str]) -> dict[str, Any]:
    """Hardware's rules for one kind of board, as parsed YAML."""
    return {
        "root": "nvidia",
        "rim_root": "nvidia",
        "gpu_count": count,
        "switch_count": switches,
        "architectures": architectures,
        "mode": mode,
        "cc": "on",
        "devtools": "off",
        "devices": [],
        "driver_versions": {"minimum": "570.0.0", "denied": []},
        "vbios_versions": [],
        "reference_values": "require",
        "revocation": "require",
        "max_ocsp_age_s": _DAY,
        "nras": "local",
    }
