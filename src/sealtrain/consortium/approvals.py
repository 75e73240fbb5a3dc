"""Counting: may this recipe run now? Pure; the time is an argument. See ``spec/approvals.md``.

``tally`` reads verified decisions in the order of the ledger:

1. A decision on another target does not count here.
2. A revocation counts from then on, whatever its date and nonce. It is final for its target: no
   approval of the same owner, earlier or later, counts again.
3. An approval with a nonce its owner used before is a replay and ignored.
4. An approval dated more than ``skew`` seconds in the future is not valid yet and ignored.
5. Of the rest, an owner's latest approval stands and replaces the ones before it.
6. It counts until its ``not_after`` second, that second included.

The recipe is *unsealed* when at least ``approve`` owners count and fewer than ``revoke`` revoked;
otherwise it is *sealed*. Status words are Vault's: threshold, progress, sealed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sealtrain.base.canonical import JsonValue
from sealtrain.base.clock import to_rfc3339
from sealtrain.consortium.decisions import (
    CLOCK_SKEW,
    DatasetPin,
    Decision,
    SignedDecision,
    Target,
    sign_decision,
    verify_decision,
)
from sealtrain.consortium.members import Consortium
from sealtrain.errors import ApprovalExpired, ApprovalRevoked, ApprovalsMissing, RecipeChanged

__all__ = [
    "CLOCK_SKEW",
    "DatasetPin",
    "Decision",
    "SignedDecision",
    "Tally",
    "Target",
    "require",
    "sign_decision",
    "tally",
    "verify_decision",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Where the approval of one target stands at one time. Owners are named in their order."""

    consortium_id: str
    target: Target
    now: int
    owners: int
    """n: how many owners there are."""
    threshold: int
    """k: how many must approve."""
    revoke_threshold: int
    progress: int
    """How many approve."""
    approved_by: tuple[str, ...]
    expired: tuple[str, ...]
    """Owners whose latest approval has ended."""
    not_yet: tuple[str, ...]
    """Owners with no valid approval and one that is dated in the future."""
    revoked_by: tuple[str, ...]
    missing: tuple[str, ...]
    """Owners that neither approve now nor revoked."""
    valid_until: int | None
    """Last second at which the threshold is met without another decision; ``None`` if it is not."""
    elsewhere: Target | None
    """What the latest approval of another target approved, ``None`` when there is none."""
    approvals: tuple[SignedDecision, ...]
    """The decisions that count, in the order of ``approved_by``."""

    @property
    def revoked(self) -> bool:
        """Enough owners revoked."""
        return len(self.revoked_by) >= self.revoke_threshold

    @property
    def sealed(self) -> bool:
        """No key may be released."""
        return self.revoked or self.progress < self.threshold

    @property
    def pins(self) -> dict[str, dict[str, str]]:
        """Of each owner whose approval counts: dataset id → root."""
        return {one.owner.name: one.decision.pins() for one in self.approvals}

    def to_dict(self) -> dict[str, JsonValue]:
        """JSON-ready form, without envelopes."""
        return {
            "consortium_id": self.consortium_id,
            **self.target.to_dict(),
            "at": to_rfc3339(self.now),
            "owners": self.owners,
            "threshold": self.threshold,
            "revoke_threshold": self.revoke_threshold,
            "progress": self.progress,
            "sealed": self.sealed,
            "revoked": self.revoked,
            "approved_by": list(self.approved_by),
            "expired": list(self.expired),
            "not_yet": list(self.not_yet),
            "revoked_by": list(self.revoked_by),
            "missing": list(self.missing),
            "valid_until": None if self.valid_until is None else to_rfc3339(self.valid_until),
            "elsewhere": None if self.elsewhere is None else self.elsewhere.to_dict(),
        }


