"""Vectors of owners' records that an image was accounted for, made without sealtrain.

Writes ``vectors/image/verification.json``: a record that holds, and one that breaks each rule of
spec/images.md §10. Everything follows from the seeds in approval_parts.py, so a second run writes
the same bytes. Run: ``python tools/vectorgen/image_verification.py [FOLDER]``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from approval_parts import (
    NOW,
    OUTSIDER,
    TWO_OF_THREE,
    TWO_REVOKE,
    A,
    B,
    Json,
    Owner,
    canonical,
    envelope,
    sha,
    text,
)

OUT = Path(__file__).resolve().parents[2] / "vectors" / "image"
TYPE = "application/vnd.sealtrain.image-verification+json"
LOCK = {"recipe_hash": "0c" * 32, "image": "sha256:" + "5a" * 32, "code": "dd" * 32}
BAD: dict[str, tuple[str, Json]] = {
    "another recipe": ("image-refused", {"recipe_hash": "1c" * 32}),
    "another image": ("image-refused", {"image": "sha256:" + "5b" * 32}),
    "other code": ("image-refused", {"code": "de" * 32}),
    "another consortium": ("approval-unknown", {"consortium_id": sha(canonical(TWO_REVOKE))}),
    "another owner's name": ("dataset-mismatch", {"owner": "bank-b"}),
    "another owner's id": ("dataset-mismatch", {"owner_id": B.owner_id}),
    "a digest without its kind": ("statement-invalid", {"image": "5a" * 32}),
    "a digest of another kind": ("statement-invalid", {"image": "sha512:" + "5a" * 64}),
    "a digest in capitals": ("statement-invalid", {"image": "sha256:" + "5A" * 32}),
    "an image by its name": ("statement-invalid", {"image": "guest@sha256:" + "5a" * 32}),
    "no digest": ("statement-invalid", {"image": None}),
    "another version": ("statement-invalid", {"version": 2}),
    "an unknown field": ("statement-invalid", {"source": "reviewed"}),
    "a day that no calendar has": ("statement-invalid", {"signed_at": "2026-02-30T00:00:00Z"}),
    "one second too far in the future": (
        "statement-invalid",
        {"signed_at": "2026-03-01T12:05:01Z"},
    ),
}


def record(signer: Owner, **changed: Json) -> Json:
    """A record of an owner."""
    return {
        "version": 1,
        "consortium_id": sha(canonical(TWO_OF_THREE)),
        "owner": signer.name,
        "owner_id": signer.owner_id,
        "nonce": "ab" * 16,
        "signed_at": "2026-03-01T11:00:00Z",
        **LOCK,
        **changed,
    }


def sign(document: Json, signer: Owner, kind: str = TYPE) -> Json:
    """Its DSSE envelope."""
    return envelope(None, signer, kind=kind, payload=canonical(document))


def vectors() -> Json:
    """The consortium, what the lock says, and the cases."""
    good = {
        "a record": sign(record(A), A),
        "by another owner": sign(record(B), B),
        "signed 300 seconds ahead": sign(record(A, signed_at="2026-03-01T12:05:00Z"), A),
        "signed years ago": sign(record(A, signed_at="2020-01-01T00:00:00Z"), A),
    }
    cases: list[Json] = [
        {"name": name, "envelope": text(made), "outcome": "ok", "digest": sha(canonical(made))}
        for name, made in good.items()
    ]
    bad: list[tuple[str, str, Json]] = [
        (name, outcome, sign(record(A, **changed), A)) for name, (outcome, changed) in BAD.items()
    ]
    missing = record(A)
    del missing["code"]
    both = sign(record(A), A)
    both["signatures"].append(sign(record(A), B)["signatures"][0])
    forged = sign(record(A), A)
    forged["signatures"][0]["sig"] = sign(record(A), OUTSIDER)["signatures"][0]["sig"]
    altered = sign(record(A, image="sha256:" + "5b" * 32), A)
    altered["payload"] = sign(record(A), A)["payload"]
    decision = "application/vnd.sealtrain.decision+json"
    spelled = json.dumps(record(A), indent=1).encode()
    bad += [
        ("a field is missing", "statement-invalid", sign(missing, A)),
        ("by a stranger", "approval-unknown", sign(record(OUTSIDER), OUTSIDER)),
        ("two signatures", "signature-invalid", both),
        ("a stranger's signature under an owner's key id", "signature-invalid", forged),
        ("altered after it was signed", "signature-invalid", altered),
        ("signed as another document", "signature-invalid", sign(record(A), A, decision)),
        (
            "another spelling",
            "statement-invalid",
            envelope(None, A, kind=TYPE, payload=spelled),
        ),
    ]
    cases += [
        {"name": name, "envelope": text(made), "outcome": outcome} for name, outcome, made in bad
    ]
    return {"consortium": TWO_OF_THREE, "lock": LOCK, "now": NOW, "cases": cases}


def main(folder: Path) -> None:
    """Write the file."""
    folder.mkdir(parents=True, exist_ok=True)
    made = vectors()
    path = folder / "verification.json"
    path.write_text(json.dumps(made, indent=1) + "\n")
    print(f"{path}: {len(made['cases'])} cases")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else OUT)
