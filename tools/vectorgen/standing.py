"""Vectors of standing approvals and series of datasets, made without sealtrain.

Writes ``vectors/approvals/{standing,series}.json``: signed decisions and manifests that hold or
break a rule, what is left of an approval after runs, and chains of members with their digests.
Everything follows from the seeds in approval_parts.py, so a second run writes the same bytes.
Run: ``python tools/vectorgen/standing.py [FOLDER]``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from approval_parts import CHANGED, TARGET, TWO_OF_THREE, A, B, Json, decision, envelope, sha, text

OUT = Path(__file__).resolve().parents[2] / "vectors" / "approvals"
DATASET = "application/vnd.sealtrain.dataset+json"
FIRST = "ab" * 32
GOOD_TERMS: dict[str, Json] = {
    "not standing": None,
    "runs alone": {"runs": 10},
    "one run": {"runs": 1},
    "a million runs": {"runs": 1_000_000},
    "a budget": {"runs": 10, "epsilon": 8},
    "a budget with a fraction": {"runs": 10, "epsilon": 0.5},
    "two series": {
        "runs": 3,
        "series": [{"name": "a", "first": FIRST}, {"name": "b", "first": FIRST}],
    },
}
BAD_TERMS: dict[str, Json] = {
    "no number of runs": {"epsilon": 8},
    "no run": {"runs": 0},
    "more than a million runs": {"runs": 1_000_001},
    "runs that are true": {"runs": True},
    "runs that are text": {"runs": "3"},
    "half a run": {"runs": 1.5},
    "a budget of zero": {"runs": 1, "epsilon": 0},
    "a budget below zero": {"runs": 1, "epsilon": -1},
    "a budget above 1000": {"runs": 1, "epsilon": 1000.5},
    "a budget of null": {"runs": 1, "epsilon": None},
    "no series in a list": {"runs": 1, "series": []},
    "a series twice": {"runs": 1, "series": [{"name": "a", "first": FIRST}] * 2},
    "series out of order": {
        "runs": 1,
        "series": [{"name": "b", "first": FIRST}, {"name": "a", "first": FIRST}],
    },
    "a series without its first member": {"runs": 1, "series": [{"name": "a"}]},
    "an unknown field": {"runs": 1, "days": 30},
    "a list": [1],
}


def canonical(value: Json) -> bytes:
    """RFC 8785 for what occurs here: ASCII names, texts, short decimal numbers, null."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def sign_terms(name: str, terms: Json, *, word: str = "approve") -> Json:
    """A decision of A with terms; without any where they are ``None``."""
    document = decision(name, word=word)
    return document if terms is None else {**document, "standing": terms}


def compute_spent(terms: Json, begun: list[Json], asked: float) -> Json:
    """By what an approval at place 5 is spent for a run that asks for so much of A's ``x``."""
    counted = [run for run in begun if run["index"] > 5 and run["target"] == TARGET]
    if len(counted) >= terms["runs"]:
        return "runs"
    if "epsilon" not in terms:
        return None
    used = sum(run["epsilon"] for run in counted)
    if asked == 0 or used + asked > terms["epsilon"] + 1e-9:
        return "epsilon"
    return None


