"""Rules for dstack on EC2 with a NitroTPM. Boot registers are named, without exception."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, StringConstraints

from sealtrain.attest.dstack import policy as dstack
from sealtrain.attest.dstack.policy import KeyProvider
from sealtrain.attest.statement import GuestPolicy
from sealtrain.attest.tee import NONE, SHOWN, Rules
from sealtrain.base.models import StrictModel

_NAME: Final = "dstack-aws-nitro-tpm"


def _extend_register(value: str) -> str:
    if not value.strip("0"):
        raise ValueError("a register of zeros was never extended; never accept it")
    return value


_Register = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{96}$")]
_Pcr = Annotated[_Register, AfterValidator(_extend_register)]
_Instance = Annotated[str, StringConstraints(pattern=r"^i-[0-9a-f]{8,32}$")]


class NitroTpmBoot(StrictModel):
    """One accepted start of an instance, in the SHA-384 bank of its NitroTPM."""

    pcr4: _Pcr
    """What the firmware started: the image."""
    pcr7: _Pcr
    """State of Secure Boot."""
    pcr12: _Register
    """Command lines from outside the image; zeros are none."""


class NitroTpmPolicy(GuestPolicy):
    """What such a guest must show; a breach of each field ends in the code beside it."""

    tee: Literal["dstack-aws-nitro-tpm"]
    boots: Annotated[tuple[NitroTpmBoot, ...], Field(max_length=1024)]
    """Accepted boots; an empty list accepts none (``measurement-mismatch``). There is no ``any``:
    without boot registers the document says nothing of the guest."""
    config_id: Literal["require", "any"]
    """Whether PCR 8 must be set (``event-log-mismatch``). Where it is set, it commits to the
    measured document, app and key provider in either case."""
    key_provider: Literal["any"] | KeyProvider
    """Id of the guest's key provider (``key-provider-mismatch``)."""
    instances: Literal["any"] | Annotated[tuple[_Instance, ...], Field(max_length=4096)]
    """Accepted instances, ``i-…`` (``platform-mismatch``)."""
    max_age_s: Annotated[int, Field(ge=1, le=3 * 3600)]
    """How old a document may be; its leaf certificate lives three hours (``evidence-stale``)."""


_RULES: Final[dict[str, Any]] = {
    "tee": _NAME,
    "boots": [],
    "config_id": "require",
    "key_provider": "00" * 32,
    "instances": [],
    "max_age_s": 300,
}
PRESETS: Final[dict[str, dict[str, Any]]] = {
    "dstack-aws-nitro-tpm": {
        "version": 2,
        "platform": "dstack",
        "tier": "cloud",
        "root": "aws",
        "cpu": _RULES,
        "gpu": "none",
    },
}


def _extend_once(what: str) -> str:
    """A register that was extended once, with the hash of what a simulator boots."""
    measured = hashlib.sha384(f"SIMULATED {what}".encode("ascii")).digest()
    return hashlib.sha384(bytes(48) + measured).hexdigest()


SIMULATED: Final[dict[str, Any]] = {
    **_RULES,
    "boots": [
        {
            "pcr4": _extend_once("image"),
            "pcr7": _extend_once("Secure Boot"),
            "pcr12": "00" * 48,
        }
    ],
    "key_provider": "any",
    "instances": "any",
}
COMMENTS: Final = {
    "boots": f"pcr4, pcr7, pcr12 of each image, {SHOWN}. {NONE}",
    "config_id": "require PCR 8 to be set; any also accepts images that leave it zero.",
    "key_provider": dstack.COMMENTS["key_provider"],
    "instances": f"EC2 instances, i-…. {NONE}",
    "max_age_s": "How old a document may be, in seconds.",
}
LINES: Final = {
    "boot": "boots",
    "configuration id": "config_id",
    "key provider": "key_provider",
    "instance": "instances",
    "document age": "max_age_s",
}
RULES: Final = Rules(
    form=NitroTpmPolicy,
    lines=LINES,
    comments=COMMENTS,
    presets=PRESETS,
    simulated=SIMULATED,
)
