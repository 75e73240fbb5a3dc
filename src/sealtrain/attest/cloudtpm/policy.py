"""Rules for machines whose processor is attested and whose cloud's TPM says what booted.

Boot registers are named, without exception: without them the processor says nothing of the image.
Any image can be pinned by them: a boot loader measures its configuration, command line and initrd
into PCR 8 and 9, a unified kernel image into PCR 11 and 12, and their programs into PCR 4.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from sealtrain.attest.gcp import policy as gcp
from sealtrain.attest.gcp.policy import Names, Numbers
from sealtrain.attest.snp import policy as snp
from sealtrain.attest.snp.policy import SnpRules
from sealtrain.attest.statement import GuestPolicy
from sealtrain.attest.tdx import policy as tdx
from sealtrain.attest.tdx.policy import QuotePolicy
from sealtrain.attest.tee import NONE, SHOWN, Rules
from sealtrain.base.models import Hex64, StrictModel


def _extend_register(value: str) -> str:
    if not value.strip("0"):
        raise ValueError("a register of zeros was never extended; never accept it")
    return value


_Pcr = Annotated[Hex64, AfterValidator(_extend_register)]
_VmId = Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z-]{1,64}$")]


class CloudBoot(StrictModel):
    """One accepted start of a machine, in the SHA-256 bank of its TPM; zeros: never extended."""

    pcr4: _Pcr
    """Programs that the firmware started: boot loader, image."""
    pcr7: _Pcr
    """State of Secure Boot."""
    pcr8: Hex64
    """What a boot loader was told to do."""
    pcr9: Hex64
    """What was loaded: command line, initrd."""
    pcr11: Hex64
    """Sections of a unified kernel image."""
    pcr12: Hex64
    """Command lines and files from outside the image."""

    @property
    def registers(self) -> dict[int, str]:
        """The same by the register's number."""
        return {
            int(name.removeprefix("pcr")): getattr(self, name) for name in type(self).model_fields
        }


class GoogleBoot(CloudBoot):
    """The same of Google, whose firmware says there which processor protects the memory."""

    pcr0: _Pcr
    """Google's firmware, and which processor protects the memory."""


class AzurePolicy(GuestPolicy):
    """What Azure's paravisor and its TPM must say."""

    boots: Annotated[tuple[CloudBoot, ...], Field(max_length=1024)]
    """Accepted boots; an empty list accepts none (``measurement-mismatch``)."""
    vm_ids: Literal["any"] | Annotated[tuple[_VmId, ...], Field(max_length=4096)]
    """Machines by ``vmUniqueId`` (``platform-mismatch``)."""


class AzureSnpPolicy(SnpRules, AzurePolicy):
    """A guest on Azure with SEV-SNP; ``measurements`` are the paravisor's."""

    tee: Literal["azure-snp"]


class AzureTdxPolicy(QuotePolicy, AzurePolicy):
    """A guest on Azure with TDX; ``measurements`` are the paravisor's."""

    tee: Literal["azure-tdx"]

    @model_validator(mode="after")
    def _without_log(self) -> AzureTdxPolicy:
        if self.measurements != "any" and any(image.rtmr0 == "log" for image in self.measurements):
            raise ValueError("no event log names rtmr0 of this machine: name its value")
        return self


class GcpSnpPolicy(SnpRules):
    """A guest on Google Cloud with SEV-SNP; ``measurements`` are of Google's firmware."""

    tee: Literal["gcp-snp"]
    boots: Annotated[tuple[GoogleBoot, ...], Field(max_length=1024)]
    """Accepted boots; an empty list accepts none (``measurement-mismatch``)."""
    projects: Literal["any"] | Names
    """Google Cloud projects that the machine may belong to (``platform-mismatch``)."""
    zones: Literal["any"] | Names
    """Zones that it may run in (``platform-mismatch``)."""
    instances: Literal["any"] | Numbers
    """Machines by their number (``platform-mismatch``)."""


