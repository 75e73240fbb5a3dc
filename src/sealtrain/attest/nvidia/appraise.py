"""Appraisal of one accelerator: family, identity, driver and firmware versions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from sealtrain.attest.claims import Check, Claim, among, claim_unchecked
from sealtrain.attest.errors import PlatformMismatch, TcbStatusRefused
from sealtrain.attest.nvidia.device import VerifiedDevice
from sealtrain.attest.nvidia.policy import (
    DriverFloor,
    NvidiaPolicy,
    VbiosFloor,
    driver_key,
    vbios_key,
)

_REPORT, _CERTIFICATE = "GPU report", "GPU certificate"
_SHOWN = 8
_NVIDIA_PEN = "5703"  # NVIDIA's private enterprise number, IANA


def checks_of_device(device: VerifiedDevice, policy: NvidiaPolicy) -> tuple[Check, ...]:
    """Comparisons of one verified device with reference values, not made yet.

    Args:
        device: Output of ``verify_device``.
        policy: Reference values.

    Each raises ``PlatformMismatch`` for a family or device that the policy does not list, or
    ``TcbStatusRefused`` for a driver or VBIOS below its floor, denied, or without one.
    """
    families = ("LS10",) if device.kind == "switch" else policy.architectures
    checks: list[Check] = [
        partial(
            among,
            "architecture",
            device.architecture,
            families,
            source=_CERTIFICATE,
            error=PlatformMismatch,
            message="accelerator is of another family than the policy accepts",
        ),
        partial(
            among,
            "device",
            device.ueid,
            policy.devices,
            source=_CERTIFICATE,
            error=PlatformMismatch,
            message="accelerator is not one that the policy lists",
        ),
        partial(claim_unchecked, "signed report", device.report.identity, source=_REPORT),
    ]
    if device.kind == "gpu":
        checks.append(partial(_driver, device, policy))
    checks.append(partial(_vbios, device, policy))
    if device.report.fwid is not None:
        checks.append(partial(_fwid, device.report.fwid.hex()))
    return tuple(checks)


def eat(device: VerifiedDevice) -> dict[str, str]:
    """Claims by their RFC 9711 names. A switch has no ``swversion``."""
    names = {
        "ueid": device.ueid,
        "oemid": _NVIDIA_PEN,
        "hwmodel": device.hwmodel,
        "hwversion": device.vbios_version,
        "dbgstat": "disabled",
    }
    if device.driver_version:
        names["swversion"] = device.driver_version
    return names


_UPDATES = {
    "driver version": "install NVIDIA driver {minimum} or newer in the guest's image",
    "VBIOS version": "the machine's operator updates the device's VBIOS (a switch's firmware) to "
    "{minimum} or newer",
}


def _fwid(fwid: str) -> Claim:
    # Equal to what the certificate was made for, or the device would not have verified.
    return Claim(name="firmware id", got=fwid, expected=fwid, source=_CERTIFICATE, outcome="equal")


def _driver(device: VerifiedDevice, policy: NvidiaPolicy) -> Claim:
    floor = policy.driver_versions
    if floor == "any":
        return claim_unchecked("driver version", device.driver_version, source=_REPORT)
    return _floor("driver version", device.driver_version, floor, driver_key)


def _vbios(device: VerifiedDevice, policy: NvidiaPolicy) -> Claim:
    if policy.vbios_versions == "any":
        return claim_unchecked("VBIOS version", device.vbios_version, source=_REPORT)
    for floor in policy.vbios_versions:
        if floor.architecture == device.architecture:
            return _floor("VBIOS version", device.vbios_version, floor, vbios_key)
    raise TcbStatusRefused(
        "policy has no VBIOS floor for this family",
        check="VBIOS version",
        got=f"{device.architecture} {device.vbios_version}",
        expected=", ".join(floor.architecture for floor in policy.vbios_versions),
        hint="add a floor for each architecture that may take part, switches (LS10) included",
    )


def _floor(
    name: str,
    version: str,
    floor: DriverFloor | VbiosFloor,
    key: Callable[[str], tuple[int, ...]],
) -> Claim:
    expected = f"at least {floor.minimum}"
    if floor.denied:
        expected += f", not {', '.join(floor.denied[:8])}" + (
            ", …" if len(floor.denied) > 8 else ""
        )
    try:
        found = key(version)
    except ValueError:
        found = None
    if (
        found is None
        or found < key(floor.minimum)
        or found in [key(denied) for denied in floor.denied]
    ):
        raise TcbStatusRefused(
            f"accelerator's {name} is too old, denied or not a version",
            check=name,
            got=version,
            expected=expected,
            hint=_UPDATES[name].format(minimum=floor.minimum),
        )
    return Claim(name=name, got=version, expected=expected, source=_REPORT, outcome="allowed")
