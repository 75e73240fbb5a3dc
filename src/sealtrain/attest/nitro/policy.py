"""What an appraisal policy asks of a Nitro enclave. Every field is written; ``any`` says so."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, StringConstraints

from sealtrain.attest.statement import GuestPolicy
from sealtrain.attest.tee import NONE, SHOWN, Rules
from sealtrain.base.models import StrictModel


def _check_measured(value: str) -> str:
    if not value.strip("0"):
        raise ValueError(
            "a register of zeros is what debug mode and unmeasured images have; never accept it"
        )
    return value


_Pcr = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{96}$"), AfterValidator(_check_measured)]
_Instance = Annotated[str, StringConstraints(pattern=r"^i-[0-9a-f]{8,32}$")]


class NitroImage(StrictModel):
    """One accepted enclave image, as ``nitro-cli build-enclave`` prints it."""

    pcr0: _Pcr
    """The whole image."""
    pcr1: _Pcr
    """Kernel and boot ramdisk."""
    pcr2: _Pcr
    """The application."""


class NitroPolicy(GuestPolicy):
    """What an enclave must show. A breach of each field ends in the code that stands beside it."""

    tee: Literal["nitro"]
    images: Literal["any"] | Annotated[tuple[NitroImage, ...], Field(max_length=1024)]
    """Accepted images; an empty list accepts none (``measurement-mismatch``)."""
    signers: Literal["any"] | Annotated[tuple[_Pcr, ...], Field(max_length=256)]
    """Accepted values of PCR8, the certificate that signed the image (``measurement-mismatch``)."""
    parents: Literal["any"] | Annotated[tuple[_Instance, ...], Field(max_length=4096)]
    """Accepted parent instances, ``i-…`` (``platform-mismatch``)."""
    iam_roles: Literal["any"] | Annotated[tuple[_Pcr, ...], Field(max_length=256)]
    """Accepted values of PCR3, the parent's IAM role (``platform-mismatch``)."""
    max_age_s: Annotated[int, Field(ge=1, le=3 * 3600)]
    """How old a document may be; its leaf certificate lives three hours (``evidence-stale``)."""
    debug: Literal["refuse"]
    """Debug mode opens the enclave's memory to its parent; there is no other value."""


PRESETS: Final[dict[str, dict[str, Any]]] = {
    "nitro": {
        "version": 2,
        "platform": "nitro",
        "tier": "cloud",
        "root": "aws",
        "cpu": {
            "tee": "nitro",
            "images": [],
            "signers": [],
            "parents": [],
            "iam_roles": [],
            "max_age_s": 300,
            "debug": "refuse",
        },
        "gpu": "none",
    },
}
SIMULATED: Final[dict[str, Any]] = {
    **PRESETS["nitro"]["cpu"],
    **dict.fromkeys(("images", "signers", "parents", "iam_roles"), "any"),
}
COMMENTS: Final = {
    "images": f"Of each image what sealtrain image measure --eif … prints. {NONE}",
    "signers": f"PCR8 of certificates that may sign images, {SHOWN}. {NONE}",
    "parents": f"EC2 instances, i-…, that may run the enclave. {NONE}",
    "iam_roles": f"PCR3 of roles that a parent may have, {SHOWN}. {NONE}",
    "max_age_s": "How old a document may be, in seconds.",
    "debug": "There is no other value: in debug mode the host reads the guest's memory.",
}
LINES: Final = {
    "debug": "debug",
    "debug mode": "debug",
    "document age": "max_age_s",
    "guest image": "images",
    "image signer": "signers",
    "parent instance": "parents",
    "IAM role": "iam_roles",
}
RULES: Final = Rules(
    form=NitroPolicy,
    lines=LINES,
    comments=COMMENTS,
    presets=PRESETS,
    simulated=SIMULATED,
)
