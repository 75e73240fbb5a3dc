"""Vectors of successions, made without sealtrain. Writes ``vectors/approvals/successions.json``.

Run: ``python tools/vectorgen/successions.py [FOLDER]``.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from pathlib import Path

from approval_parts import (
    OUTSIDER,
    A,
    B,
    C,
    Json,
    Owner,
    canonical,
    consortium,
    envelope,
    sha,
    text,
)

OUT = Path(__file__).resolve().parents[2] / "vectors" / "approvals"
KIND = "application/vnd.in-toto+json"
PREDICATE = "https://sealtrain.dev/attestations/succession/v1"
BEFORE = consortium([A, B, C], 2, 1, amend_members=2, amend_thresholds=3)
ROTATED = Owner("bank-c second")
ROTATED.name = C.name
NEW_KEYS = {**BEFORE, "owners": [A.identity(), B.identity(), ROTATED.identity()]}
NEW_RULES = {**BEFORE, "own_data_consent": True}


def statement(after: Json, change: Callable[[Json], object] = lambda _made: None) -> Json:
    """An in-toto statement about a successor."""
    made = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "consortium.json", "digest": {"sha256": sha(canonical(after))}}],
        "predicateType": PREDICATE,
        "predicate": {
            "version": 1,
            "predecessor": sha(canonical(BEFORE)),
            "successor": copy.deepcopy(after),
            "ledgers": [],
            "nonce": "ab" * 16,
            "not_after": "2026-03-15T12:00:00Z",
        },
    }
    change(made)
    return made


def vectors() -> Json:
    """Signed successions: accepted, and one for each check."""
    cases: list[Json] = []

    def case(name: str, made: Json, outcome: str, *signers: Owner, kind: str = KIND) -> None:
        written = text(envelope(made, *signers, kind=kind))
        more = {"signed_by": sorted(signer.name for signer in signers)} if outcome == "ok" else {}
        cases.append({"name": name, "envelope": written, "outcome": outcome, **more})

    keys, rules = statement(NEW_KEYS), statement(NEW_RULES)
    case("other keys, two sign", keys, "ok", A, B)
    case("other keys, the owner concerned signs too", keys, "ok", C, B, A)
    case("other keys, one signs", keys, "approvals-missing", A)
    case("other rules, three sign", rules, "ok", A, B, C)
    case("other rules, two sign", rules, "approvals-missing", A, B)
    both = statement({**NEW_KEYS, "own_data_consent": True})
    case("both, two sign", both, "approvals-missing", A, B)
    less = consortium([A, B], 2, 1, amend_members=2, amend_thresholds=2)
    case("an owner leaves, two sign", statement(less), "approvals-missing", A, B)
    case("an owner leaves, all sign", statement(less), "ok", A, B, C)
    case("the new keys sign", keys, "signature-invalid", A, ROTATED)
    case("an outsider signs", keys, "signature-invalid", A, B, OUTSIDER)
    case("another payload type", keys, "signature-invalid", A, B, kind="application/json")
    case("nothing changes", statement(BEFORE), "statement-invalid", A, B, C)

    def predicate(**changed: Json) -> Callable[[Json], object]:
        return lambda made: made["predicate"].update(changed)

    other = sha(canonical(consortium([A, B, C], 3, 1)))
    for name, outcome, change in (
        ("of another predecessor", "consortium-mismatch", predicate(predecessor=other)),
        ("another successor than the subject", "statement-invalid", predicate(successor=NEW_RULES)),
        ("another version", "statement-invalid", predicate(version=2)),
        ("an unknown field", "statement-invalid", predicate(note="")),
        ("a time that does not exist", "statement-invalid", predicate(not_after="soon")),
        ("a checkpoint twice", "statement-invalid", predicate(ledgers=["a", "a"])),
        (
            "another predicate type",
            "statement-invalid",
            lambda made: made.update(predicateType=PREDICATE + "x"),
        ),
        (
            "a successor that is none",
            "statement-invalid",
            lambda made: made["predicate"]["successor"].update(version=1),
        ),
    ):
        case(name, statement(NEW_KEYS, change), outcome, A, B, C)
    return {"predecessor": BEFORE, "cases": cases}


def main(folder: Path) -> None:
    """Write the file."""
    path = folder / "successions.json"
    made = vectors()
    path.write_text(json.dumps(made, indent=1) + "\n")
    print(f"{path}: {len(made['cases'])} cases")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else OUT)
