"""Turn a guest's evidence into facts: verify, appraise, read the lock it measured (checks 5-7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from sealtrain.attest.appraise import Verdict, appraise
from sealtrain.attest.evidence import Collateral, Evidence
from sealtrain.attest.nvidia.collateral import GpuCollateral
from sealtrain.attest.policy import AppraisalPolicy
from sealtrain.attest.report_data import Binding
from sealtrain.attest.verify import Verified, verify
from sealtrain.consortium.chainword import ChainWord
from sealtrain.consortium.policies import SignedPolicy
from sealtrain.errors import ConfigError, DataInvalid, EvidenceRefused, RecipeChanged
from sealtrain.recipe.lock import LockedRecipe
from sealtrain.release.facts import DecisionLimits, Measured
from sealtrain.release.messages import (
    RELEASE_PURPOSE,
    RENEWAL_PURPOSE,
    ReleaseRequest,
    RenewalRequest,
)
from sealtrain.signing.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Appraised:
    """Evidence that holds for one request.

    Attributes:
        verdict: Claim by claim, for the receipt.
        measured: What the guest runs, for the decision.
        evidence_digest: SHA-256 of the evidence document.
        under: Appraises the same evidence for the same request under another policy.
        chain: How the broker knows that the owners' contract allows it, where it asks one.
    """

    verdict: Verdict
    measured: Measured
    evidence_digest: str
    under: Callable[[AppraisalPolicy], Verdict]
    chain: ChainWord | None = None


def appraise_guest(
    request: ReleaseRequest | RenewalRequest,
    policy: AppraisalPolicy,
    *,
    collateral: Collateral | None,
    gpu_collateral: GpuCollateral | None,
    now: int,
) -> Appraised:
    """Verify and appraise the evidence of ``request``.

    Args:
        request: Its report data, compose hash and app id are what evidence must show.
        policy: For guests.
        collateral: The broker's own; what the guest sent is not used, a host could choose it.
        gpu_collateral: The same for accelerators.
        now: The broker's time, seconds since the epoch.

    Raises:
        EvidenceRefused: The subclass of the first claim that fails.
        RecipeChanged: The measured deployment document holds no lock of this version.
        KeyProviderMismatch: The recipe pins another key provider than the guest's.
    """
    evidence: Evidence = request.evidence.with_collateral(None)
    purpose = RELEASE_PURPOSE if isinstance(request, ReleaseRequest) else RENEWAL_PURPOSE
    binding = Binding(purpose, request.transcript())

    def appraise_under(rules: AppraisalPolicy) -> tuple[Verified, Verdict]:
        verified = verify(
            evidence,
            rules,
            now,
            binding=binding,
            collateral=collateral,
            gpu_collateral=gpu_collateral,
        )
        verdict = appraise(
            verified,
            rules,
            binding=binding,
            compose_hash=request.compose_hash,
            app_id=request.app_id,
        )
        return verified, verdict

    verified, verdict = appraise_under(policy)
    locked = _read_measured_lock(verified.app_compose)
    lock = locked.lock
    lock.recipe.hardware.require_key_provider(verified.key_provider)
    return Appraised(
        verdict=verdict,
        measured=Measured.of(
            lock,
            Target(
                app_id=verified.app_id,
                compose_hash=verified.compose_hash,
                recipe_hash=locked.recipe_hash,
            ),
            instance_id=verified.instance_id,
            platform=verified.platform,
            tier=verified.tier,
        ),
        evidence_digest=request.evidence.digest,
        under=lambda rules: appraise_under(rules)[1],
    )


def hold_owners_policies(
    guest: Appraised, policies: Iterable[SignedPolicy], limits: DecisionLimits
) -> DecisionLimits:
    """Check a guest against the policy of each owner whose data its recipe reads.

    Args:
        guest: As the broker's own policy found it.
        policies: The owners' policies in force.
        limits: The broker's own.

    Returns:
        The broker's bounds, with the shortest lease that these owners ask for.

    Raises:
        EvidenceRefused: The subclass of the first claim that fails, naming the owner of the policy.
    """
    read = {owner for owner, _name in guest.measured.datasets}
    concerned = [policy for policy in policies if policy.owner.name in read]
    for signed in concerned:
        if signed.document.appraisal is None:
            continue
        try:
            guest.under(signed.document.appraisal)
        except EvidenceRefused as error:
            raise error.with_message(
                f"by the policy of {signed.owner.name}: {error.message}", owner=signed.owner.name
            ) from error
    leases = [
        signed.document.lease_seconds
        for signed in concerned
        if signed.document.lease_seconds is not None
    ]
    return replace(limits, lease_seconds=min([limits.lease_seconds, *leases]))


@lru_cache(maxsize=16)  # the same bytes hold the same lock, and few recipes run at a time
def _read_measured_lock(compose: bytes) -> LockedRecipe:
    """The recipe in a deployment document that a guest measured."""
    try:
        return LockedRecipe.parse(compose)
    except (ConfigError, DataInvalid) as error:
        raise RecipeChanged(
            f"the measured deployment document holds no recipe lock: {error.message}",
            check="recipe lock",
            hint="deploy the app-compose.json that sealtrain lock wrote, unchanged",
        ) from error
