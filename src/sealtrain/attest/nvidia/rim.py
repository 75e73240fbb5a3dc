"""Reference values: what NVIDIA says its drivers, VBIOS and switch firmware measure as.

1. The file is authentic (``swid``) and its signer valid at ``now``, except where the policy names
   the file's own SHA-256: NVIDIA's signers live from months to two years, its files longer.
2. It is for the version the device reports.
3. For every active index ``i`` one of its digests equals measurement block ``i + 1`` of the report.
   The index of the video decoder counts only where the decoder is not off.
4. A GPU's driver and VBIOS each have a file, and the two share no active index.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass

from sealtrain.attest.claims import Claim, claim_unchecked, equal
from sealtrain.attest.errors import ReferenceValueInvalid, ReferenceValueMismatch
from sealtrain.attest.nvidia.collateral import GpuCollateral
from sealtrain.attest.nvidia.device import VerifiedDevice
from sealtrain.attest.nvidia.policy import NvidiaPolicy
from sealtrain.attest.nvidia.swid import Rim, authentic_rim, parse_rim
from sealtrain.base.clock import to_rfc3339
from sealtrain.base.digests import sha256_hex

__all__ = [
    "NVIDIA_RIM_ROOT_SHA256",
    "Rim",
    "VerifiedRim",
    "check_reference_values",
    "compare_measurements",
    "parse_rim",
    "rim_ids",
    "verify_rim",
]

NVIDIA_RIM_ROOT_SHA256 = "12977b5115acb0381179279fffeb5a8c4d264971ebb32298023a465fa41df5d1"
"""SHA-256 of the certificate ``NVIDIA CoRIM signing Root CA`` (DER)."""

_CHECK = "reference values"
_SOURCE = "GPU report and reference values"
_DRIVER_FILES = {"HOPPER": "NV_GPU_DRIVER_GH100", "BLACKWELL": "NV_GPU_CC_DRIVER_GB100"}
_SWITCH_FILES = "NV_SWITCH_BIOS_5612_0002_890"  # switch reports do not name their board
_COMPONENTS = (
    ("_DRIVER_", "reinstall the driver of that version from NVIDIA's own package"),
    ("NV_GPU_VBIOS_", "the machine's operator installs the board's VBIOS of that version anew"),
    ("NV_SWITCH_", "the machine's operator installs the switch's firmware of that version anew"),
)
"""Part of a file's name → what to do about the component that it is for."""
_SHOWN = 4
_DECODER = 35
"""Index that holds the state of a video decoder where there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedRim:
    """Reference values whose signature and chain hold.

    Attributes:
        rim: The values, read from what was signed.
        simulated: Whether a simulator signed them.
        pinned: Whether the policy names this very file.
        not_before: First second at which every certificate of the signer's chain is valid.
        not_after: Last such second.
    """

    rim: Rim
    simulated: bool
    pinned: bool
    not_before: int
    not_after: int


def verify_rim(xml: bytes, *, simulator_root: bytes | None, now: int, pinned: bool) -> VerifiedRim:
    """Verify a file and return its values.

    Args:
        xml: The file.
        simulator_root: Root certificate (DER) of a simulator; ``None`` for NVIDIA's.
        now: Verification time, seconds since 1970.
        pinned: The policy names the SHA-256 of this file: its signer may have expired since.

    Raises:
        ReferenceValueInvalid: Form, signature, chain or dates do not hold.
    """
    root = NVIDIA_RIM_ROOT_SHA256 if simulator_root is None else sha256_hex(simulator_root)
    rim, start, end = authentic_rim(bytes(xml), root)
    if not pinned and not start <= now <= end:
        raise ReferenceValueInvalid(
            "signer of the reference values is not valid at this time",
            check=_CHECK,
            got=to_rfc3339(now),
            expected=f"{to_rfc3339(start)} to {to_rfc3339(end)}",
            hint="fetch the file anew, or pin its SHA-256 in the policy after reviewing it",
        )
    return VerifiedRim(
        rim=rim,
        simulated=simulator_root is not None,
        pinned=pinned,
        not_before=start,
        not_after=end,
    )


def rim_ids(device: VerifiedDevice) -> tuple[str, ...]:
    """Names of the files for a device: driver and VBIOS of a GPU, firmware of a switch."""
    return tuple(rim_id for rim_id, _ in _files(device))


def check_reference_values(
    device: VerifiedDevice,
    collateral: GpuCollateral | None,
    policy: NvidiaPolicy,
    *,
    simulator_root: bytes | None,
    now: int,
) -> tuple[Claim, ...]:
    """Compare a device's measurements with the vendor's files.

    Args:
        device: Verified, so that its versions and measurements are its own.
        collateral: Where the files are.
        policy: Whether files are asked for, and which.
        simulator_root: Root (DER) of a simulator's reference values; ``None`` for NVIDIA's.
        now: Verification time, seconds since 1970.

    Raises:
        ReferenceValueInvalid: A file is not authentic, or not one that the policy pins.
        ReferenceValueMismatch: A file is missing, for another version, or differs.
    """
    if policy.reference_values == "any":
        return (claim_unchecked("reference values", "not compared", source=_SOURCE),)
    claims: list[Claim] = []
    taken: set[int] = set()
    for rim_id, version in _files(device):
        verified = _verify_rim(rim_id, collateral, policy, simulator_root=simulator_root, now=now)
        claims.append(
            equal(
                f"{rim_id} version",
                version.upper(),
                verified.rim.version.upper(),
                source=_SOURCE,
                error=ReferenceValueMismatch,
                message="reference values are for another version",
                hint="the file under this name is another version's; fetch collateral anew",
            )
        )
        shared = sorted(taken & set(verified.rim.measurements))
        if shared:
            raise _mismatch(
                "two files of reference values share an index",
                rim_id,
                f"index {shared[0]} in both files",
                "each index in one file",
            )
        taken |= set(verified.rim.measurements)
        claims.append(compare_measurements(device, verified.rim, name=rim_id))
    return tuple(claims)


def compare_measurements(device: VerifiedDevice, rim: Rim, *, name: str) -> Claim:
    """Compare a device with one file's active indices.

    Args:
        rim: From ``verify_rim``.
        name: Name of the file, for claim and messages.

    Raises:
        ReferenceValueMismatch: A measurement is missing or equals none of its values.
    """
    compared = 0
    for index, values in sorted(rim.measurements.items()):
        if index == _DECODER and device.kind == "gpu" and device.nvdec0 == "off":
            continue
        got = device.measurements.get(index + 1)
        if got is None or not any(hmac.compare_digest(got, value) for value in values):
            shown = ", ".join(value.hex() for value in values[:_SHOWN])
            raise _mismatch(
                f"{name}: firmware differs from the vendor's reference values",
                name,
                f"{name} index {index}: {'no such block' if got is None else got.hex()}",
                f"{name} index {index}: {shown}" + (", …" if len(values) > _SHOWN else ""),
            )
        compared += 1
    return Claim(
        name=f"{name} measurements",
        got=f"{compared} of {len(rim.measurements)} compared, all equal",
        expected="each equal to one of its reference values",
        source=_SOURCE,
        outcome="equal",
    )


def _files(device: VerifiedDevice) -> tuple[tuple[str, str], ...]:
    """Name of each file with the version it must be for."""
    version = device.vbios_version
    plain = version.replace(".", "").upper()
    if device.kind == "switch":
        return ((f"{_SWITCH_FILES}_{plain}", version),)
    board = f"{device.project}_{device.project_sku}_{device.chip_sku}"
    return (
        (f"{_DRIVER_FILES[device.architecture]}_{device.driver_version}", device.driver_version),
        (f"NV_GPU_VBIOS_{board}_{plain}", version),
    )


def _verify_rim(
    rim_id: str,
    collateral: GpuCollateral | None,
    policy: NvidiaPolicy,
    *,
    simulator_root: bytes | None,
    now: int,
) -> VerifiedRim:
    xml = None if collateral is None else collateral.rim(rim_id)
    if xml is None:
        raise ReferenceValueMismatch(
            "reference values for a device's firmware are missing",
            check=_CHECK,
            got="no such file",
            expected=rim_id,
            hint="fetch collateral for this device: sealtrain attest fetch",
        )
    pins = policy.reference_values if isinstance(policy.reference_values, dict) else None
    if pins is not None and sha256_hex(xml) not in pins.get(rim_id, ()):
        raise ReferenceValueInvalid(
            "file of reference values is not one that the policy pins",
            check=_CHECK,
            got=f"{rim_id} sha256 {sha256_hex(xml)}",
            expected=", ".join(pins.get(rim_id, ())) or f"no file {rim_id}",
            hint="review the file, then add its SHA-256 to the policy",
        )
    return verify_rim(xml, simulator_root=simulator_root, now=now, pinned=pins is not None)


def _mismatch(message: str, rim_id: str, got: str, expected: str) -> ReferenceValueMismatch:
    """A mismatch whose hint names the component that the file is for."""
    component = next((told for begin, told in _COMPONENTS if begin in rim_id), "the firmware")
    return ReferenceValueMismatch(
        message,
        check=_CHECK,
        got=got,
        expected=expected,
        hint="NVIDIA re-issues files: fetch collateral anew; then stop the machine and start it; "
        f"if it persists, {component}",
    )
