"""Arguments of the ``attest`` commands: evidence files, a policy, a time, a nonce."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sealtrain.attest.bundle import Attachments
from sealtrain.attest.errors import EvidenceMalformed
from sealtrain.attest.exhibits import MAX_FILE_BYTES, recognise
from sealtrain.attest.forms import Bundled, Certificates, Exhibit, Gpus, RevocationList
from sealtrain.attest.guest import load_gpu_collateral
from sealtrain.attest.policy import AppraisalPolicy, load_policy
from sealtrain.attest.presets import preset
from sealtrain.attest.report_data import Binding
from sealtrain.attest.tdx.collect import load_collateral
from sealtrain.base.clock import from_rfc3339, system_clock
from sealtrain.base.digests import sha256_hex
from sealtrain.base.encoding import from_hex
from sealtrain.base.files import read_bounded
from sealtrain.base.limits import MAX_DEPLOYMENT_BYTES
from sealtrain.errors import DataInvalid, LimitExceeded, UsageError

if TYPE_CHECKING:
    from sealtrain.attest.nvidia.parse import GpuDevice

_MAX_SMALL = 1 << 20
_MIN_NONCE_BYTES = 16
_PRESET = "preset:"


def recognise_form(path: Path, most: int | None = None) -> Exhibit:
    """Recognise the form of a file.

    Args:
        path: Of the file.
        most: Most bytes to read.

    Raises:
        DataInvalid: There is no such file, or its form is unknown.
        EvidenceRefused: The file is malformed or too long.
    """
    try:
        data = read_bounded(path, MAX_FILE_BYTES if most is None else most)
    except LimitExceeded as error:  # a forger chooses the length
        raise EvidenceMalformed(
            error.message, check="evidence form", got=error.got, expected=error.expected
        ) from error
    return recognise(data)


def policy_of(word: str) -> AppraisalPolicy:
    """The policy of a file, or a preset by name.

    Raises:
        TrustInvalid: The file is no policy.
        UsageError: No such preset.
    """
    if word.startswith(_PRESET):
        return preset(word.removeprefix(_PRESET))
    return load_policy(Path(word))


def time_of(word: str | None, exhibit: Exhibit) -> int:
    """The time to verify at: as given, or as a bundle recorded; the clock only for ``now``.

    Raises:
        UsageError: The time is missing or malformed.
    """
    if word is None:
        if isinstance(exhibit, Bundled):
            return exhibit.bundle.time
        raise UsageError(
            "time missing", expected="--at YYYY-MM-DDTHH:MM:SSZ, or --at now", check="time"
        )
    if word == "now":
        return system_clock()
    try:
        return from_rfc3339(word)
    except DataInvalid as error:
        raise UsageError(
            error.message, check="time", got=error.got, expected=f"{error.expected} or now"
        ) from error


GpuCollateral = Annotated[
    str | None, typer.Option("--gpu-collateral", help="Collateral of accelerators, file:PATH.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class BesideOptions:
    """What a person names beside a file of evidence, to verify it with."""

    nonce: Annotated[
        str | None, typer.Option(help="What the evidence must have been made for (hex).")
    ] = None
    collateral: Annotated[
        str | None, typer.Option("--collateral", help="Collateral of a TDX quote, file:PATH.")
    ] = None
    gpu_collateral: GpuCollateral = None
    certificate: Annotated[
        list[Path] | None,
        typer.Option(
            "--certificate",
            help="Certificates of a SEV-SNP report (PEM or DER), the chip's own first; repeat.",
        ),
    ] = None
    chain: Annotated[
        Path | None, typer.Option("--gpu-chain", help="Certificates of one GPU's report (PEM).")
    ] = None
    crl: Annotated[
        Path | None,
        typer.Option("--crl", help="AMD's revocation list beside a SEV-SNP report (DER or PEM)."),
    ] = None
    switches: Annotated[
        Path | None,
        typer.Option(
            "--switch-evidence",
            help="NVSwitch evidence of the machine whose GPUs a file of NVIDIA's shows.",
        ),
    ] = None
    compose: Annotated[
        Path | None, typer.Option("--deployment", help="Deployment document that must be measured.")
    ] = None
    compose_hash: Annotated[
        str | None, typer.Option(help="SHA-256 (hex) of the document that must be measured.")
    ] = None

    def read(self, exhibit: Exhibit) -> Attachments:
        """Read what was named.

        Raises:
            UsageError: A nonce or hash of another form, or two different documents.
            TrustInvalid: Collateral cannot be read.
            DataInvalid: Another file cannot be read.
            EvidenceRefused: It is of a known form, but malformed.
        """
        bundle = getattr(exhibit, "bundle", None)
        own = exhibit.kind == "evidence" or getattr(bundle, "kind", None) == "evidence"
        document = (
            None if self.compose is None else read_bounded(self.compose, MAX_DEPLOYMENT_BYTES)
        )
        digest = None if self.compose_hash is None else _hex(self.compose_hash, "hash", 32).hex()
        if document is not None and digest not in (None, sha256_hex(document)):
            raise UsageError(
                "--deployment and --compose-hash name two documents",
                got=sha256_hex(document),
                expected=digest,
            )
        files = [*(self.certificate or []), *([] if self.chain is None else [self.chain])]
        nonce = self.nonce
        return Attachments(
            collateral=None if self.collateral is None else load_collateral(self.collateral),
            gpu_collateral=load_gpu_collateral(self.gpu_collateral),
            certificates=tuple(der for path in files for der in _certificates(path)),
            crl=None if self.crl is None else _revocations(self.crl),
            switches=() if self.switches is None else _switches(self.switches),
            binding=binding_of(nonce) if own and nonce is not None else None,
            nonce=None if own or nonce is None else _hex(nonce, "nonce"),
            app_compose=document,
            compose_hash=digest,
        )


def binding_of(nonce: str) -> Binding:
    """The binding of evidence to a verifier's nonce, as of ``attest collect``.

    Raises:
        UsageError: Not hexadecimal, or too short to be unpredictable.
    """
    if len(_hex(nonce, "nonce")) < _MIN_NONCE_BYTES:
        raise UsageError("nonce is too short", expected=f"{_MIN_NONCE_BYTES} bytes or more in hex")
    return Binding("attest", {"nonce": nonce})


def _hex(text: str, what: str, length: int | None = None) -> bytes:
    try:
        found = from_hex(text, length=length)
    except DataInvalid as error:
        raise UsageError(f"{what}: {error.message}", got=text[:160]) from error
    if not found:
        raise UsageError(f"{what} is empty")
    return found


def _certificates(path: Path) -> tuple[bytes, ...]:
    found = recognise_form(path, _MAX_SMALL)
    if not isinstance(found, Certificates):
        raise _other(path, "certificates", found)
    return found.certificates


def _revocations(path: Path) -> bytes:
    found = recognise_form(path, _MAX_SMALL)
    if not isinstance(found, RevocationList):
        raise _other(path, "revocation list", found)
    return found.crl


def _switches(path: Path) -> tuple[GpuDevice, ...]:
    found = recognise_form(path)
    if not isinstance(found, Gpus) or any(device.kind != "switch" for device in found.devices):
        raise _other(path, "evidence of NVSwitches alone", found)
    return found.devices


def _other(path: Path, wanted: str, found: Exhibit) -> UsageError:
    return UsageError(f"{path} holds no {wanted}", got=found.title)
