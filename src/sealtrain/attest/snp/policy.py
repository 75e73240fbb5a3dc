"""What a SEV-SNP guest must show. Every field is written; where a value does not matter, ``any``.

``Milan`` is not a product one can ask for. Software alone has read out its root seed (arXiv
2605.12990), so an attacker can sign any report of any such chip. The author of a policy who accepts
one all the same writes ``InsecureMilan``.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from sealtrain.attest.snp.parse import PlatformFlag, Product, SigningKey, Tcb
from sealtrain.attest.statement import GuestPolicy
from sealtrain.attest.tee import NONE, SHOWN, Rules
from sealtrain.base.models import Hex64, StrictModel

ProductName = Literal["Genoa", "Turin", "InsecureMilan"]
"""Products as a policy spells them."""

_Level = Annotated[int, Field(ge=0, le=255)]
_Digest48 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{96}$")]
_ChipId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{128}$")]
_Bits64 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]


class TcbFloor(StrictModel):
    """Lowest acceptable security versions of one product, each by itself."""

    bootloader: _Level
    tee: _Level
    snp: _Level
    microcode: _Level
    fmc: _Level | None = None
    """For Turin and only there."""

    @property
    def tcb(self) -> Tcb:
        """As a TCB to compare with."""
        return Tcb(
            bootloader=self.bootloader,
            tee=self.tee,
            snp=self.snp,
            microcode=self.microcode,
            fmc=self.fmc,
        )


class SnpRules(GuestPolicy):
    """Reference values for a report."""

    products: Annotated[tuple[ProductName, ...], Field(min_length=1, max_length=3)]
    """Processor generations."""
    signing_keys: Annotated[tuple[SigningKey, ...], Field(min_length=1, max_length=2)]
    """``vcek`` names one chip; ``vlek`` only says in which cloud."""
    measurements: Literal["any"] | Annotated[tuple[_Digest48, ...], Field(max_length=1024)]
    """Launch digests of the images that may run."""
    minimum_tcb: dict[ProductName, TcbFloor]
    """For each of ``products``: lowest reported and launch TCB."""
    mitigations: Literal["any"] | Annotated[dict[ProductName, _Bits64], Field(max_length=3)]
    """Bits that must be set at launch and now, for each of ``products``; an empty map accepts no
    product. Reports tell them from version 5 on. AMD's bulletins say what each bit means."""
    extended_tcb: Literal["any"] | Annotated[tuple[Hex64, ...], Field(max_length=256)]
    """Values of which current, launch and committed extended TCB must each be one; reports tell
    them from version 6 on."""
    platform_flags: (
        Literal["any"] | Annotated[tuple[PlatformFlag, ...], Field(min_length=1, max_length=7)]
    )
    """Flags that the platform must have."""
    chip_ids: Literal["any"] | Annotated[tuple[_ChipId, ...], Field(max_length=4096)]
    """Machines that may be used."""
    vmpl: Literal["any"] | Annotated[int, Field(ge=0, le=3)]
    """Privilege level that asked for the report; 0 unless a service module runs below the guest."""
    debug: Literal["refuse"]
    migration: Literal["refuse"]
    smt: Literal["any", "refuse"]
    """``refuse``: the guest's own policy must forbid simultaneous threads."""
    id_keys: Literal["any"] | Annotated[tuple[_Digest48, ...], Field(max_length=1024)]
    """Digests of the ID or author keys, one of which authorised the launch."""
    revocation: Literal["any", "require"]
    """``require``: a current revocation list of AMD's must come along."""

    @field_validator("products", mode="before")
    @classmethod
    def _no_plain_milan(cls, value: object) -> object:
        if isinstance(value, list):  # as JSON and YAML have it
            value = tuple(value)
        if isinstance(value, tuple) and "Milan" in value:
            raise ValueError(
                "Milan reports can be forged by software (arXiv 2605.12990): leave it out, or "
                "write InsecureMilan to accept them all the same"
            )
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name in ("products", "signing_keys", "platform_flags"):
            values = getattr(self, name)
            if values != "any" and len(set(values)) != len(values):
                raise ValueError(f"{name} names one twice")
        if set(self.minimum_tcb) != set(self.products):
            raise ValueError("minimum_tcb must name exactly the products that are allowed")
        if self.mitigations not in ("any", {}) and set(self.mitigations) != set(self.products):
            raise ValueError("mitigations must name exactly the products that are allowed")
        for product, floor in self.minimum_tcb.items():
            if (floor.fmc is None) == (product == "Turin"):
                raise ValueError("minimum_tcb: Turin has an fmc level, no other product does")
        if self.chip_ids != "any" and any(not chip.strip("0") for chip in self.chip_ids):
            raise ValueError("chip_ids: zeros are a hidden chip, not one that can be listed")
        if self.id_keys != "any" and any(not key.strip("0") for key in self.id_keys):
            raise ValueError("id_keys: zeros mean that no key authorised the launch")
        return self