def countings() -> list[Json]:
    """Runs of a ledger, and what they leave of an approval."""

    def run(index: int, epsilon: float = 0, target: Json = TARGET) -> Json:
        return {"index": index, "epsilon": epsilon, "target": target}

    made: list[Json] = []
    for name, terms, begun, asked in (
        ("no run yet", {"runs": 1}, [], 0),
        ("the last run is used", {"runs": 1}, [run(6)], 0),
        ("one of two is used", {"runs": 2}, [run(6)], 0),
        ("runs before the approval do not count", {"runs": 1}, [run(1), run(4)], 0),
        ("runs of another recipe do not count", {"runs": 1}, [run(6, target=CHANGED)], 0),
        ("the budget has room", {"runs": 9, "epsilon": 5}, [run(6, 2)], 2),
        ("the budget is met", {"runs": 9, "epsilon": 4}, [run(6, 2)], 2),
        ("the budget has no room", {"runs": 9, "epsilon": 5}, [run(6, 2), run(7, 2)], 2),
        ("fractions add up", {"runs": 9, "epsilon": 0.3}, [run(6, 0.1)], 0.2),
        ("earlier reservations do not count", {"runs": 9, "epsilon": 2}, [run(3, 2)], 2),
        ("a run without epsilon", {"runs": 9, "epsilon": 5}, [], 0),
        ("runs are looked at before the budget", {"runs": 1, "epsilon": 2}, [run(6, 2)], 2),
    ):
        spent = compute_spent(terms, begun, asked)
        made.append(
            {"name": name, "standing": terms, "begun": begun, "asked": asked, "spent": spent}
        )
    return made


def standing_vectors() -> Json:
    """Decisions and countings."""
    cases: list[Json] = []
    for outcome, statements in (("ok", GOOD_TERMS), ("statement-invalid", BAD_TERMS)):
        for name, terms in statements.items():
            payload = canonical(sign_terms(name, terms))
            made = envelope(None, A, payload=payload)
            case = {"name": name, "envelope": text(made), "outcome": outcome}
            if outcome == "ok":
                case |= {"standing": terms, "digest": sha(canonical(made))}
            cases.append(case)
    stops = envelope(sign_terms("a revocation", {"runs": 1}, word="revoke"), A)
    cases.append({"name": "a revocation", "envelope": text(stops), "outcome": "statement-invalid"})
    return {
        "consortium": TWO_OF_THREE,
        "target": TARGET,
        "place": 5,
        "cases": {"approvals": cases, "countings": countings()},
    }


def member(number: int, previous: str | None, **changes: Json) -> Json:
    """A dataset manifest of A; changes of its block stand under ``series``."""
    block = {"name": "notes", "number": number, "mode": "append", "previous": previous}
    block |= changes.pop("series", {})
    document = {
        "version": 1,
        "dataset_id": f"{number:02x}" * 16,
        "name": "notes",
        "owner": A.name,
        "owner_id": A.owner_id,
        "root": f"{0xE0 + number:02x}" * 32,
        "shards": 1,
        "records": 100 * number,
        "tokens": None,
        "schema_digest": "f1" * 32,
        "app_id": TARGET["app_id"],
        "compose_hash": TARGET["compose_hash"],
        "sealed_at": "2026-03-01T12:00:00Z",
        "previous": None,
        "series": block,
    }
    return document | changes


def member_digest(manifest: Json) -> str:
    """Digest of a member."""
    names = ("owner", "dataset_id", "root", "records", "schema_digest", "series")
    said = {name: manifest[name] for name in names}
    return sha(b"sealtrain/series-member/v1:" + canonical(said))


def chain(*changes: Json, mode: str = "append", bounds: Json = None) -> list[Json]:
    """Members that follow each other, each with its changes."""
    found: list[Json] = []
    for number, changed in enumerate(({}, *changes), start=1):
        block: Json = {"mode": mode}
        if number == 1 and bounds is not None:
            block["bounds"] = bounds
        previous = member_digest(found[-1]) if found else None
        own = dict(changed)
        own["series"] = block | own.pop("series", {})
        found.append(member(number, previous, **own))
    return found


