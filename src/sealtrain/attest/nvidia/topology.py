"""What must hold for accelerators as a set: how many, which, in which mode, wired to whom.

The same comparisons judge what a guest collected and the files of NVIDIA's own tools. A file does
not hold what a measured guest read from its driver: whatever only the driver says is then shown as
not looked at, and whatever devices sign is compared all the same.

1. The measured guest read from the driver that confidential mode is on, developer mode off and the
   environment productive. No report says this by itself.
2. As many GPUs and switches as the policy names, and as many GPUs as the driver sees.
3. No device twice, one nonce, GPUs all alike, switches too.
4. One mode, on which feature flag, protected-PCIe status and the driver agree:

       driver             flag (where reported)   status (where reported)   mode
       protected_pcie     PPCIE                   on, must be reported      protected_pcie
       nvle               MPT                     off                       mpt
       none               MPT                     off                       mpt
       none               SPT or not reported     off                       single, one GPU only

5. Where switches are shown, and always in protected PCIe mode: every GPU names exactly the switches
   that are shown, and every switch exactly the GPUs that are shown. A part of a board is therefore
   missed by what its devices sign, however many the policy and the driver count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from sealtrain.attest.claims import Check, Claim, Group, among, claim_unchecked, equal, single
from sealtrain.attest.errors import GpuModeRefused, GpuNonceMismatch, GpuSetRefused
from sealtrain.attest.nvidia.device import VerifiedDevice
from sealtrain.attest.nvidia.parse import GpuClaims
from sealtrain.attest.nvidia.policy import GpuMode, NvidiaPolicy
from sealtrain.attest.nvidia.spdm import FeatureFlag

_DRIVER, _REPORTS = "driver, read by the measured guest", "GPU reports"
_UNSAID = "not in this file"


def protection_checks(claims: GpuClaims | None) -> tuple[Check, ...]:
    """Confidential mode on, developer mode off, productive environment; not compared yet.

    Args:
        claims: What the measured guest read; ``None`` where a file does not hold it.

    Each check raises ``GpuModeRefused`` where the driver says otherwise.
    """
    names = ("GPU environment", "GPU confidential computing", "GPU developer tools")
    if claims is None:
        return tuple(partial(claim_unchecked, name, _UNSAID, source=_DRIVER) for name in names)
    # Protected PCIe is a mode beside the plain feature, which then reads as off.
    protected = claims.cc_feature or claims.multi_gpu_mode == "protected_pcie"
    read = (
        (claims.environment, "PROD", "accelerators are not in production mode"),
        (_on(protected), "on", "accelerators do not protect their memory"),
        (
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
        for name, (got, expected, message) in zip(names, read, strict=True)
    )


def count_checks(
    gpus: int, switches: int, claims: GpuClaims | None, policy: NvidiaPolicy
) -> tuple[Check, ...]:
    """As many devices as the policy names, and as many GPUs as the driver sees; not compared yet.

    Each check raises ``GpuSetRefused`` where devices are missing or too many.
    """
    seen = partial(claim_unchecked, "GPUs of the driver", _UNSAID, source=_DRIVER)
    if claims is not None:
        seen = partial(
            equal,
            "GPUs of the driver",
            str(claims.gpu_count),
            str(gpus),
            source=_DRIVER,
            error=GpuSetRefused,
            message="guest shows other GPUs than its driver sees",
        )
    return (
        seen,
        partial(count_check, "GPUs", gpus, policy.gpu_count),
        partial(count_check, "NVSwitches", switches, policy.switch_count),
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


def topology_groups(
    devices: Sequence[VerifiedDevice], claims: GpuClaims | None, policy: NvidiaPolicy
) -> tuple[Group, ...]:
    """Comparisons 3 to 5 of the module, not made yet.

    Args:
        devices: Every device that is shown, verified.
        claims: What the measured guest read; ``None`` where a file does not hold it.
        policy: Which modes it accepts.

    The groups raise ``GpuSetRefused``, ``GpuNonceMismatch`` and ``GpuModeRefused``.
    """
    return (
        partial(check_distinct, devices),
        single(partial(_check_nonces, devices)),
        single(partial(_check_driver, devices, claims)),
        single(partial(_check_mode, devices, claims, policy)),
        partial(_check_wiring, devices, claims),
    )


def check_distinct(devices: Sequence[VerifiedDevice]) -> tuple[Claim, ...]:
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


def _check_nonces(devices: Sequence[VerifiedDevice]) -> Claim:
    """Reports of one conversation, whichever it is: reports of two are not one machine's."""
    first = devices[0].report.nonce.hex()
    other = next(
        (device.report.nonce.hex() for device in devices if device.report.nonce.hex() != first), ""
    )
    return equal(
        "nonce of the set",
        other or first,
        first,
        source=_REPORTS,
        error=GpuNonceMismatch,
        message="accelerators' reports were made for different conversations",
    )


def _check_driver(devices: Sequence[VerifiedDevice], claims: GpuClaims | None) -> Claim:
    """The driver that the guest read is the one that GPUs report."""
    if claims is None:
        return claim_unchecked("GPU driver of the guest", _UNSAID, source=_DRIVER)
    return equal(
        "GPU driver of the guest",
        claims.driver_version,
        _gpus(devices)[0].driver_version,
        source=_DRIVER,
        error=GpuModeRefused,
        message="guest runs another driver than its GPUs report",
    )


