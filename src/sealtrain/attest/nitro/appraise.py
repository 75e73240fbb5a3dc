"""Appraisal of a Nitro enclave: its image, its signer, where it runs, and the document's age."""

from __future__ import annotations

from typing import Final, Literal, Protocol

from sealtrain.attest.claims import Claim, among, claim_unchecked, equal
from sealtrain.attest.errors import DebugGuest, MeasurementMismatch, PlatformMismatch
from sealtrain.attest.nitro.policy import NitroImage, NitroPolicy
from sealtrain.attest.nitro.verify import PARENT_PCR, SOURCE, VerifiedDocument, check_age
from sealtrain.attest.rules import Rule


class ImageRules(Protocol):
    """What policies of every kind of enclave ask."""

    @property
    def images(self) -> Literal["any"] | tuple[NitroImage, ...]:
        """Accepted images."""

    @property
    def max_age_s(self) -> int:
        """How old a document may be."""


_ROLE_PCR, _SIGNER_PCR = 3, 8
_NOT_MEASURED = "not measured"


def eat(verified: VerifiedDocument) -> dict[str, str]:
    """Claims by their RFC 9711 names, of an enclave whose claims held: not in debug mode."""
    return {
        "ueid": verified.module_id,
        "hwmodel": "AWS Nitro Enclaves",
        "dbgstat": "disabled-since-boot",
    }


def _register(verified: VerifiedDocument, index: int) -> str:
    """A register in hex; empty where it is absent or was never extended."""
    value = verified.pcrs.get(index, "")
    return value if value.strip("0") else ""


def _debug(verified: VerifiedDocument, policy: ImageRules, now: int) -> Claim:
    return equal(
        "debug mode",
        "off" if all(_register(verified, index) for index in (0, 1, 2)) else "on",
        "off",
        source=SOURCE,
        error=DebugGuest,
        message="enclave runs in debug mode",
    )


def _age(verified: VerifiedDocument, policy: ImageRules, now: int) -> Claim:
    return Claim(
        name="document age",
        got=f"{check_age(verified.timestamp_ms, policy.max_age_s, now)} s",
        expected=f"at most {policy.max_age_s} s",
        source=SOURCE,
        outcome="allowed",
    )


def _image(verified: VerifiedDocument, policy: ImageRules, now: int) -> Claim:
    found = tuple(verified.pcrs[index] for index in (0, 1, 2))
    got = " ".join(f"pcr{index} {value}" for index, value in enumerate(found))
    if policy.images == "any":
        return claim_unchecked("guest image", got, source=SOURCE)
    for image in policy.images:
        if found == (image.pcr0, image.pcr1, image.pcr2):
            return Claim(name="guest image", got=got, expected=got, source=SOURCE, outcome="equal")
    raise MeasurementMismatch(
        "enclave runs another image than any the policy lists",
        check="guest image",
        got=got,
        expected=f"one of {len(policy.images)} images",
        hint="compare with what sealtrain image measure --eif prints of the approved image",
    )


def _signer(verified: VerifiedDocument, policy: NitroPolicy, now: int) -> Claim:
    return among(
        "image signer",
        _register(verified, _SIGNER_PCR) or _NOT_MEASURED,
        policy.signers,
        source=SOURCE,
        error=MeasurementMismatch,
        message="enclave image was signed by no key that the policy lists",
        hint="PCR8 measures the certificate that signed the image",
    )


def _parent(verified: VerifiedDocument, policy: NitroPolicy, now: int) -> Claim:
    claim = among(
        "parent instance",
        verified.parent_id,
        policy.parents,
        source=SOURCE,
        error=PlatformMismatch,
        message="enclave runs on an instance that the policy does not list",
    )
    if policy.parents != "any" and not _register(verified, PARENT_PCR):
        raise PlatformMismatch(
            "the parent instance is named and not measured",
            check="parent instance",
            got="PCR4 is zero or not locked",
            expected=f"PCR4 of {verified.parent_id}",
        )
    return claim


def _role(verified: VerifiedDocument, policy: NitroPolicy, now: int) -> Claim:
    return among(
        "IAM role",
        _register(verified, _ROLE_PCR) or _NOT_MEASURED,
        policy.iam_roles,
        source=SOURCE,
        error=PlatformMismatch,
        message="enclave's parent has an IAM role that the policy does not list",
        hint="PCR3 measures the ARN of the parent's role",
    )


def _unknown(verified: VerifiedDocument, policy: ImageRules, now: int) -> Claim | None:
    if not verified.unknown_fields:
        return None
    return claim_unchecked("unknown fields", ", ".join(verified.unknown_fields), source=SOURCE)


ENCLAVE_RULES: Final = (
    Rule(name="debug mode", compare=_debug),
    Rule(name="document age", compare=_age),
    Rule(name="guest image", compare=_image),
)
"""What an enclave of every kind is compared with."""
RULES: Final = (
    *ENCLAVE_RULES,
    Rule(name="image signer", compare=_signer),
    Rule(name="parent instance", compare=_parent),
    Rule(name="IAM role", compare=_role),
    Rule(name="unknown fields", compare=_unknown),
)
"""What an enclave is compared with, in the order of decisions."""
