"""Counting: may this recipe run now? Pure; the time is an argument. See ``spec/approvals.md``.

``tally`` reads verified decisions in the order of the ledger:

1. A decision on another target does not count here.
2. A revocation counts, whatever its date and nonce: of the same owner only an approval counts that
   names it, and every other revocation of the target by that owner.
3. An approval with a nonce its owner used before is a replay and ignored.
4. An approval dated more than ``skew`` seconds in the future is not valid yet and ignored.
5. An approval that states other needs than the recipe has was given to something else: ignored.
6. Of the rest, an owner's latest approval stands and replaces the ones before it.
7. It counts until its ``not_after`` second, that second included, and for a run that would begin
   unless it is a standing approval that is spent.

The threshold is the highest of the actions that the recipe needs. Where the consortium asks for
consent on own data, the owners whose data the recipe reads must be among those who count, and a
revocation by any of them stops it alone. The recipe is *unsealed* when the threshold is met and no
revocation stops it; otherwise it is *sealed*. Status words are Vault's: threshold, progress,
sealed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from types import MappingProxyType

from sealtrain.base.canonical import JsonValue
from sealtrain.base.clock import to_rfc3339
from sealtrain.consortium.decisions import (
    CLOCK_SKEW,
    DatasetPin,
    Decision,
    SignedDecision,
    sign_decision,
    verify_decision,
)
from sealtrain.consortium.errors import (
    ApprovalExpired,
    ApprovalRevoked,
    ApprovalsMissing,
    ApprovalSpent,
    BudgetSpent,
)
from sealtrain.consortium.members import Consortium
from sealtrain.consortium.standing_approval import Spent
from sealtrain.errors import RecipeChanged
from sealtrain.signing.needs import Needs, RecipeAction, reasons_in_words
from sealtrain.signing.target import Target

__all__ = [
    "CLOCK_SKEW",
    "ApprovalTally",
    "DatasetPin",
    "Decision",
    "Needs",
    "SignedDecision",
    "require",
    "sign_decision",
    "tally",
    "tally_as_stated",
    "verify_decision",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalTally:
    """Where the approval of one target stands at one time. Owners are named in their order."""

    consortium_id: str
    target: Target
    now: int
    owners: int
    """n: how many owners there are."""
    needs: Needs
    """Of the recipe."""
    threshold: int
    """k: how many must approve."""
    demanded_by: tuple[RecipeAction, ...]
    """Actions of the recipe that demand this threshold."""
    own_data: tuple[str, ...]
    """Owners who must be among them because their data is read, if the consortium asks for it."""
    revoke_threshold: int
    progress: int
    """How many approve."""
    approved_by: tuple[str, ...]
    expired: tuple[str, ...]
    """Owners whose latest approval has ended."""
    spent: tuple[str, ...]
    """Owners whose latest approval stands and lets no further run begin."""
    spent_by: tuple[Spent, ...]
    """By what, in the order of ``spent``."""
    not_yet: tuple[str, ...]
    """Owners with no valid approval and one that is dated in the future."""
    mistaken: tuple[str, ...]
    """Owners with no valid approval and one that states other needs."""
    revoked_by: tuple[str, ...]
    missing: tuple[str, ...]
    """Owners that neither approve now nor revoked."""
    valid_until: int | None
    """Last second at which the threshold is met without another decision; ``None`` if it is not."""
    elsewhere: Target | None
    """The target of the latest approval of another target; ``None`` when there is none."""
    approvals: tuple[SignedDecision, ...]
    """The decisions that count, in the order of ``approved_by``."""
    exhausted: tuple[SignedDecision, ...]
    """The decisions of ``spent``, in its order."""

    @property
    def revoked(self) -> bool:
        """Enough owners revoked, or an owner whose own data is read."""
        return len(self.revoked_by) >= self.revoke_threshold or bool(self.vetoed_by)

    @property
    def vetoed_by(self) -> tuple[str, ...]:
        """Owners who revoked and whose own data is read."""
        return tuple(owner for owner in self.revoked_by if owner in self.own_data)

    @property
    def awaited(self) -> tuple[str, ...]:
        """Owners whose data is read and who do not approve, whatever the threshold."""
        return tuple(owner for owner in self.own_data if owner not in self.approved_by)

    @property
    def needed(self) -> int:
        """How many owners must approve, those whose data is read among them.

        As many as the threshold, or those that approve and those that are awaited together.
        """
        if not self.awaited:
            return self.threshold
        return max(self.threshold, self.progress + len(self.awaited))

    @property
    def sealed(self) -> bool:
        """No key may be released."""
        return self.revoked or self.progress < self.threshold or bool(self.awaited)

    @property
    def pins(self) -> dict[str, dict[str, str]]:
        """Of each owner whose approval counts: dataset id → root."""
        return {approval.owner.name: approval.decision.pins() for approval in self.approvals}

    def verdict(self) -> str:
        """Whether the approvals suffice, and what follows where they do not."""
        if not self.sealed:
            return "enough"
        return f"{'revoked' if self.revoked else 'not enough'}: no key is released"

    def in_words(self) -> str:
        """How many approve, of how many that are needed; more may approve than are needed."""
        return f"{self.progress} approve, {self.needed} needed"

    def to_dict(self) -> dict[str, JsonValue]:
        """JSON-ready form, without envelopes."""
        return {
            "consortium_id": self.consortium_id,
            **self.target.to_dict(),
            "at": to_rfc3339(self.now),
            "owners": self.owners,
            "needs": self.needs.to_dict(),
            "threshold": self.threshold,
            "demanded_by": list(self.demanded_by),
            "own_data": list(self.own_data),
            "revoke_threshold": self.revoke_threshold,
            "progress": self.progress,
            "sealed": self.sealed,
            "revoked": self.revoked,
            "approved_by": list(self.approved_by),
            "expired": list(self.expired),
            "spent": list(self.spent),
            "not_yet": list(self.not_yet),
            "mistaken": list(self.mistaken),
            "revoked_by": list(self.revoked_by),
            "missing": list(self.missing),
            "awaited": list(self.awaited),
            "valid_until": None if self.valid_until is None else to_rfc3339(self.valid_until),
            "elsewhere": None if self.elsewhere is None else self.elsewhere.to_dict(),
        }


def tally(
    decisions: Iterable[SignedDecision],
    consortium: Consortium,
    target: Target,
    now: int,
    *,
    needs: Needs,
    skew: int = CLOCK_SKEW,
    over: AbstractSet[str] = frozenset(),
    spent: Mapping[str, Spent] = MappingProxyType({}),
) -> ApprovalTally:
    """Count the decisions on ``target``.

    Args:
        decisions: Verified for this consortium, in the order of the ledger.
        consortium: Owners and thresholds.
        target: The recipe in question.
        now: Seconds since the epoch.
        needs: What the recipe needs, from its lock.
        skew: Seconds an owner's clock may be ahead.
        over: Digests of approvals that ended before, by a clock that goes back since: they count as
            expired whatever ``now`` is.
        spent: Of a run that would begin: digests of standing approvals that let no further run
            begin, and by what they are spent. Empty for a run that has begun.
    """
    decisions = tuple(decisions)
    latest: dict[str, SignedDecision] = {}
    mistaken: set[str] = set()
    stops: dict[str, set[str]] = {}
    for signed in decisions:
        if signed.decision.decision == "revoke" and signed.decision.target == target:
            stops.setdefault(signed.owner.owner_id, set()).add(signed.digest)
    future: set[str] = set()
    nonces: set[tuple[str, str]] = set()
    elsewhere: Target | None = None
    members = {owner.owner_id for owner in consortium.owners}
    for signed in decisions:
        decision, owner_id = signed.decision, signed.owner.owner_id
        if decision.consortium_id != consortium.consortium_id or owner_id not in members:
            raise ValueError("tally takes decisions that verify_decision returned")
        if decision.decision == "revoke":
            continue
        if (owner_id, decision.nonce) in nonces:
            continue
        nonces.add((owner_id, decision.nonce))
        if decision.target != target:
            elsewhere = decision.target
        elif decision.signed > now + skew:
            future.add(owner_id)
        elif decision.needs != needs:
            mistaken.add(owner_id)
        elif stops.get(owner_id, set()) <= set(decision.lifts):
            latest[owner_id] = signed
    revoked = stops.keys() - latest.keys()
    counted = {
        owner_id: signed
        for owner_id, signed in latest.items()
        if _end(signed) >= now and signed.digest not in over
    }
    used_up = {
        owner_id: spent[signed.digest]
        for owner_id, signed in counted.items()
        if signed.digest in spent
    }
    ended = latest.keys() - counted.keys()
    counted = {owner_id: signed for owner_id, signed in counted.items() if owner_id not in used_up}

    def names(owner_ids: Iterable[str]) -> tuple[str, ...]:
        wanted = set(owner_ids)
        return tuple(owner.name for owner in consortium.owners if owner.owner_id in wanted)

    threshold, demanded_by = consortium.thresholds.count_required(needs)
    found = ApprovalTally(
        consortium_id=consortium.consortium_id,
        target=target,
        now=now,
        owners=len(members),
        needs=needs,
        threshold=threshold,
        demanded_by=demanded_by,
        own_data=needs.owners if consortium.own_data_consent else (),
        revoke_threshold=consortium.thresholds.revoke,
        progress=len(counted),
        approved_by=names(counted),
        expired=names(ended),
        spent=names(used_up),
        spent_by=tuple(
            used_up[owner.owner_id] for owner in consortium.owners if owner.owner_id in used_up
        ),
        not_yet=names(future - latest.keys() - revoked),
        mistaken=names(mistaken - latest.keys() - revoked),
        revoked_by=names(revoked),
        missing=names(members - counted.keys() - revoked),
        valid_until=None,
        elsewhere=elsewhere,
        approvals=tuple(
            counted[owner.owner_id] for owner in consortium.owners if owner.owner_id in counted
        ),
        exhausted=tuple(
            latest[owner.owner_id] for owner in consortium.owners if owner.owner_id in used_up
        ),
    )
    return found if found.sealed else replace(found, valid_until=_until(found))


def _until(unsealed: ApprovalTally) -> int:
    """Last second at which enough approvals stand, those on own data among them."""
    ends = {approval.owner.name: _end(approval) for approval in unsealed.approvals}
    enough = sorted(ends.values(), reverse=True)[unsealed.threshold - 1]
    return min([enough, *(ends[owner] for owner in unsealed.own_data)])


def tally_as_stated(
    decisions: Iterable[SignedDecision], consortium: Consortium, target: Target, now: int
) -> ApprovalTally:
    """Count without the recipe, by the needs that approvals state: those that got furthest.

    Only the needs of each owner's latest approval are tried, so that no owner makes counting slow.

    Good enough to show progress and for what releases no data key. Owners who together meet a
    threshold decide what it is, so where the lock is at hand ``tally`` takes it from there.

    Args:
        decisions: As for ``tally``.
        consortium: Owners and thresholds.
        target: The deployment in question.
        now: Seconds since the epoch.
    """
    known = tuple(decisions)
    latest = {
        signed.owner.owner_id: signed.decision.needs
        for signed in known
        if signed.decision.target == target and signed.decision.needs is not None
    }
    stated = set(latest.values())
    tallies = [
        tally(known, consortium, target, now, needs=needs)
        for needs in stated or {Needs(actions=("approve",), owners=())}
    ]
    # The needs decide between equals, so that every party shows the same tally.
    return max(
        tallies,
        key=lambda counted_tally: (
            not counted_tally.sealed,
            counted_tally.progress,
            counted_tally.needs.actions,
            counted_tally.needs.owners,
        ),
    )


def require(tally: ApprovalTally) -> ApprovalTally:
    """Return a tally that is unsealed; otherwise name the owners who must act, and how.

    Raises:
        ApprovalRevoked: Enough owners revoked.
        ApprovalExpired: The threshold was met but approvals have ended.
        ApprovalSpent, BudgetSpent: It would be met by approvals that let no further run begin.
        RecipeChanged: No owner decided on this recipe, but owners approved another.
        ApprovalsMissing: Too few owners approve.
    """
    if tally.revoked:
        raise _refuse_stopped(tally)
    if not tally.sealed:
        return tally
    got = (
        f"{tally.progress} of {tally.needed} (approved: {_list(tally.approved_by)}; "
        f"missing: {_list(tally.missing)})"
    )
    expected = _demand(tally)
    back = {*tally.approved_by, *tally.expired}
    if len(back) >= tally.threshold and back.issuperset(tally.awaited):
        raise ApprovalExpired(
            f"the approval of {_list(tally.expired)} has expired",
            check="approvals",
            owner=_list(tally.expired),
            got=got,
            expected=expected,
            hint=f"ask {_list(tally.expired)} to review and run: sealtrain approve",
        )
    back |= {*tally.spent}
    if tally.spent and len(back) >= tally.threshold and back.issuperset(tally.awaited):
        raise _refuse_spent(tally)
    undecided = not (
        tally.approved_by
        or tally.expired
        or tally.spent
        or tally.not_yet
        or tally.mistaken
        or tally.revoked_by
    )
    if undecided and tally.elsewhere is not None:
        raise _refuse_changed(tally.target, tally.elsewhere)
    asked = tally.awaited if tally.progress >= tally.threshold else tally.missing
    late = f"; {_list(tally.not_yet)} approved with a clock ahead" if tally.not_yet else ""
    wrong = (
        f"; {_list(tally.mistaken)} approved it as needing something else" if tally.mistaken else ""
    )
    raise ApprovalsMissing(
        f"{tally.progress} of {tally.needed} needed owners approved this recipe"
        if tally.progress < tally.threshold
        else f"the recipe reads data of {_list(asked)}, who did not approve it",
        check="approvals",
        owner=_list(asked),
        got=got,
        expected=expected,
        hint=f"ask {_list(asked)} to review and run: sealtrain approve{late}{wrong}",
    )


def _refuse_stopped(tally: ApprovalTally) -> ApprovalRevoked:
    enough = len(tally.revoked_by) >= tally.revoke_threshold
    expected = (
        f"fewer than {tally.revoke_threshold}" if enough else "none by an owner of data it reads"
    )
    return ApprovalRevoked(
        f"{_list(tally.revoked_by)} revoked this recipe",
        check="approvals",
        owner=_list(tally.revoked_by),
        got=f"{len(tally.revoked_by)} revoked",
        expected=expected,
        hint="lift each revocation: sealtrain approve --lift-revocation; or lock a new recipe",
    )


def _refuse_spent(tally: ApprovalTally) -> ApprovalSpent | BudgetSpent:
    who = _list(tally.spent)
    if "runs" in tally.spent_by:
        return ApprovalSpent(
            f"as many runs have begun as the standing approval of {who} allows",
            check="approvals",
            owner=who,
            got="one run more",
            expected="a run that an approval allows",
            hint=f"ask {who} to review and run: sealtrain approve --runs",
        )
    return BudgetSpent(
        f"the privacy budget of the standing approval of {who} has too little left for this run",
        check="approvals",
        owner=who,
        got="epsilon of this run on top of what runs reserved",
        expected="at most the epsilon of the approval",
        hint=f"ask {who} to review and run: sealtrain approve --runs --budget",
    )


def _demand(tally: ApprovalTally) -> str:
    """The number of owners needed, and why."""
    own = f", {_list(tally.own_data)} among them" if tally.own_data else ""
    why = f", because {reasons_in_words(tally.demanded_by)}"
    if tally.demanded_by == ("approve",):
        why = ""
    return f"{tally.threshold} of {tally.owners} owners{own}{why}"


def _refuse_changed(runs: Target, approved: Target) -> RecipeChanged:
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


def _end(signed: SignedDecision) -> int:
    ends = signed.decision.ends
    return -1 if ends is None else ends


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "nobody"
