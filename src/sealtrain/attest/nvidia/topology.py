"""What must hold for accelerators as a set: how many, which, in which mode, wired to whom.

1. The measured guest read from the driver that confidential mode is on, developer mode off and the
   environment productive. No report says this by itself.
2. As many GPUs and switches as the policy names, no device twice, GPUs all alike, switches too.
3. One mode, on which feature flag, protected-PCIe status and the driver agree:

       driver             flag (where reported)   status (where reported)   mode
       protected_pcie     PPCIE                   on, must be reported      protected_pcie
       nvle               MPT                     off                       mpt
       none               MPT                     off                       mpt
       none               SPT or not reported     off                       single, one GPU only

4. Where switches are attested, and always in protected PCIe mode: every GPU is wired to the same
   switches, and those are the ones attested.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from sealtrain.attest.claims import Check, Claim, among, equal, held, unlooked
from sealtrain.attest.nvidia.device import VerifiedDevice
from sealtrain.attest.nvidia.parse import GpuClaims
from sealtrain.attest.nvidia.policy import GpuMode, NvidiaPolicy
from sealtrain.attest.nvidia.spdm import FeatureFlag
from sealtrain.errors import GpuModeRefused, GpuSetRefused

__all__ = [
    "check_counts",
    "check_driver",
    "check_mode",
    "check_protection",
    "check_set",
    "count_check",
    "protection_checks",
]

_DRIVER, _REPORTS = "driver, read by the measured guest", "GPU reports"


def check_protection(claims: GpuClaims) -> tuple[Claim, ...]:
    """Confidential mode on, developer mode off, productive environment.

    Raises:
        GpuModeRefused: One of them is not so.
    """
    return held(protection_checks(claims))


def protection_checks(claims: GpuClaims) -> tuple[Check, ...]:
    """The comparisons of ``check_protection``, not made yet."""
    wanted = (
        ("GPU environment", claims.environment, "PROD", "accelerators are not in production mode"),
        (
            "GPU confidential computing",
            # Protected PCIe is a mode beside the plain feature, which then reads as off.
            _on(claims.cc_feature or claims.multi_gpu_mode == "protected_pcie"),
            "on",
            "accelerators do not protect their memory",
        ),
        (
            "GPU developer tools",
            _on(claims.dev_tools),
            "off",
            "accelerators are in developer mode: the host can read them",
        ),
    )
    return tuple(
        partial(
            equal,
            name,
            got,
            expected,
            source=_DRIVER,
            error=GpuModeRefused,
            message=message,
            hint="set the GPUs' CC mode on the host and start the guest again",
        )
        for name, got, expected, message in wanted
    )


def check_counts(
    gpus: int, switches: int, claims: GpuClaims, policy: NvidiaPolicy
) -> tuple[Claim, ...]:
    """As many devices as the policy names, and as many GPUs as the driver sees.

    Raises:
        GpuSetRefused: Devices are missing, or there are too many.
    """
    equal(
        "GPUs",
        str(gpus),
        str(claims.gpu_count),
        source=_DRIVER,
        error=GpuSetRefused,
        message="guest shows other GPUs than its driver sees",
    )
    return (
        count_check("GPUs", gpus, policy.gpu_count),
        count_check("NVSwitches", switches, policy.switch_count),
    )


def check_set(devices: Sequence[VerifiedDevice]) -> tuple[Claim, ...]:
    """No device twice; GPUs alike, switches alike.

    Raises:
        GpuSetRefused: A device occurs twice, or two of a kind differ in firmware or family.
    """
    # Leaf and device certificate both, so that a device with two firmware keys is still one.
    for name, found in (
        ("device", [device.ueid for device in devices]),
        ("device", [device.device_serial for device in devices]),
        ("NVSwitch", [device.report.own_pdi for device in devices if device.kind == "switch"]),
        ("report", [device.report.identity for device in devices]),
    ):
        for value in found:
            if found.count(value) > 1:
                raise GpuSetRefused(
                    f"the same {name} is shown more than once",
                    check="GPU set",
                    got=value,
                    expected="distinct devices",
                )
    claims = [
        Claim(
            name="distinct devices",
            got=str(len(devices)),
            expected=str(len(devices)),
            source="GPU certificates",
            outcome="equal",
        )
    ]
    for kind, label in (("gpu", "GPU"), ("switch", "NVSwitch")):
        alike = [device for device in devices if device.kind == kind]
        for name, values in (
            ("architecture", {device.architecture for device in alike}),
            ("driver", {device.driver_version for device in alike}),
            ("VBIOS", {device.vbios_version for device in alike}),
        ):
            if len(values) > 1:
                raise GpuSetRefused(
                    f"devices of one set differ in their {name}",
                    check=f"{label} {name}",
                    got=", ".join(sorted(values)),
                    expected="one version",
                )
        if len(alike) > 1:
            same = f"{alike[0].driver_version} {alike[0].vbios_version}".strip()
            claims.append(
                Claim(
                    name=f"{label} firmware of the set",
                    got=same,
                    expected=same,
                    source=_REPORTS,
                    outcome="equal",
                )
            )
    return tuple(claims)


def check_driver(gpus: Sequence[VerifiedDevice], claims: GpuClaims) -> Claim:
    """The driver the guest read is the one that GPUs report.

    Raises:
        GpuModeRefused: Another version.
    """
    return equal(
        "GPU driver of the guest",
        claims.driver_version,
        gpus[0].driver_version,
        source=_DRIVER,
        error=GpuModeRefused,
        message="guest runs another driver than its GPUs report",
    )


def check_mode(
    devices: Sequence[VerifiedDevice], claims: GpuClaims, policy: NvidiaPolicy
) -> tuple[GpuMode, tuple[Claim, ...]]:
    """Mode of the set, agreed on by every source, among the policy's; and its wiring.

    Raises:
        GpuModeRefused: Sources disagree, GPUs differ, or the policy does not accept the mode.
        GpuSetRefused: GPUs are wired to other switches than those attested.
    """
    gpus = [device for device in devices if device.kind == "gpu"]
    switches = [device for device in devices if device.kind == "switch"]
    flags = {gpu.report.feature_flag for gpu in gpus}
    statuses = {gpu.report.protected_pcie for gpu in gpus}
    if len(flags) > 1 or len(statuses) > 1:
        raise _mode_refusal("GPUs of one set are in different modes", gpus, claims, "one mode")
    flag, status = flags.pop(), statuses.pop()
    mode: GpuMode
    if claims.multi_gpu_mode == "protected_pcie":
        if status is not True or flag not in (None, FeatureFlag.PPCIE):
            raise _mode_refusal("GPUs do not report protected PCIe", gpus, claims, "PPCIE, on")
        mode = "protected_pcie"
    elif status is True or flag is FeatureFlag.PPCIE:
        raise _mode_refusal(
            "GPUs report protected PCIe, their driver does not", gpus, claims, "protected_pcie"
        )
    elif flag is FeatureFlag.MPT:
        mode = "mpt"
    elif claims.multi_gpu_mode == "nvle":
        raise _mode_refusal("GPUs do not report encrypted NVLink", gpus, claims, "MPT")
    elif len(gpus) > 1:
        raise _mode_refusal(
            "nothing says how GPUs protect what they say to each other",
            gpus,
            claims,
            "feature flag MPT or PPCIE",
            hint="use a driver that reports the feature flag, or one GPU for each guest",
        )
    else:
        mode = "single"
    accepted = among(
        "GPU mode",
        mode,
        policy.mode,
        source=f"{_REPORTS}, {_DRIVER}",
        error=GpuModeRefused,
        message="GPUs are in a mode that the policy does not accept",
    )
    return mode, (accepted, *_check_wiring(gpus, switches, mode, policy))


def _check_wiring(
    gpus: Sequence[VerifiedDevice],
    switches: Sequence[VerifiedDevice],
    mode: GpuMode,
    policy: NvidiaPolicy,
) -> tuple[Claim, ...]:
    if not switches and mode != "protected_pcie":
        return ()
    wired = {gpu.report.switch_pdis for gpu in gpus}
    if len(wired) > 1:
        raise GpuSetRefused(
            "GPUs are wired to different switches",
            check="GPU topology",
            got=f"{len(wired)} different sets",
            expected="the same switches for every GPU",
        )
    named = wired.pop()
    if not switches and policy.switch_count == "any":
        return (unlooked("GPU topology", _listed(named), source=_REPORTS),)
    own = frozenset(switch.report.own_pdi for switch in switches)
    if named != own:
        raise GpuSetRefused(
            "GPUs are wired to other switches than those attested",
            check="GPU topology",
            got=_listed(named),
            expected=_listed(own),
            hint="attest every switch of the machine, and only those",
        )
    return (
        Claim(
            name="GPU topology",
            got=_listed(named),
            expected=_listed(own),
            source="GPU and NVSwitch reports",
            outcome="equal",
        ),
    )


def count_check(name: str, got: int, expected: int | str) -> Claim:
    """Compare a number of devices with a policy's; ``any`` accepts every one.

    Raises:
        GpuSetRefused: Another number.
    """
    return equal(
        name,
        str(got),
        None if expected == "any" else str(expected),
        source=_REPORTS,
        error=GpuSetRefused,
        message=f"guest shows another number of {name} than the policy asks for",
    )


def _mode_refusal(
    message: str,
    gpus: Sequence[VerifiedDevice],
    claims: GpuClaims,
    expected: str,
    *,
    hint: str | None = None,
) -> GpuModeRefused:
    flags = _listed(
        "no flag" if gpu.report.feature_flag is None else gpu.report.feature_flag.name
        for gpu in gpus
    )
    statuses = _listed(
        "not reported" if gpu.report.protected_pcie is None else _on(gpu.report.protected_pcie)
        for gpu in gpus
    )
    return GpuModeRefused(
        message,
        check="GPU mode",
        got=f"flag {flags}; protected PCIe {statuses}; driver {claims.multi_gpu_mode}",
        expected=expected,
        hint=hint,
    )


def _on(state: bool) -> str:
    return "on" if state else "off"


def _listed(values: Iterable[str]) -> str:
    return ", ".join(sorted(set(values))) or "none"
