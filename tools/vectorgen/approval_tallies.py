"""Vectors of tallies: which decisions count, made without sealtrain."""

from __future__ import annotations

from approval_actions import CONSORTIA, action_cases
from approval_parts import (
    CHANGED,
    ENDS,
    NEEDS,
    NOW,
    TARGET,
    TWO_OF_THREE,
    TWO_REVOKE,
    A,
    B,
    C,
    Json,
    Owner,
    canonical,
    decision,
    envelope,
    sha,
    text,
)


def tally_vectors() -> Json:
    """Decisions in ledger order and what they count to."""
    cases: list[Json] = []

    def case(
        name: str,
        signed: list[Json],
        *,
        by: list[str],
        outcome: str,
        of: Json = TWO_OF_THREE,
        now: str = NOW,
        needs: Json = NEEDS,
        **more: Json,
    ) -> None:
        expect = {"approved_by": by, "progress": len(by), "sealed": outcome != "ok", **more}
        cases.append(
            {
                "name": name,
                "consortium": next(
                    name for name, consortium in CONSORTIA.items() if consortium is of
                ),
                "decisions": [text(signature) for signature in signed],
                "target": TARGET,
                "needs": needs,
                "now": now,
                "expect": expect,
                "outcome": outcome,
            }
        )

    def yes(owner: Owner, label: str = "", **changes: Json) -> Json:
        return envelope(decision(f"yes {owner.name} {label}", **changes), owner)

    def stop(owner: Owner, **changes: Json) -> Json:
        return envelope(decision(f"stop {owner.name}", word="revoke", **changes), owner)

    a, b, c = A.name, B.name, C.name
    case("nobody decided", [], by=[], outcome="approvals-missing", missing=[a, b, c])
    case("one short", [yes(A)], by=[a], outcome="approvals-missing", missing=[b, c])
    case("two of three", [yes(A), yes(C)], by=[a, c], outcome="ok", missing=[b], valid_until=ENDS)
    case("all three", [yes(C), yes(A), yes(B)], by=[a, b, c], outcome="ok")
    case("one owner counts once", [yes(A), yes(A, "again")], by=[a], outcome="approvals-missing")
    soon = "2026-03-02T00:00:00Z"
    three = [yes(A, not_after=soon), yes(B), yes(C)]
    case("valid until the second latest end", three, by=[a, b, c], outcome="ok", valid_until=ENDS)
    both = [yes(A, not_after=soon), yes(B)]
    case("valid until the earlier of two ends", both, by=[a, b], outcome="ok", valid_until=soon)
    case("the last second still counts", both, now=soon, by=[a, b], outcome="ok", valid_until=soon)
    after = "2026-03-02T00:00:01Z"
    case(
        "one second later it does not",
        both,
        now=after,
        by=[b],
        outcome="approval-expired",
        expired=[a],
        valid_until=None,
    )
    case(
        "expired but renewed",
        [*both, yes(A, "renewed")],
        now=after,
        by=[a, b],
        outcome="ok",
        expired=[],
    )
    case(
        "one expired of one",
        [yes(A, not_after=soon)],
        now=after,
        by=[],
        outcome="approvals-missing",
        expired=[a],
    )
    shorter = [yes(A), yes(B), yes(A, "shorter", not_after=soon)]
    case(
        "the latest approval stands, also a shorter one",
        shorter,
        now=after,
        by=[b],
        outcome="approval-expired",
    )
    replay = [yes(A), yes(A, "shorter", not_after=soon), yes(B), yes(A)]
    case(
        "a replayed approval does not stand again",
        replay,
        now=after,
        by=[b],
        outcome="approval-expired",
    )
    reused = decision("yes bank-a ", not_after="2026-12-31T00:00:00Z")
    case(
        "a reused nonce is ignored",
        [both[0], envelope({**reused, "nonce": decision("yes bank-a ")["nonce"]}, A), yes(B)],
        now=after,
        by=[b],
        outcome="approval-expired",
    )
    case(
        "one revocation stops",
        [yes(A), yes(B), yes(C), stop(C)],
        by=[a, b],
        outcome="approval-revoked",
        revoked_by=[c],
        valid_until=None,
    )
    case(
        "a revocation before any approval stops",
        [stop(C), yes(A), yes(B)],
        by=[a, b],
        outcome="approval-revoked",
    )
    case(
        "an approval that does not name it does not lift a revocation",
        [yes(A), yes(B), stop(A), yes(A, "again")],
        by=[b],
        outcome="approval-revoked",
        revoked_by=[a],
    )
    first, second = stop(A), envelope(decision("stop again", word="revoke"), A)
    lifts = [sha(canonical(value)) for value in (first, second)]
    lifted = yes(A, "lifted", lifts=lifts[:1])
    case(
        "its owner lifts a revocation by naming it",
        [yes(A), yes(B), first, lifted],
        by=[a, b],
        outcome="ok",
        revoked_by=[],
    )
    case(
        "in whichever order they stand",
        [lifted, yes(B), first, yes(A)],
        by=[a, b],
        outcome="ok",
        revoked_by=[],
    )
    case(
        "an approval held back does not replace the one that lifted",
        [yes(B), first, lifted, yes(A, not_after="2027-01-01T00:00:00Z")],
        by=[a, b],
        outcome="ok",
        valid_until=ENDS,
    )
    case(
        "a second revocation stops again",
        [yes(B), first, lifted, second],
        by=[b],
        outcome="approval-revoked",
        revoked_by=[a],
    )
    case(
        "naming both lifts both",
        [yes(B), first, lifted, second, yes(A, "both", lifts=sorted(lifts))],
        by=[a, b],
        outcome="ok",
        revoked_by=[],
    )
    case(
        "nobody lifts another owner's revocation",
        [yes(B), yes(C, "lifts it", lifts=lifts[:1]), first],
        by=[b, c],
        outcome="approval-revoked",
        revoked_by=[a],
    )
    case(
        "a lift that has ended leaves an expired approval",
        [first, yes(A, "brief", lifts=lifts[:1], not_after=soon), yes(B)],
        now=after,
        by=[b],
        outcome="approval-expired",
        expired=[a],
        revoked_by=[],
    )
    case(
        "a lift that is no approval of this recipe lifts nothing",
        [yes(B), first, yes(A, "elsewhere", target=CHANGED, lifts=lifts[:1])],
        by=[b],
        outcome="approval-revoked",
        revoked_by=[a],
    )
    case(
        "a revocation dated ahead stops",
        [yes(A), yes(B), stop(C, signed_at="2031-01-01T00:00:00Z")],
        by=[a, b],
        outcome="approval-revoked",
    )
    case(
        "a revocation does not expire",
        [yes(A), yes(B), stop(C)],
        now="2026-03-31T11:00:00Z",
        by=[a, b],
        outcome="approval-revoked",
    )
    reused_stop = stop(C, nonce=decision("yes bank-c ")["nonce"])
    case(
        "a revocation counts with any nonce",
        [yes(C), yes(A), reused_stop],
        by=[a],
        outcome="approval-revoked",
    )
    case(
        "a revocation of another recipe does not stop",
        [yes(A), yes(B), stop(C, target=CHANGED)],
        by=[a, b],
        outcome="ok",
        revoked_by=[],
    )

    def yes2(owner: Owner, label: str = "") -> Json:
        return envelope(decision(f"r2 {owner.name} {label}", of=TWO_REVOKE), owner)

    def stop2(owner: Owner) -> Json:
        return envelope(decision(f"r2 stop {owner.name}", of=TWO_REVOKE, word="revoke"), owner)

    case(
        "one of two revocations does not stop",
        [yes2(A), yes2(B), stop2(C)],
        of=TWO_REVOKE,
        by=[a, b],
        outcome="ok",
        revoked_by=[c],
        missing=[],
    )
    case(
        "but withdraws its owner's approval",
        [yes2(A), yes2(B), stop2(B)],
        of=TWO_REVOKE,
        by=[a],
        outcome="approvals-missing",
        revoked_by=[b],
        missing=[c],
    )
    case(
        "an owner revokes once",
        [yes2(A), yes2(B), stop2(C), stop2(C)],
        of=TWO_REVOKE,
        by=[a, b],
        outcome="ok",
        revoked_by=[c],
    )
    case(
        "two revocations stop",
        [yes2(A), yes2(B), stop2(C), stop2(B)],
        of=TWO_REVOKE,
        by=[a],
        outcome="approval-revoked",
        revoked_by=[b, c],
    )

    case(
        "approvals of another recipe",
        [yes(A, target=CHANGED), yes(B, target=CHANGED)],
        by=[],
        outcome="recipe-changed",
        elsewhere=CHANGED,
    )
    for field in ("app_id", "compose_hash", "recipe_hash"):
        near = {**TARGET, field: CHANGED[field]}
        case(
            f"approvals with another {field}",
            [yes(A, target=near), yes(B, target=near)],
            by=[],
            outcome="recipe-changed",
        )
    case(
        "one approval here, two elsewhere",
        [yes(A, "x", target=CHANGED), yes(B, target=CHANGED), yes(A)],
        by=[a],
        outcome="approvals-missing",
    )
    ahead = "2026-03-01T12:05:01Z"
    case(
        "an approval dated ahead is not valid yet",
        [yes(A, signed_at=ahead), yes(B)],
        by=[b],
        outcome="approvals-missing",
        not_yet=[a],
    )
    case(
        "later it is",
        [yes(A, signed_at=ahead), yes(B)],
        now="2026-03-01T12:00:01Z",
        by=[a, b],
        outcome="ok",
        not_yet=[],
    )
    case(
        "an approval dated ahead does not replace a valid one",
        [yes(A), yes(B), yes(A, "x", signed_at=ahead)],
        by=[a, b],
        outcome="ok",
    )
    return {"consortia": CONSORTIA, "cases": [*cases, *action_cases()]}
