"""Vectors of consortium documents, decisions and tallies, made without sealtrain.

Writes ``vectors/approvals/{consortium,decisions,tallies}.json``. Everything follows from the seeds
below, so a second run writes the same bytes. Run: ``python tools/vectorgen/approvals.py [FOLDER]``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

Json = Any
OUT = Path(__file__).resolve().parents[2] / "vectors" / "approvals"
DECISION = "application/vnd.sealtrain.decision+json"
NOW = "2026-03-01T12:00:00Z"
SIGNED = "2026-03-01T11:00:00Z"
ENDS = "2026-03-31T11:00:00Z"


def canonical(value: Json) -> bytes:
    """RFC 8785 for what occurs here: ASCII texts, small integers, null, arrays and objects."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def b64(data: bytes) -> str:
    """Standard base64 with padding."""
    return base64.b64encode(data).decode()


def sha(data: bytes) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()


def seed(label: str, size: int = 32) -> bytes:
    """Bytes that follow from the label."""
    return hashlib.shake_256(b"sealtrain approval vectors " + label.encode()).digest(size)


class Owner:
    """An owner with all keys derived from the label."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.key = Ed25519PrivateKey.from_private_bytes(seed(f"{name} signing"))
        self.signing = self.key.public_key().public_bytes_raw()
        mlkem = MLKEM768PrivateKey.from_seed_bytes(seed(f"{name} mlkem", 64))
        x25519 = X25519PrivateKey.from_private_bytes(seed(f"{name} x25519"))
        self.sealing = (
            mlkem.public_key().public_bytes_raw() + x25519.public_key().public_bytes_raw()
        )
        self.key_id = "ed25519:" + sha(self.signing)
        self.owner_id = sha(b"sealtrain/owner/v1:" + self.signing + self.sealing)

    def identity(self) -> Json:
        """Public identity document."""
        return {
            "name": self.name,
            "signing_key": b64(self.signing),
            "sealing_key": b64(self.sealing),
        }

    def signature(self, payload: bytes, kind: str) -> Json:
        """DSSE signature over a payload of that type."""
        message = b" ".join(
            [b"DSSEv1", str(len(kind)).encode(), kind.encode(), str(len(payload)).encode(), payload]
        )
        return {"keyid": self.key_id, "sig": b64(self.key.sign(message))}


A, B, C, OUTSIDER = (Owner(name) for name in ("bank-a", "bank-b", "bank-c", "outsider"))


def consortium(owners: list[Owner], approve: int, revoke: int, name: str = "banks") -> Json:
    """A consortium document."""
    return {
        "version": 1,
        "name": name,
        "owners": [owner.identity() for owner in owners],
        "approve": approve,
        "revoke": revoke,
    }


TWO_OF_THREE = consortium([A, B, C], 2, 1)
TWO_REVOKE = consortium([A, B, C], 2, 2)
TARGET = {"app_id": "0a" * 20, "compose_hash": "0b" * 32, "recipe_hash": "0c" * 32}
CHANGED = {"app_id": "1a" * 20, "compose_hash": "1b" * 32, "recipe_hash": "1c" * 32}
PIN = {"dataset_id": "d1" * 16, "root": "e1" * 32}
PIN2 = {"dataset_id": "d2" * 16, "root": "e2" * 32}


def decision(
    label: str,
    *,
    of: Json = TWO_OF_THREE,
    target: Json = TARGET,
    word: str = "approve",
    **changes: Json,
) -> Json:
    """A decision on ``TARGET`` unless told otherwise."""
    document = {
        "version": 1,
        "consortium_id": sha(canonical(of)),
        **target,
        "datasets": [PIN] if word == "approve" else [],
        "decision": word,
        "nonce": seed(f"nonce {label}", 16).hex(),
        "signed_at": SIGNED,
        "not_after": ENDS if word == "approve" else None,
    }
    return {**document, **changes}


def envelope(document: Json, *signers: Owner, kind: str = DECISION, payload: bytes = b"") -> Json:
    """A DSSE envelope over the document, or over other payload bytes."""
    payload = payload or canonical(document)
    return {
        "payload": b64(payload),
        "payloadType": kind,
        "signatures": [signer.signature(payload, kind) for signer in signers],
    }


def text(value: Json) -> str:
    """Canonical JSON as text."""
    return canonical(value).decode()


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
    case("k is a text", {**TWO_OF_THREE, "approve": "2"}, "consortium-invalid")
    case("k is true", {**TWO_OF_THREE, "approve": True}, "consortium-invalid")
    case("an owner twice", consortium([A, A], 1, 1), "consortium-invalid")
    case("owners out of order", consortium([B, A], 1, 1), "consortium-invalid")
    case("another version", {**TWO_OF_THREE, "version": 2}, "consortium-invalid")
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
    for one in cases:
        if one["outcome"] == "ok":
            one["consortium_id"] = sha(canonical(one["document"]))
    owners = [
        {"name": one.name, "owner_id": one.owner_id, "key_id": one.key_id} for one in (A, B, C)
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
        ("another version", {"version": 2}),
        ("another word", {"decision": "maybe"}),
        ("a time that does not exist", {"signed_at": "2026-02-30T11:00:00Z"}),
        ("a time with an offset", {"signed_at": "2026-03-01T11:00:00+00:00"}),
        ("a nonce too short", {"nonce": "00" * 15}),
        ("capitals in a hash", {"recipe_hash": "0C" * 32}),
        ("datasets out of order", {"datasets": [PIN2, PIN]}),
        ("a dataset twice", {"datasets": [PIN, PIN]}),
    ):
        case(name, text(envelope(decision(name, **changes), A)), "statement-invalid")
    missing = decision("missing")
    del missing["nonce"]
    case("a missing field", text(envelope(missing, A)), "statement-invalid")
    for name, changes in (
        ("revocation with an end", {"not_after": ENDS}),
        ("revocation that pins a dataset", {"datasets": [PIN]}),
    ):
        case(name, text(envelope(decision(name, word="revoke", **changes), A)), "statement-invalid")
    loose = json.dumps(good, sort_keys=True).encode()
    case("payload not canonical", text(envelope(good, A, payload=loose)), "statement-invalid")
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
        **more: Json,
    ) -> None:
        expect = {"approved_by": by, "progress": len(by), "sealed": outcome != "ok", **more}
        cases.append(
            {
                "name": name,
                "consortium": "two_revoke" if of is TWO_REVOKE else "two_of_three",
                "decisions": [text(one) for one in signed],
                "target": TARGET,
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
        "a revocation is final",
        [yes(A), yes(B), stop(A), yes(A, "again")],
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
    consortia = {"two_of_three": TWO_OF_THREE, "two_revoke": TWO_REVOKE}
    return {"consortia": consortia, "cases": cases}


def main(folder: Path) -> None:
    """Write the three files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, made in (
        ("consortium", consortium_vectors()),
        ("decisions", decision_vectors()),
        ("tallies", tally_vectors()),
    ):
        path = folder / f"{name}.json"
        path.write_text(json.dumps(made, indent=1) + "\n")
        print(f"{path}: {len(made['cases'])} cases")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else OUT)