def series_vectors() -> Json:
    """Chains that hold, and one for each rule."""
    apart = "00" * 32
    chains: list[Json] = []
    for name, members, outcome in (
        ("one member", chain(), "ok"),
        ("three members", chain({}, {}), "ok"),
        ("replaced twice", chain({}, {}, mode="replace"), "ok"),
        ("growth within bounds", chain({}, bounds={"min_growth": 200, "max_growth": 200}), "ok"),
        ("registered for another recipe", chain({"compose_hash": "1b" * 32}), "ok"),
        ("a gap", [chain({}, {})[i] for i in (0, 2)], "series-mismatch"),
        ("no first member", chain({}, {})[1:], "series-mismatch"),
        ("a fork", [*chain({}), chain({"root": apart})[1]], "series-mismatch"),
        (
            "a successor of another member",
            chain({"series": {"previous": apart}}),
            "series-mismatch",
        ),
        (
            "a former member that was swapped",
            [chain()[0] | {"root": apart}, chain({})[1]],
            "series-mismatch",
        ),
        ("another mode", chain({"series": {"mode": "replace"}}), "series-mismatch"),
        ("growth above the bound", chain({}, bounds={"max_growth": 199}), "series-mismatch"),
        ("growth below the bound", chain({}, bounds={"min_growth": 201}), "series-mismatch"),
        ("growth of a replacement", chain({}, mode="replace", bounds={"max_growth": 100}), "ok"),
        (
            "a replacement that shrank",
            chain({"records": 99}, mode="replace", bounds={"min_growth": 0}),
            "series-mismatch",
        ),
        ("the same columns", chain({}, bounds={"schema": "same"}), "ok"),
        (
            "other columns",
            chain({"schema_digest": "f2" * 32}, bounds={"schema": "same"}),
            "series-mismatch",
        ),
        (
            "columns that a manifest cannot show",
            chain({"schema_digest": "f2" * 32}, bounds={"schema": "nullable-columns"}),
            "ok",
        ),
        ("records that are private", chain({"records": None}, bounds={"max_growth": 1}), "ok"),
    ):
        case = {
            "name": name,
            "members": [text(envelope(member, A, kind=DATASET)) for member in members],
            "outcome": outcome,
        }
        if outcome == "ok":
            case["digests"] = [member_digest(member) for member in members]
        chains.append(case)
    forms: list[Json] = []
    for name, changes in (
        ("member 1 that follows", {"series": {"previous": apart}}),
        ("no number", {"series": {"number": 0}}),
        ("member 513", {"series": {"number": 513, "previous": apart}}),
        ("an unknown mode", {"series": {"mode": "merge"}}),
        ("bounds that bound nothing", {"series": {"bounds": {}}}),
        ("bounds of null", {"series": {"bounds": None}}),
        ("bounds that cross", {"series": {"bounds": {"min_growth": 2, "max_growth": 1}}}),
        ("a bound of null", {"series": {"bounds": {"min_growth": None, "max_growth": 1}}}),
        (
            "columns that a replacement cannot show",
            {"series": {"mode": "replace", "bounds": {"schema": "nullable-columns"}}},
        ),
        ("another name than the dataset", {"series": {"name": "others"}}),
        ("an unknown field", {"series": {"branch": 1}}),
        ("a series of null", {"series": None}),
    ):
        made = (
            member(1, None) | {"series": None}
            if changes["series"] is None
            else member(1, None, **changes)
        )
        forms.append(
            {
                "name": name,
                "envelope": text(envelope(made, A, kind=DATASET)),
                "outcome": "statement-invalid",
            }
        )
    stranger = member(2, member_digest(member(1, None)))
    forms.append(
        {
            "name": "a successor that another owner signs",
            "envelope": text(envelope(stranger, B, kind=DATASET)),
            "outcome": "dataset-mismatch",
        }
    )
    return {"consortium": TWO_OF_THREE, "cases": {"chains": chains, "forms": forms}}


def main(folder: Path) -> None:
    """Write the files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, made in (("standing", standing_vectors()), ("series", series_vectors())):
        path = folder / f"{name}.json"
        path.write_text(json.dumps(made, indent=1) + "\n")
        lists = made["cases"].values() if isinstance(made["cases"], dict) else [made["cases"]]
        print(f"{path}: {sum(map(len, lists))} cases")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else OUT)