def _check_mode(
    devices: Sequence[VerifiedDevice], claims: GpuClaims | None, policy: NvidiaPolicy
) -> Claim:
    return among(
        "GPU mode",
        mode_of(devices, claims),
        policy.mode,
        source=_REPORTS if claims is None else f"{_REPORTS}, {_DRIVER}",
        error=GpuModeRefused,
        message="GPUs are in a mode that the policy does not accept",
    )


def mode_of(devices: Sequence[VerifiedDevice], claims: GpuClaims | None) -> GpuMode:
    """The mode of a set on which every source agrees.

    Args:
        devices: Every device that is shown, verified.
        claims: What the measured guest read; ``None`` leaves it to what the GPUs report.

    Raises:
        GpuModeRefused: Sources disagree, or GPUs differ.
        GpuSetRefused: No GPU is shown.
    """
    gpus = _gpus(devices)
    flags = {gpu.report.feature_flag for gpu in gpus}
    statuses = {gpu.report.protected_pcie for gpu in gpus}
    if len(flags) > 1 or len(statuses) > 1:
        raise _mode_refusal("GPUs of one set are in different modes", gpus, claims, "one mode")
    flag, status = flags.pop(), statuses.pop()
    driver = None if claims is None else claims.multi_gpu_mode
    reported = status is True or flag is FeatureFlag.PPCIE
    if driver == "protected_pcie" or (driver is None and reported):
        if status is not True or flag not in (None, FeatureFlag.PPCIE):
            raise _mode_refusal("GPUs do not report protected PCIe", gpus, claims, "PPCIE, on")
        return "protected_pcie"
    if reported:
        raise _mode_refusal(
            "GPUs report protected PCIe, their driver does not", gpus, claims, "protected_pcie"
        )
    if flag is FeatureFlag.MPT:
        return "mpt"
    if driver == "nvle":
        raise _mode_refusal("GPUs do not report encrypted NVLink", gpus, claims, "MPT")
    if len(gpus) > 1:
        raise _mode_refusal(
            "nothing says how GPUs protect what they say to each other",
            gpus,
            claims,
            "feature flag MPT or PPCIE",
            hint="use a driver that reports the feature flag, or one GPU for each guest",
        )
    return "single"


def _check_wiring(devices: Sequence[VerifiedDevice], claims: GpuClaims | None) -> tuple[Claim, ...]:
    gpus, switches = _gpus(devices), [device for device in devices if device.kind == "switch"]
    if not switches and mode_of(devices, claims) != "protected_pcie":
        return ()
    for switch in switches:
        if switch.report.own_pdi != switch.pdi:
            raise GpuSetRefused(
                "NVSwitch reports another identity than it is certified for",
                check="NVSwitch topology",
                got=switch.report.own_pdi or "none",
                expected=switch.pdi or "none",
            )
    return (
        _names("GPU", [gpu.report.switch_pdis for gpu in gpus], "NVSwitches", switches),
        _names("NVSwitch", [switch.report.gpu_pdis for switch in switches], "GPUs", gpus),
    )


def _names(
    who: str, named: Sequence[frozenset[str]], whom: str, shown: Sequence[VerifiedDevice]
) -> Claim:
    """Each device of one kind names exactly the devices of the other kind that are shown."""
    identities = frozenset(device.pdi for device in shown)
    # Without identities a list of none would fit a set of none.
    wrong = next((found for found in named if found != identities), None)
    if wrong is not None or not named or not identities or "" in identities:
        raise GpuSetRefused(
            f"{who} names other {whom} than those shown",
            check=f"{who} topology",
            got=_join_values(wrong or ()),
            expected=_join_values(identities),
            hint="show every GPU and NVSwitch of the machine, and only those",
        )
    return Claim(
        name=f"{who} topology",
        got=_join_values(identities),
        expected=_join_values(identities),
        source="GPU and NVSwitch reports",
        outcome="equal",
    )


def _gpus(devices: Sequence[VerifiedDevice]) -> list[VerifiedDevice]:
    found = [device for device in devices if device.kind == "gpu"]
    if not found:
        raise GpuSetRefused("no GPU is shown", check="GPUs", got=0, expected="at least 1")
    return found


def _mode_refusal(
    message: str,
    gpus: Sequence[VerifiedDevice],
    claims: GpuClaims | None,
    expected: str,
    *,
    hint: str | None = None,
) -> GpuModeRefused:
    flags = _join_values(
        "no flag" if gpu.report.feature_flag is None else gpu.report.feature_flag.name
        for gpu in gpus
    )
    statuses = _join_values(
        "not reported" if gpu.report.protected_pcie is None else _on(gpu.report.protected_pcie)
        for gpu in gpus
    )
    driver = _UNSAID if claims is None else claims.multi_gpu_mode
    return GpuModeRefused(
        message,
        check="GPU mode",
        got=f"flag {flags}; protected PCIe {statuses}; driver {driver}",
        expected=expected,
        hint=hint,
    )


def _on(state: bool) -> str:
    return "on" if state else "off"


def _join_values(values: Iterable[str]) -> str:
    return ", ".join(sorted(set(values))) or "none"
