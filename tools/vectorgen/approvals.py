"""Vectors of consortium documents, decisions and tallies, made without sealtrain.

Writes ``vectors/approvals/{consortium,decisions,tallies,withdrawals}.json``. Everything follows
from the seeds in approval_parts.py, so a second run writes the same bytes.
Run: ``python tools/vectorgen/approvals.py [FOLDER]``.
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path

from approval_parts import (
    DECISION,
    ENDS,
    NEEDS,
    NOW,
    OUTSIDER,
    PIN,
    PIN2,
    SIGNED,
    TWO_OF_THREE,
    A,
    B,
    C,
    Json,
    Owner,
    b64,
    canonical,
    consortium,
    decision,
    envelope,
    sha,
    text,
)
from approval_tallies import tally_vectors

OUT = Path(__file__).resolve().parents[2] / "vectors" / "approvals"


def with_threshold(action: str, value: Json) -> Json:
    """``TWO_OF_THREE`` with another threshold, or without one."""
    thresholds = {**TWO_OF_THREE["thresholds"], action: value}
    if value is None:
        del thresholds[action]
    return {**TWO_OF_THREE, "thresholds": thresholds}


def consortium_vectors() -> Json:
    """Documents that are accepted, and one for each rule."""
    cases: list[Json] = []

    def case(name: str, document: Json, outcome: str) -> None:
        cases.append({"name": name, "document": document, "outcome": outcome})

    case("two of three", TWO_OF_THREE, "ok")
    case("one owner alone", consortium([A], 1, 1), "ok")
    case("no owner", consortium([], 1, 1), "consortium-invalid")
    case("k is zero", consortium([A, B], 0, 1), "consortium-invalid")
    case("k exceeds n", consortium([A, B], 3, 1), "consortium-invalid")
    case("r is zero", consortium([A, B], 2, 0), "consortium-invalid")
    case("r exceeds n", consortium([A, B], 2, 3), "consortium-invalid")
    for action in TWO_OF_THREE["thresholds"]:
        for name, number in (("zero", 0), ("more than n", 4), ("left out", None)):
            case(f"{action} is {name}", with_threshold(action, number), "consortium-invalid")
    for name, value in (("a text", "2"), ("true", True), ("an object", {}), ("a fraction", 2.5)):
        case(f"k is {name}", with_threshold("approve", value), "consortium-invalid")
    case("an unknown threshold", with_threshold("seal", 2), "consortium-invalid")
    case("consent on own data", {**TWO_OF_THREE, "own_data_consent": True}, "ok")
    case("consent that is a number", {**TWO_OF_THREE, "own_data_consent": 1}, "consortium-invalid")
    silent = {name: value for name, value in TWO_OF_THREE.items() if name != "own_data_consent"}
    case("nothing said of own data", silent, "consortium-invalid")
    case("an owner twice", consortium([A, A], 1, 1), "consortium-invalid")
    case("owners out of order", consortium([B, A], 1, 1), "consortium-invalid")
    case("another version", {**TWO_OF_THREE, "version": 1}, "consortium-invalid")
    old = {"version": 1, "name": "banks", "owners": TWO_OF_THREE["owners"], "approve": 2}
    case("the form of version 1", {**old, "revoke": 1}, "consortium-invalid")
    case("an unknown field", {**TWO_OF_THREE, "quorum": 2}, "consortium-invalid")
    case("a name with capitals", {**TWO_OF_THREE, "name": "Banks"}, "consortium-invalid")
    twin = {**B.identity(), "name": "bank-z"}
    for field in ("signing_key", "sealing_key"):
        shared = {**C.identity(), field: twin[field]}
        document = consortium([A, B], 1, 1)
        document["owners"].append(shared)
        case(f"two owners share a {field}", document, "consortium-invalid")
    small = {**A.identity(), "signing_key": b64(bytes([1]) + bytes(31))}
    case(
        "a signing key of small order",
        {**consortium([A], 1, 1), "owners": [small]},
        "consortium-invalid",
    )
    short = {**A.identity(), "sealing_key": b64(A.sealing[:-1])}
    case(
        "a sealing key too short",
        {**consortium([A], 1, 1), "owners": [short]},
        "consortium-invalid",
    )
    for each_case in cases:
        if each_case["outcome"] == "ok":
            each_case["consortium_id"] = sha(canonical(each_case["document"]))
    owners = [
        {"name": owner.name, "owner_id": owner.owner_id, "key_id": owner.key_id}
        for owner in (A, B, C)
    ]
    return {"owners": owners, "cases": cases}


def decision_vectors() -> Json:
    """Signed decisions at ``NOW``: accepted, and one for each check."""
    cases: list[Json] = []

    def case(name: str, written: str, outcome: str, **more: Json) -> None:
        cases.append({"name": name, "envelope": written, "outcome": outcome, **more})

    good = decision("good")
    genuine = envelope(good, A)
    case("approval", text(genuine), "ok", owner=A.name, digest=sha(canonical(genuine)))
    stop = envelope(decision("stop", word="revoke"), B)
    case("revocation", text(stop), "ok", owner=B.name, digest=sha(canonical(stop)))
    case(
        "approval pinning two datasets",
        text(envelope(decision("two", datasets=[PIN, PIN2]), C)),
        "ok",
        owner=C.name,
    )
    case(
        "approval pinning nothing",
        text(envelope(decision("none", datasets=[]), C)),
        "ok",
        owner=C.name,
    )

    case("signed by an outsider", text(envelope(good, OUTSIDER)), "approval-unknown")
    forged = envelope(good, OUTSIDER)
    forged["signatures"][0]["keyid"] = A.key_id
    case("outsider's signature under an owner's key id", text(forged), "signature-invalid")
    swapped = envelope(good, B)
    swapped["signatures"][0]["keyid"] = A.key_id
    case("another owner's signature under an owner's key id", text(swapped), "signature-invalid")
    case("two signatures", text(envelope(good, A, B)), "signature-invalid")
    case("no signature", text({**genuine, "signatures": []}), "signature-invalid")
    case(
        "another payload type",
        text(envelope(good, A, kind="application/json")),
        "signature-invalid",
    )
    case(
        "payload type changed after signing",
        text({**genuine, "payloadType": "application/json"}),
        "signature-invalid",
    )
    for field, value in (
        ("recipe_hash", "ff" * 32),
        ("compose_hash", "ff" * 32),
        ("app_id", "ff" * 20),
        ("not_after", "2027-03-31T11:00:00Z"),
        ("nonce", "ff" * 16),
        ("datasets", [PIN2]),
        ("needs", {**NEEDS, "owners": []}),
        ("lifts", ["aa" * 32]),
    ):
        altered = {**genuine, "payload": b64(canonical({**good, field: value}))}
        case(f"{field} changed after signing", text(altered), "signature-invalid")
    other = consortium([A, B, C], 3, 1)
    case(
        "of another consortium", text(envelope(decision("other", of=other), A)), "approval-unknown"
    )

    for name, changes in (
        ("approval without an end", {"not_after": None}),
        ("approval that ends when it begins", {"not_after": SIGNED}),
        ("an unknown field", {"comment": "yes"}),
        ("another version", {"version": 3}),
        ("another word", {"decision": "maybe"}),
        ("a time that does not exist", {"signed_at": "2026-02-30T11:00:00Z"}),
        ("a time with an offset", {"signed_at": "2026-03-01T11:00:00+00:00"}),
        ("a nonce too short", {"nonce": "00" * 15}),
        ("capitals in a hash", {"recipe_hash": "0C" * 32}),
        ("datasets out of order", {"datasets": [PIN2, PIN]}),
        ("a dataset twice", {"datasets": [PIN, PIN]}),
        ("approval without needs", {"needs": None}),
        ("needs without approve", {"needs": {**NEEDS, "actions": ["export_model"]}}),
        ("needs with an unknown action", {"needs": {**NEEDS, "actions": ["approve", "open"]}}),
        ("actions out of order", {"needs": {**NEEDS, "actions": NEEDS["actions"][::-1]}}),
        ("an owner named twice", {"needs": {**NEEDS, "owners": ["bank-a", "bank-a"]}}),
        ("brokers out of order", {"brokers": ["b2" * 32, "b1" * 32]}),
        ("a broker twice", {"brokers": ["b1" * 32] * 2}),
        ("a broker that is no id", {"brokers": ["b1" * 31]}),
        ("for no broker", {"brokers": []}),
        ("for too many brokers", {"brokers": [f"{number:064x}" for number in range(65)]}),
        ("of version 1", {"version": 1}),
        ("lifts out of order", {"lifts": ["bb" * 32, "aa" * 32]}),
        ("a lift twice", {"lifts": ["aa" * 32] * 2}),
        ("a lift that is no digest", {"lifts": ["aa" * 31]}),
    ):
        case(name, text(envelope(decision(name, **changes), A)), "statement-invalid")
    missing = decision("missing")
    del missing["nonce"]
    case("a missing field", text(envelope(missing, A)), "statement-invalid")
    for name, changes in (
        ("revocation with an end", {"not_after": ENDS}),
        ("revocation that pins a dataset", {"datasets": [PIN]}),
        ("revocation with needs", {"needs": NEEDS}),
        ("revocation that lifts one", {"lifts": ["aa" * 32]}),
    ):
        case(name, text(envelope(decision(name, word="revoke", **changes), A)), "statement-invalid")
    loose = json.dumps(good, sort_keys=True).encode()
    case("payload not canonical", text(envelope(good, A, payload=loose)), "statement-invalid")
    for name, reader, outcome in (
        ("read by one of its brokers", ["b2" * 32], "ok"),
        ("read by a broker that it names by a former id", ["b3" * 32, "b1" * 32], "ok"),
        ("carried to another broker", ["b3" * 32], "broker-mismatch"),
    ):
        named = {"owner": A.name} if outcome == "ok" else {}
        case(name, text(genuine), outcome, reader=reader, **named)
    case("revocation carried to another broker", text(stop), "broker-mismatch", reader=["b3" * 32])
    late = decision("late", signed_at="2026-03-01T12:05:01Z")
    case("dated one second beyond the skew", text(envelope(late, A)), "statement-invalid")
    edge = decision("edge", signed_at="2026-03-01T12:05:00Z")
    case("dated at the skew", text(envelope(edge, A)), "ok", owner=A.name)
    future = decision("future stop", word="revoke", signed_at="2031-01-01T00:00:00Z")
    case("revocation dated years ahead", text(envelope(future, A)), "ok", owner=A.name)

    case("envelope with spaces", json.dumps(genuine, sort_keys=True), "signature-invalid")
    case("envelope with a newline behind", text(genuine) + "\n", "signature-invalid")
    case("envelope with an unknown field", text({**genuine, "extra": 1}), "signature-invalid")
    case("envelope with a key twice", text(genuine)[:-1] + ',"signatures":[]}', "signature-invalid")
    unpadded = text(genuine).replace('=="}', '"}')
    assert unpadded != text(genuine)
    case("signature without its padding", unpadded, "signature-invalid")
    sig = genuine["signatures"][0]["sig"]
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    stray = sig[:-3] + alphabet[alphabet.index(sig[-3]) + 1] + "=="
    assert base64.b64decode(stray) == base64.b64decode(sig)
    case("signature with stray bits", text(genuine).replace(sig, stray), "signature-invalid")
    short = {**genuine, "signatures": [{"keyid": A.key_id, "sig": b64(bytes(63))}]}
    case("signature too short", text(short), "signature-invalid")
    twice = {**genuine, "signatures": genuine["signatures"] * 2}
    case("the same signature twice", text(twice), "signature-invalid")
    return {"consortium": TWO_OF_THREE, "now": NOW, "cases": cases}


LATE = "2031-01-01T00:00:00Z"


def owned_vectors(kind: str, own: Json, accepted: Json, malformed: Json) -> Json:
    """What one owner signs of their own: accepted, and one for each check.

    Args:
        kind: Payload type.
        own: Fields of a good document besides those that all have.
        accepted: Name of a case → fields that it changes.
        malformed: The same, refused for their form.
    """
    cases: list[Json] = []
    good = {
        "version": 1,
        "consortium_id": sha(canonical(TWO_OF_THREE)),
        "owner": A.name,
        "owner_id": A.owner_id,
        "nonce": "ab" * 16,
        "signed_at": SIGNED,
        **own,
    }

    def case(name: str, document: Json, outcome: str, *signers: Owner, **how: Json) -> None:
        written = envelope(document, *(signers or (A,)), **{"kind": kind, **how})
        digest = {"digest": sha(canonical(written))} if outcome == "ok" else {}
        cases.append({"name": name, "envelope": text(written), "outcome": outcome, **digest})

    for name, changes in {**accepted, "dated years ahead": {"signed_at": LATE}}.items():
        case(name, {**good, **changes}, "ok")
    case("signed by an outsider", good, "approval-unknown", OUTSIDER)
    case("two signatures", good, "signature-invalid", A, B)
    case("signed by another owner", good, "dataset-mismatch", B)
    case("another owner's id", {**good, "owner_id": B.owner_id}, "dataset-mismatch")
    case("the payload type of a decision", good, "signature-invalid", kind=DECISION)
    other = sha(canonical(consortium([A, B, C], 3, 1)))
    case("of another consortium", {**good, "consortium_id": other}, "approval-unknown")
    loose = json.dumps(good, sort_keys=True).encode()
    case("payload not canonical", good, "statement-invalid", payload=loose)
    for name, changes in {
        **malformed,
        "another version": {"version": 2},
        "an unknown field": {"reason": "none"},
        "a time that does not exist": {"signed_at": "2026-02-30T11:00:00Z"},
        "a nonce too short": {"nonce": "00" * 15},
    }.items():
        case(name, {**good, **changes}, "statement-invalid")
    return {"consortium": TWO_OF_THREE, "cases": cases}


def withdrawal_vectors() -> Json:
    """Signed withdrawals."""
    both = ["d1" * 16, "d2" * 16]
    return owned_vectors(
        "application/vnd.sealtrain.withdrawal+json",
        {"datasets": both},
        {"two datasets": {}, "one dataset": {"datasets": both[:1]}},
        {
            "no dataset": {"datasets": []},
            "datasets out of order": {"datasets": both[::-1]},
            "a dataset twice": {"datasets": both[:1] * 2},
            "an id too short": {"datasets": ["d1" * 15]},
        },
    )


def policy_vectors() -> Json:
    """Signed policies of owners."""
    rules = {
        "version": 2,
        "platform": "nitro",
        "tier": "cloud",
        "root": "aws",
        "cpu": {"tee": "sgx"},
        "gpu": "none",
    }
    return owned_vectors(
        "application/vnd.sealtrain.owner-policy+json",
        {"appraisal": None, "lease_seconds": 600, "previous": None},
        {
            "a lease": {},
            "nothing": {"lease_seconds": None},
            "one that continues another": {"previous": "0d" * 32},
            "the shortest lease": {"lease_seconds": 60},
            "the longest lease": {"lease_seconds": 604800},
        },
        {
            "a lease too short": {"lease_seconds": 59},
            "a lease too long": {"lease_seconds": 604801},
            "a lease that is no integer": {"lease_seconds": "600"},
            "rules of no TEE": {"appraisal": rules},
            "rules that leave a field out": {"appraisal": {"version": 2}},
            "a predecessor that is no digest": {"previous": "0d" * 31},
        },
    )


def main(folder: Path) -> None:
    """Write the files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, made in (
        ("consortium", consortium_vectors()),
        ("decisions", decision_vectors()),
        ("tallies", tally_vectors()),
        ("withdrawals", withdrawal_vectors()),
        ("policies", policy_vectors()),
    ):
        path = folder / f"{name}.json"
        path.write_text(json.dumps(made, indent=1) + "\n")
        print(f"{path}: {len(made['cases'])} cases")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else OUT)