def tally(
    decisions: Iterable[SignedDecision],
    consortium: Consortium,
    target: Target,
    now: int,
    *,
    skew: int = CLOCK_SKEW,
) -> Tally:
    """Count the decisions on ``target``.

    Args:
        decisions: Verified for this consortium, in the order of the ledger.
        consortium: Owners and thresholds.
        target: The recipe in question.
        now: Seconds since the epoch.
        skew: Seconds an owner's clock may be ahead.
    """
    latest: dict[str, SignedDecision] = {}
    revoked: set[str] = set()
    future: set[str] = set()
    nonces: set[tuple[str, str]] = set()
    elsewhere: Target | None = None
    members = {owner.owner_id for owner in consortium.owners}
    for one in decisions:
        decision, owner_id = one.decision, one.owner.owner_id
        if decision.consortium_id != consortium.consortium_id or owner_id not in members:
            raise ValueError("tally takes decisions that verify_decision returned")
        if decision.decision == "revoke":
            if decision.target == target:
                revoked.add(owner_id)
            continue
        if (owner_id, decision.nonce) in nonces:
            continue
        nonces.add((owner_id, decision.nonce))
        if decision.target != target:
            elsewhere = decision.target
        elif decision.signed > now + skew:
            future.add(owner_id)
        else:
            latest[owner_id] = one
    standing = {owner_id: one for owner_id, one in latest.items() if owner_id not in revoked}
    counted = {owner_id: one for owner_id, one in standing.items() if _end(one) >= now}

    def names(owner_ids: Iterable[str]) -> tuple[str, ...]:
        wanted = set(owner_ids)
        return tuple(owner.name for owner in consortium.owners if owner.owner_id in wanted)

    ends = sorted((_end(one) for one in counted.values()), reverse=True)
    enough = len(ends) >= consortium.approve and len(revoked) < consortium.revoke
    return Tally(
        consortium_id=consortium.consortium_id,
        target=target,
        now=now,
        owners=len(members),
        threshold=consortium.approve,
        revoke_threshold=consortium.revoke,
        progress=len(counted),
        approved_by=names(counted),
        expired=names(standing.keys() - counted.keys()),
        not_yet=names(future - standing.keys() - revoked),
        revoked_by=names(revoked),
        missing=names(members - counted.keys() - revoked),
        valid_until=ends[consortium.approve - 1] if enough else None,
        elsewhere=elsewhere,
        approvals=tuple(
            counted[owner.owner_id] for owner in consortium.owners if owner.owner_id in counted
        ),
    )


def require(tally: Tally) -> Tally:
    """Return a tally that is unsealed; otherwise say precisely who has to do what.

    Raises:
        ApprovalRevoked: Enough owners revoked.
        ApprovalExpired: The threshold was met but approvals have ended.
        RecipeChanged: Nobody decided on this recipe, but owners approved another one.
        ApprovalsMissing: Too few owners approve.
    """
    if tally.revoked:
        raise ApprovalRevoked(
            f"{_list(tally.revoked_by)} revoked this recipe",
            check="approvals",
            owner=_list(tally.revoked_by),
            got=f"{len(tally.revoked_by)} revoked",
            expected=f"fewer than {tally.revoke_threshold}",
            hint="a revocation is final for its recipe: lock a new recipe and have it approved",
        )
    if tally.progress >= tally.threshold:
        return tally
    got = (
        f"{tally.progress} of {tally.threshold} (approved: {_list(tally.approved_by)}; "
        f"missing: {_list(tally.missing)})"
    )
    expected = f"{tally.threshold} of {tally.owners} owners"
    if tally.progress + len(tally.expired) >= tally.threshold:
        raise ApprovalExpired(
            f"the approval of {_list(tally.expired)} has expired",
            check="approvals",
            owner=_list(tally.expired),
            got=got,
            expected=expected,
            hint=f"ask {_list(tally.expired)} to review and run: sealtrain approve",
        )
    undecided = not (tally.approved_by or tally.expired or tally.not_yet or tally.revoked_by)
    if undecided and tally.elsewhere is not None:
        raise _changed(tally.target, tally.elsewhere)
    late = f"; {_list(tally.not_yet)} approved with a clock ahead" if tally.not_yet else ""
    raise ApprovalsMissing(
        f"{tally.progress} of {tally.threshold} needed owners approved this recipe",
        check="approvals",
        owner=_list(tally.missing),
        got=got,
        expected=expected,
        hint=f"ask {_list(tally.missing)} to review and run: sealtrain approve{late}",
    )


def _changed(runs: Target, approved: Target) -> RecipeChanged:
    if runs.recipe_hash != approved.recipe_hash:
        message = "no owner decided on the recipe that runs; the owners approved another one"
        got, expected = runs.recipe_hash, approved.recipe_hash
    else:
        message = "the owners approved this recipe inside another deployment document"
        got = f"app id {runs.app_id}, compose hash {runs.compose_hash}"
        expected = f"app id {approved.app_id}, compose hash {approved.compose_hash}"
    return RecipeChanged(
        message,
        check="approvals",
        got=got,
        expected=expected,
        hint="run what was approved, or have the owners review and approve this",
    )


def _end(one: SignedDecision) -> int:
    ends = one.decision.ends
    return -1 if ends is None else ends


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "nobody"
