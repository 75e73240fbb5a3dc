"""``image measure``: what an owner pins of a machine, computed from the files that it boots."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from sealtrain.base.files import open_regular, read_bounded
from sealtrain.base.limits import MAX_DEPLOYMENT_BYTES
from sealtrain.base.yamltext import yaml_text
from sealtrain.cli.output import Json, emit, say
from sealtrain.errors import UsageError

if TYPE_CHECKING:
    from sealtrain.image.machine.registers import Algorithm
    from sealtrain.image.machine.unified import Unified

_MAX_BYTES: Final = 2 << 30
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_ACPI: Final = "depends on the ACPI tables of the host's QEMU: only the machine's log tells it"
_GPT: Final = "needs --disk: it is of the partition table of the disk that is booted"
_SHIM: Final = "needs --document, of an image whose init extends it; a shim extends it too"
_FULL: Final = "is set when a guest is launched, and in no file"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustDomainOptions:
    """A TDX guest that QEMU boots directly, as dstack's images are booted; or with a UKI."""

    firmware: Annotated[
        Path | None, typer.Option(help="TDX firmware (OVMF), of a TDX guest: gives MRTD.")
    ] = None
    kernel: Annotated[Path | None, typer.Option(help="Its kernel (bzImage).")] = None
    initrd: Annotated[Path | None, typer.Option(help="Its initrd.")] = None
    command_line: Annotated[
        str | None,
        typer.Option(help="Kernel command line, as QEMU or the boot loader is given it."),
    ] = None
    guest_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Of the guest: 2G, 512M, or bytes.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnifiedOptions:
    """A machine with a virtual TPM that boots a unified kernel image."""

    uki: Annotated[
        Path | None,
        typer.Option(
            help="Unified kernel image, of a machine with a virtual TPM; with --firmware, of a TDX "
            "guest that boots it from a disk."
        ),
    ] = None
    tpm: Annotated[
        str, typer.Option(help="Digest of its PCRs: sha384 (NitroTPM) or sha256 (other clouds).")
    ] = "sha384"
    stub: Annotated[
        int | None, typer.Option(min=252, max=999, help="Version of the UKI's systemd-stub.")
    ] = None
    disk: Annotated[
        Path | None, typer.Option(help="Disk image that is booted: gives PCR 5, of its GPT.")
    ] = None
    document: Annotated[
        Path | None,
        typer.Option(help="Deployment document: PCR 14 of an image whose init extends it once."),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """A SEV-SNP guest."""

    snp_firmware: Annotated[
        Path | None,
        typer.Option(help="SEV-SNP firmware (OVMF), of a SEV-SNP guest: gives MEASUREMENT."),
    ] = None
    vcpus: Annotated[
        int | None, typer.Option(min=1, max=4096, help="Number of the SEV-SNP guest's CPUs.")
    ] = None
    vcpu_type: Annotated[
        str | None, typer.Option(help="Their model as QEMU calls it, such as EPYC-v4.")
    ] = None
    monitor: Annotated[
        str, typer.Option(help="What starts the SEV-SNP guest: qemu, gce or ec2.")
    ] = "qemu"
    guest_features: Annotated[
        int, typer.Option(min=0, max=(1 << 63) - 1, help="SEV_FEATURES of the SEV-SNP guest.")
    ] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GoogleOptions:
    """Firmware of Google's, whose measurements Google signed."""

    google_endorsement: Annotated[
        Path | None,
        typer.Option(help="Google's endorsement of a firmware: gives MRTD and MEASUREMENT."),
    ] = None
    google_root: Annotated[
        Path | None, typer.Option(help="Google's root for it, GCE-cc-tcb-root_1.crt (DER or PEM).")
    ] = None


def measure(
    domain: TrustDomainOptions,
    unified: UnifiedOptions,
    launch: LaunchOptions,
    google: GoogleOptions,
    *,
    eif: Annotated[
        Path | None, typer.Option(help="Enclave image file, of a Nitro enclave: gives PCR 0 to 2.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compute what a machine's registers hold after it booted these files; nothing is started.

    The values go into an appraisal policy. What no file can tell is named, with the reason.
    """
    others = (launch.snp_firmware, eif, google.google_endorsement)
    if domain.firmware is not None and unified.uki is not None and not any(others):
        _show(_measure_disk(domain, unified, domain.firmware, unified.uki), as_json)
        return
    machines = (domain.firmware, launch.snp_firmware, unified.uki, eif, google.google_endorsement)
    named = [machine is not None for machine in machines]
    if sum(named) != 1:
        raise UsageError(
            "name one machine to measure",
            check="machine",
            got=f"{sum(named)} of them",
            expected="--firmware (TDX), --snp-firmware (SEV-SNP), --uki (a virtual TPM), --eif "
            "(Nitro) or --google-endorsement",
        )
    if domain.firmware is not None:
        found = _measure_domain(domain, domain.firmware)
    elif launch.snp_firmware is not None:
        found = _measure_launch(launch, launch.snp_firmware, domain)
    elif unified.uki is not None:
        found = _measure_uki(unified, unified.uki, domain.command_line)
    elif google.google_endorsement is not None:
        found = _read_endorsement(google.google_endorsement, google.google_root)
    else:
        found = _measure_eif(eif or Path())
    _show(found, as_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Registers:
    """What was computed, and what was not.

    Attributes:
        values: Name of a register → value, hex.
        unknown: Name of a register → why these files do not tell it.
        policy: The part of an appraisal policy that pins the values; ``None`` where a value that a
            policy needs is unknown.
    """

    values: dict[str, str]
    unknown: dict[str, str]
    policy: dict[str, Any] | None


def _measure_domain(domain: TrustDomainOptions, firmware: Path) -> _Registers:
    from sealtrain.image.machine.trustdomain import measure_firmware, rtmr1, rtmr2

    digests = measure_firmware(_read(firmware))
    values = {"mrtd": digests.two_pass, "mrtd (single pass)": digests.single_pass}
    unknown = {"rtmr0": _ACPI, "rtmr3": "is extended by the running guest: replay its log"}
    if domain.kernel is None or domain.initrd is None:
        unknown["rtmr1"] = "needs --kernel, --initrd and --guest-memory"
        unknown["rtmr2"] = "needs --command-line and --initrd"
        return _Registers(values=values, unknown=unknown, policy=None)
    initrd = _read(domain.initrd)
    if domain.guest_memory is None:
        unknown["rtmr1"] = "needs --guest-memory: QEMU tells the kernel where the initrd is"
    else:
        size = _bytes_of(domain.guest_memory)
        values["rtmr1"] = rtmr1(_read(domain.kernel), len(initrd), size)
    if domain.command_line is None:
        unknown["rtmr2"] = "needs --command-line"
    else:
        values["rtmr2"] = rtmr2(domain.command_line, initrd)
    if not {"rtmr1", "rtmr2"} <= values.keys():
        return _Registers(values=values, unknown=unknown, policy=None)
    image = {name: values[name] for name in ("mrtd", "rtmr1", "rtmr2")} | {"rtmr0": "log"}
    return _Registers(values=values, unknown=unknown, policy={"measurements": [image]})


def _measure_disk(
    domain: TrustDomainOptions, unified: UnifiedOptions, firmware: Path, uki: Path
) -> _Registers:
    """A TDX guest that boots a UKI from a disk."""
    from sealtrain.image.machine.disk import (
        GPT_BYTES,
        PartitionTable,
        document_rtmr3,
    )
    from sealtrain.image.machine.disk_boot import disk_rtmr1, disk_rtmr2
    from sealtrain.image.machine.trustdomain import measure_firmware

    if domain.kernel is not None or domain.initrd is not None:
        raise UsageError(
            "a guest boots a kernel or a UKI, and not both",
            check="--uki",
            got="--kernel or --initrd, too",
            hint="leave --kernel and --initrd out: they are sections of the UKI",
        )
    how = replace(_check_unified(unified, domain.command_line), algorithm="sha384")
    stub, data = unified.stub or 0, _read(uki)
    digests = measure_firmware(_read(firmware))
    values = {"mrtd": digests.two_pass, "mrtd (single pass)": digests.single_pass}
    unknown = {"rtmr0": _ACPI}
    if unified.disk is None:
        unknown["rtmr1"] = _GPT
    else:
        table = PartitionTable.of_disk(_read_start(unified.disk, GPT_BYTES))
        values["rtmr1"] = disk_rtmr1(table, data, how)
    values["rtmr2"] = disk_rtmr2(data, how, stub, has_tpm=False)
    values["rtmr2 (with a TPM)"] = disk_rtmr2(data, how, stub, has_tpm=True)
    if unified.document is None:
        unknown["rtmr3"] = _SHIM
    else:
        values["rtmr3"] = document_rtmr3(read_bounded(unified.document, MAX_DEPLOYMENT_BYTES))
    if "rtmr1" not in values:
        return _Registers(values=values, unknown=unknown, policy=None)
    image = {name: values[name] for name in ("mrtd", "rtmr1", "rtmr2")} | {"rtmr0": "log"}
    return _Registers(values=values, unknown=unknown, policy={"measurements": [image]})


def _measure_launch(
    launch: LaunchOptions, firmware: Path, domain: TrustDomainOptions
) -> _Registers:
    from sealtrain.image.machine.launchdigest import Launch, launch_digest

    if launch.vcpus is None or launch.vcpu_type is None:
        raise UsageError(
            "number and model of the guest's CPUs change its measurement",
            check="--vcpus, --vcpu-type",
            got="none",
            expected="--vcpus 2 --vcpu-type EPYC-v4",
            hint="as the guest is started: the words of QEMU's -smp and -cpu",
        )
    if domain.kernel is None and (domain.initrd is not None or domain.command_line is not None):
        raise UsageError(
            "initrd and command line are measured with a kernel only",
            check="--kernel",
            got="none",
            hint="name --kernel, too; a guest that boots a disk is measured without all three",
        )
    how = Launch(
        vcpus=launch.vcpus,
        vcpu_type=launch.vcpu_type,
        monitor=launch.monitor,
        guest_features=launch.guest_features,
        kernel=domain.kernel,
        initrd=domain.initrd,
        command_line=domain.command_line,
    )
    digest = launch_digest(firmware, how)
    unknown = {"host data": _FULL, "id key": _FULL}
    policy = {"measurements": [digest]}
    return _Registers(values={"measurement": digest}, unknown=unknown, policy=policy)


def _measure_uki(unified: UnifiedOptions, uki: Path, command_line: str | None) -> _Registers:
    from sealtrain.image.machine.disk import (
        GPT_BYTES,
        PartitionTable,
        document_register,
        partition_register,
    )
    from sealtrain.image.machine.unified import measure_unified

    how = _check_unified(unified, command_line)
    values = {f"pcr{n}": value for n, value in measure_unified(_read(uki), how).items()}
    unknown = {}
    if unified.disk is None:
        unknown["pcr5"] = _GPT
    else:
        table = PartitionTable.of_disk(_read_start(unified.disk, GPT_BYTES))
        values["pcr5"] = partition_register(table, how.algorithm)
    if unified.document is None:
        unknown["pcr14"] = _SHIM
    else:
        document = read_bounded(unified.document, MAX_DEPLOYMENT_BYTES)
        values["pcr14"] = document_register(document, how.algorithm)
    return _Registers(
        values=values, unknown=unknown, policy={"boots": [_boot(values, unified.tpm)]}
    )


def _check_unified(unified: UnifiedOptions, command_line: str | None) -> Unified:
    """How a UKI is booted.

    Raises:
        UsageError: Nobody said which systemd-stub it has.
    """
    from sealtrain.image.machine.unified import Unified

    if unified.stub is None:
        raise UsageError(
            "the version of the UKI's systemd-stub decides what is measured",
            check="--stub",
            got="none",
            expected="252 or later",
            hint="bootctl --version of the system that made the UKI",
        )
    return Unified(
        algorithm=_algorithm(unified.tpm),
        stub_loads_kernel=unified.stub < 258,
        early_stub=unified.stub == 252,
        shows_release=unified.stub >= 257,
        command_line=command_line,
    )


def _boot(values: dict[str, str], algorithm: str) -> dict[str, str]:
    """What a policy names: of a NitroTPM, or of the TPM of another cloud."""
    if algorithm == "sha384":
        return {name: values[name] for name in ("pcr4", "pcr7", "pcr12")}
    names = ("pcr4", "pcr7", "pcr8", "pcr9", "pcr11", "pcr12")
    return {name: values.get(name, "00" * 32) for name in names}  # no boot loader: PCR 8 stays


def _read_endorsement(endorsement: Path, root: Path | None) -> _Registers:
    """What Google says that its firmware measures to, once the signature holds."""
    from sealtrain.attest.gcp.endorsement import MAX_ENDORSEMENT_BYTES, verify_endorsement
    from sealtrain.base.clock import system_clock

    if root is None:
        raise UsageError(
            "an endorsement proves nothing without Google's root",
            check="--google-root",
            got="none",
            expected="GCE-cc-tcb-root_1.crt",
            hint="fetch https://pki.goog/cloud_integrity/GCE-cc-tcb-root_1.crt once",
        )
    found = verify_endorsement(
        read_bounded(endorsement, MAX_ENDORSEMENT_BYTES),
        read_bounded(root, MAX_ENDORSEMENT_BYTES),
        now=system_clock(),
    )
    values = {"root (SHA-256)": found.root, "firmware (SHA-384)": found.firmware}
    values |= {
        f"mrtd ({size or 'any'} GiB{', accepted early' if early else ''})": mrtd
        for size, early, mrtd in found.tdx
    }
    values |= {f"measurement ({count} CPUs)": digest for count, digest in found.snp}
    unknown = {"rtmr0 to rtmr3, PCRs": "are of what starts after the firmware"}
    policy = {"measurements": [digest for _, digest in found.snp]} if found.snp else None
    return _Registers(values=values, unknown=unknown, policy=policy)


def _measure_eif(eif: Path) -> _Registers:
    from sealtrain.image.machine.enclavefile import measure_enclave, measure_signer

    data = _read(eif)
    image = {f"pcr{number}": value for number, value in measure_enclave(data).items()}
    unknown = {
        "pcr3": "is of the parent's IAM role",
        "pcr4": "is of the parent's instance",
    }
    signer = measure_signer(data)
    if signer is None:
        unknown["pcr8"] = "is of the certificate that signed the image: none did"
        return _Registers(values=image, unknown=unknown, policy={"images": [image]})
    policy = {"images": [image], "signers": [signer]}
    return _Registers(values=image | {"pcr8": signer}, unknown=unknown, policy=policy)


def _show(found: _Registers, as_json: bool) -> None:
    width = max(map(len, found.values))
    for name, reason in found.unknown.items():
        say(f"not computed: {name} {reason}")
    lines = [f"{name:<{width}}  {value}" for name, value in found.values.items()]
    if found.policy is not None:
        lines += ["", "# In an appraisal policy, below cpu:", *yaml_text(found.policy).splitlines()]
    shown = {"values": found.values, "not_computed": found.unknown, "policy": found.policy}
    emit(as_json, shown, lines)


def _read(path: Path) -> bytes:
    return read_bounded(path, _MAX_BYTES)


def _read_start(path: Path, size: int) -> bytes:
    """The first bytes of a file that may be as large as a disk."""
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read(size)


def _algorithm(name: str) -> Algorithm:
    if name == "sha256":
        return "sha256"
    if name == "sha384":
        return "sha384"
    raise UsageError("no such digest", check="--tpm", got=name, expected="sha256 or sha384")


def _bytes_of(size: str) -> int:
    found = re.fullmatch(r"([0-9]{1,15})([KMGT]?)", size)
    if found is None or int(found[1]) == 0:
        raise UsageError(
            "no size of memory", check="--guest-memory", got=size, expected="2G, 512M, or bytes"
        )
    return int(found[1]) * _UNITS[found[2]]