_AZURE: Final[dict[str, Any]] = {"boots": [], "vm_ids": []}
_GOOGLE: Final[dict[str, Any]] = {"boots": [], "projects": [], "zones": [], "instances": []}
_SNP: Final[dict[str, Any]] = snp.PRESETS["snp-genoa"]["cpu"]
_FILLED: Final[dict[str, dict[str, Any]]] = {
    "azure-snp": {**_SNP, "tee": "azure-snp", **_AZURE},
    "azure-tdx": {"tee": "azure-tdx", **tdx.QUOTE_RULES, **_AZURE},
    "gcp-snp": {**_SNP, "tee": "gcp-snp", **_GOOGLE},
}


def _preset(name: str, *, platform: str, tier: str, root: str) -> dict[str, Any]:
    rules = {"version": 2, "platform": platform, "tier": tier, "root": root, "cpu": _FILLED[name]}
    return {**rules, "gpu": "none"}


PRESETS: Final[dict[str, dict[str, Any]]] = {
    "azure-snp": _preset("azure-snp", platform="snp", tier="processor-and-paravisor", root="amd"),
    "azure-tdx": _preset("azure-tdx", platform="tdx", tier="processor-and-paravisor", root="intel"),
    "gcp-snp": _preset("gcp-snp", platform="snp", tier="cloud-tpm", root="amd"),
}


def _once(what: str) -> str:
    """A register that was extended once, with the hash of what a simulator boots."""
    measured = hashlib.sha256(f"SIMULATED {what}".encode("ascii")).digest()
    return hashlib.sha256(bytes(32) + measured).hexdigest()


_ZEROS: Final = "00" * 32
SIMULATED_BOOT: Final = {
    "pcr4": _once("image"),
    "pcr7": _once("Secure Boot"),
    "pcr8": _ZEROS,
    "pcr9": _once("command line"),
    "pcr11": _once("sections"),
    "pcr12": _ZEROS,
}
SIMULATED: Final[dict[str, dict[str, Any]]] = {
    "azure-snp": {
        **snp.SIMULATED,
        "tee": "azure-snp",
        "boots": [SIMULATED_BOOT],
        "vm_ids": "any",
    },
    "azure-tdx": {
        "tee": "azure-tdx",
        **tdx.ANY_QUOTE_RULES,
        "boots": [SIMULATED_BOOT],
        "vm_ids": "any",
    },
    "gcp-snp": {
        **snp.SIMULATED,
        "tee": "gcp-snp",
        "boots": [{"pcr0": _once("firmware"), **SIMULATED_BOOT}],
        "projects": "any",
        "zones": "any",
        "instances": "any",
    },
}
_BOOTS: Final = f"Registers of each image, as sealtrain image measure --uki prints them. {NONE}"
_AZURE_COMMENTS: Final = {
    "boots": _BOOTS,
    "vm_ids": f"Machines by vmUniqueId, {SHOWN}. {NONE}",
}
_PARAVISOR: Final = f"Of each version of Azure's paravisor, {SHOWN}. {NONE}"
COMMENTS: Final[dict[str, dict[str, str]]] = {
    "azure-snp": {**snp.COMMENTS, **_AZURE_COMMENTS, "measurements": _PARAVISOR},
    "azure-tdx": {**tdx.COMMENTS, **_AZURE_COMMENTS, "measurements": _PARAVISOR},
    "gcp-snp": {
        **snp.COMMENTS,
        **{name: gcp.COMMENTS[name] for name in ("projects", "zones", "instances")},
        "boots": f"Registers of image measure --uki, and pcr0, {SHOWN}. {NONE}",
        "measurements": f"Of each version of Google's firmware, {SHOWN}. {NONE}",
    },
}
_AZURE_LINES: Final = {"boot": "boots", "virtual machine": "vm_ids"}
LINES: Final[dict[str, dict[str, str]]] = {
    "azure-snp": {**snp.LINES, **_AZURE_LINES},
    "azure-tdx": {**tdx.LINES, **_AZURE_LINES},
    "gcp-snp": {
        **snp.LINES,
        "boot": "boots",
        "project": "projects",
        "zone": "zones",
        "instance": "instances",
    },
}
RULES: Final = {
    name: Rules(
        form=form,
        lines=LINES[name],
        comments=COMMENTS[name],
        presets={name: PRESETS[name]},
        simulated=SIMULATED[name],
    )
    for name, form in (
        ("azure-snp", AzureSnpPolicy),
        ("azure-tdx", AzureTdxPolicy),
        ("gcp-snp", GcpSnpPolicy),
    )
}
