"""Vectors of tallies: thresholds of actions, and consent on own data; made without sealtrain."""

from __future__ import annotations

from approval_parts import (
    ENDS,
    GRADED,
    NOW,
    OWN_DATA,
    TARGET,
    TWO_OF_THREE,
    TWO_REVOKE,
    A,
    B,
    C,
    Json,
    Owner,
    decision,
    envelope,
    text,
)

CONSORTIA = {
    "two_of_three": TWO_OF_THREE,
    "two_revoke": TWO_REVOKE,
    "own_data": OWN_DATA,
    "graded": GRADED,
}


def action_cases() -> list[Json]:
    """Thresholds of actions, and consent on own data."""
    cases: list[Json] = []
    a, b, c = A.name, B.name, C.name
    plain = {"actions": ["approve"], "owners": [a]}
    export = {"actions": ["approve", "export_model"], "owners": [a]}
    logs = {"actions": ["approve", "export_model", "raise_logging"], "owners": [a]}

    def yes(owner: Owner, needs: Json, of: Json, **changes: Json) -> Json:
        label = f"{owner.name} {needs} {changes}"
        return envelope(decision(label, of=of, needs=needs, **changes), owner)

    def stop(owner: Owner, of: Json) -> Json:
        return envelope(decision(f"own stop {owner.name}", of=of, word="revoke"), owner)

    def case(
        name: str, signed: list[Json], needs: Json, of: Json, outcome: str, **more: Json
    ) -> None:
        cases.append(
            {
                "name": name,
                "consortium": next(
                    key for key, consortium in CONSORTIA.items() if consortium is of
                ),
                "decisions": [text(signature) for signature in signed],
                "target": TARGET,
                "needs": needs,
                "now": NOW,
                "expect": {"sealed": outcome != "ok", **more},
                "outcome": outcome,
            }
        )

    for needs, k, by in (
        (plain, 1, ["approve"]),
        (export, 2, ["export_model"]),
        (logs, 3, ["raise_logging"]),
    ):
        for count in range(4):
            given = [yes(owner, needs, GRADED) for owner in (C, B, A)[:count]]
            case(
                f"{by[0]} asks for {k}, {count} approve",
                given,
                needs,
                GRADED,
                "ok" if count >= k else "approvals-missing",
                threshold=k,
                demanded_by=by,
                progress=count,
                own_data=[],
            )
    case(
        "approvals that state fewer needs do not count",
        [yes(A, plain, GRADED), yes(B, plain, GRADED), yes(C, logs, GRADED)],
        logs,
        GRADED,
        "approvals-missing",
        approved_by=[c],
        mistaken=[a, b],
    )
    case(
        "nor do those that state more",
        [yes(A, logs, GRADED)],
        plain,
        GRADED,
        "approvals-missing",
        approved_by=[],
        mistaken=[a],
    )
    case(
        "nor those that leave out an owner's data",
        [yes(A, {**export, "owners": []}, GRADED), yes(B, export, GRADED)],
        export,
        GRADED,
        "approvals-missing",
        approved_by=[b],
        mistaken=[a],
    )
    case(
        "a mistaken approval does not replace one that counts",
        [yes(A, export, GRADED), yes(B, export, GRADED), yes(A, plain, GRADED)],
        export,
        GRADED,
        "ok",
        approved_by=[a, b],
        mistaken=[],
    )
    both = {"actions": ["approve"], "owners": [a, b]}
    case(
        "own data: the threshold is met without an owner whose data is read",
        [yes(A, both, OWN_DATA), yes(C, both, OWN_DATA)],
        both,
        OWN_DATA,
        "approvals-missing",
        approved_by=[a, c],
        own_data=[a, b],
        awaited=[b],
        valid_until=None,
    )
    case(
        "own data: all owners of data approve",
        [yes(A, both, OWN_DATA), yes(B, both, OWN_DATA)],
        both,
        OWN_DATA,
        "ok",
        awaited=[],
        valid_until=ENDS,
    )
    case(
        "own data: who has none there is not needed",
        [yes(B, {**both, "owners": [b]}, OWN_DATA), yes(C, {**both, "owners": [b]}, OWN_DATA)],
        {**both, "owners": [b]},
        OWN_DATA,
        "ok",
        own_data=[b],
    )
    early = "2026-03-02T12:00:00Z"
    case(
        "own data: it ends with the owner's approval, whatever the others'",
        [
            yes(A, both, OWN_DATA, not_after=early),
            yes(B, both, OWN_DATA),
            yes(C, both, OWN_DATA),
        ],
        both,
        OWN_DATA,
        "ok",
        valid_until=early,
    )
    past = "2026-03-01T11:30:00Z"
    case(
        "own data: expired",
        [yes(A, both, OWN_DATA, not_after=past), yes(B, both, OWN_DATA), yes(C, both, OWN_DATA)],
        both,
        OWN_DATA,
        "approval-expired",
        progress=2,
        awaited=[a],
    )
    all_three = [yes(owner, both, OWN_DATA) for owner in (A, B, C)]
    case(
        "own data: its owner alone stops it where two are asked for",
        [*all_three, stop(B, OWN_DATA)],
        both,
        OWN_DATA,
        "approval-revoked",
        revoked=True,
        revoked_by=[b],
    )
    case(
        "own data: somebody else alone does not",
        [*all_three, stop(C, OWN_DATA)],
        both,
        OWN_DATA,
        "ok",
        revoked=False,
        revoked_by=[c],
        approved_by=[a, b],
    )
    return cases
