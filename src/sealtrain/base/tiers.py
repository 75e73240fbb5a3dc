"""Tiers: what a kind of evidence really proves of a machine (spec/evidence.md §6.1).

The list is closed and ordered, strongest first. A policy and a recipe name the lowest tier that
they take; the kind of the evidence alone says which tier a machine reaches. ``verify/tiers.js`` is
written from this module by ``tools/verifier_page.py``.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

from sealtrain.errors import TierRefused, UsageError

Tier = Literal["processor", "processor-and-paravisor", "cloud-tpm", "cloud"]
TIERS: Final[tuple[Tier, ...]] = get_args(Tier)
"""Strongest first."""

WORDS: Final[dict[Tier, str]] = {
    "processor": (
        "the processor's vendor vouches for what started and for the encryption of its memory"
    ),
    "processor-and-paravisor": (
        "the processor's vendor vouches for the encryption of memory and for the cloud's "
        "paravisor; the paravisor vouches for what started"
    ),
    "cloud-tpm": (
        "the processor's vendor vouches for the encryption of memory; the cloud's TPM vouches for "
        "what started"
    ),
    "cloud": (
        "the cloud alone vouches for what started, and nothing shows that memory is encrypted"
    ),
}
"""What each tier means, for approval pages and reports."""

TIER_OF_KIND: Final[dict[str, Tier]] = {
    "dstack": "processor",
    "tdx": "processor",
    "nitro": "cloud",
    "snp": "processor",
    "dstack-gcp-tdx": "processor",
    "dstack-aws-nitro-tpm": "cloud",
    "dstack-amd-sev-snp": "processor",
    "azure-snp": "processor-and-paravisor",
    "azure-tdx": "processor-and-paravisor",
    "gcp-snp": "cloud-tpm",
    "test-vtpm": "cloud",
    "test-nitro": "cloud",
}
"""The tier of each kind of evidence, by the ``tee`` of its processor's part: a line for each."""


def tier_of(kind: str) -> Tier:
    """The tier that evidence of a kind reaches.

    Raises:
        UsageError: The table has no line for this kind.
    """
    if kind not in TIER_OF_KIND:
        raise UsageError(
            "this kind of evidence has no tier", got=kind, expected=", ".join(TIER_OF_KIND)
        )
    return TIER_OF_KIND[kind]


def reaches(proven: Tier, lowest: Tier) -> bool:
    """Whether a tier is at least the lowest that is taken."""
    return TIERS.index(proven) <= TIERS.index(lowest)


def require_tier(proven: Tier, lowest: Tier, *, asked_by: str) -> None:
    """Check that a machine proves what a policy or recipe asks for.

    Args:
        proven: Tier of the machine's evidence.
        lowest: Lowest tier that is taken.
        asked_by: The document that names ``lowest``.

    Raises:
        TierRefused: The machine proves less.
    """
    if not reaches(proven, lowest):
        raise TierRefused(
            f"the machine proves less than {asked_by} asks for: {WORDS[proven]}",
            check="tier",
            got=proven,
            expected=or_stronger(lowest),
            hint="run on a machine of a stronger tier; or accept the lower tier in writing, if "
            "the owners agree",
        )


def or_stronger(lowest: Tier) -> str:
    """The tiers that reach a lowest one, in words."""
    return lowest if lowest == TIERS[0] else f"{lowest} or stronger"