class SnpPolicy(SnpRules):
    """A SEV-SNP guest whose HOST_DATA names its deployment document."""

    tee: Literal["snp"]


def product_name(product: Product) -> ProductName:
    """How a policy spells a product."""
    return "InsecureMilan" if product == "Milan" else product


PRESETS: Final[dict[str, dict[str, Any]]] = {
    "snp-genoa": {
        "version": 2,
        "platform": "snp",
        "tier": "processor",
        "root": "amd",
        "cpu": {
            "tee": "snp",
            "products": ["Genoa"],
            "signing_keys": ["vcek"],
            "measurements": [],
            "minimum_tcb": {
                # What a patched machine of a large cloud reports. AMD's bulletins say which levels
                # are current: raise it to that of the machines in use.
                "Genoa": {"bootloader": 10, "tee": 0, "snp": 23, "microcode": 84, "fmc": None}
            },
            "mitigations": {},
            "extended_tcb": [],
            "platform_flags": ["alias_check_complete"],
            "chip_ids": [],
            "vmpl": 0,
            "debug": "refuse",
            "migration": "refuse",
            "smt": "refuse",
            "id_keys": [],
            "revocation": "require",
        },
        "gpu": "none",
    },
}
_OPEN_TO_SIMULATORS: Final = (
    "measurements",
    "mitigations",
    "extended_tcb",
    "platform_flags",
    "chip_ids",
    "smt",
    "id_keys",
    "revocation",
)
SIMULATED: Final[dict[str, Any]] = {
    **PRESETS["snp-genoa"]["cpu"],
    **dict.fromkeys(_OPEN_TO_SIMULATORS, "any"),
}
COMMENTS: Final = {
    "products": "Processor generations: Genoa, Turin. Milan's reports can be forged.",
    "signing_keys": "vcek is one chip's key; vlek is lent to a cloud and shared.",
    "minimum_tcb": "Oldest acceptable firmware of each product; raise it with each update.",
    "mitigations": f"Bits that each product must have set, by AMD's bulletins. {NONE}",
    "extended_tcb": f"Accepted extended TCB values, {SHOWN}. {NONE}",
    "platform_flags": "Flags the platform must have, such as alias_check_complete.",
    "chip_ids": f"Machines by chip id (128 hex digits), {SHOWN}. {NONE}",
    "vmpl": "Privilege level that asks for the report; 0 unless a service module runs below.",
    "debug": "There is no other value: in debug mode the host reads the guest's memory.",
    "migration": "There is no other value: another guest could move this one elsewhere.",
    "smt": "refuse asks for guests that share no core.",
    "id_keys": f"Digests of keys that may authorise a launch, {SHOWN}. {NONE}",
    "revocation": "require asks for AMD's revocation list beside the evidence.",
    "measurements": (f"Of each image what sealtrain image measure --snp-firmware … prints. {NONE}"),
}
LINES: Final = {
    "debug": "debug",
    "migration": "migration",
    "product": "products",
    "signing key": "signing_keys",
    "chip": "chip_ids",
    "VMPL": "vmpl",
    "simultaneous threads": "smt",
    "reported TCB": "minimum_tcb",
    "launch TCB": "minimum_tcb",
    "committed TCB": "minimum_tcb",
    "mitigations": "mitigations",
    "extended TCB": "extended_tcb",
    "platform flags": "platform_flags",
    "guest image": "measurements",
    "launch authority": "id_keys",
    "revocation": "revocation",
}
RULES: Final = Rules(
    form=SnpPolicy,
    lines=LINES,
    comments=COMMENTS,
    presets=PRESETS,
    simulated=SIMULATED,
)
