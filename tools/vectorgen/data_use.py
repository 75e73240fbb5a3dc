"""Vectors of dataset manifests that state how the data may be used, made without sealtrain.

Writes ``vectors/approvals/data-use.json``: signed manifests that hold, one that states nothing and
has the bytes from before the field existed, and one that breaks each rule of the block. Everything
follows from the seeds in approval_parts.py, so a second run writes the same bytes.
Run: ``python tools/vectorgen/data_use.py [FOLDER]``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from approval_parts import TWO_OF_THREE, A, B, Json, Owner, envelope, sha, text

OUT = Path(__file__).resolve().parents[2] / "vectors" / "approvals"
TYPE = "application/vnd.sealtrain.dataset+json"
WHOLE = {
    "purposes": ["care", "early detection of cancer"],
    "purposes_bind": True,
    "legal_basis": "consent",
    "legal_basis_note": "Art. 9(2)(a) GDPR",
    "categories": ["health data", "âge"],
    "phi": "limited",
    "retention_until": "2027-01-01T00:00:00Z",
}
GOOD: dict[str, Json] = {
    "nothing stated": None,
    "every field": WHOLE,
    "purposes alone": {"purposes": ["care"]},
    "another legal basis": {"legal_basis": "other", "legal_basis_note": "Section 27 BDSG"},
    "categories alone": {"categories": ["health data"]},
    "no PHI": {"phi": "none"},
    "retention alone": {"retention_until": "2027-01-01T00:00:00Z"},
    "a purpose of 200 characters": {"purposes": ["x" * 200]},
    "16 purposes": {"purposes": [str(number) for number in range(16)]},
}
BAD: dict[str, Json] = {
    "no field": {},
    "purposes that bind, and none": {"purposes_bind": True},
    "a purpose twice": {"purposes": ["care", "care"]},
    "an empty purpose": {"purposes": [""]},
    "a purpose of 201 characters": {"purposes": ["x" * 201]},
    "17 purposes": {"purposes": [str(number) for number in range(17)]},
    "a control character": {"purposes": ["care\x1b[2J"]},
    "text that turns around": {"categories": ["\u202eatad"]},
    "a category of 101 characters": {"categories": ["x" * 101]},
    "an unknown legal basis": {"legal_basis": "habit"},
    "other without a note": {"legal_basis": "other"},
    "a note without a basis": {"legal_basis_note": "Art. 9(2)(a) GDPR"},
    "an unknown PHI status": {"phi": "unknown"},
    "a date without a time": {"retention_until": "2027-01-01"},
    "a day that no calendar has": {"retention_until": "2027-02-30T00:00:00Z"},
    "another time zone": {"retention_until": "2027-01-01T00:00:00+01:00"},
    "an unknown field": {"phi": "none", "licence": "none"},
    "a list": ["care"],
    "no purpose": {"phi": "none", "purposes": []},
    "purposes that do not bind": {"purposes": ["care"], "purposes_bind": False},
    "a status of null": {"purposes": ["care"], "phi": None},
}


def canonical(value: Json) -> bytes:
    """RFC 8785 for what occurs here: ASCII names, texts, small integers, null."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def manifest(owner: Owner, data_use: Json) -> Json:
    """A dataset manifest of an owner."""
    document = {
        "version": 1,
        "dataset_id": "d1" * 16,
        "name": "biopsies",
        "owner": owner.name,
        "owner_id": owner.owner_id,
        "root": "e1" * 32,
        "shards": 3,
        "records": 569,
        "tokens": None,
        "schema_digest": "f1" * 32,
        "app_id": "0a" * 20,
        "compose_hash": "0b" * 32,
        "sealed_at": "2026-03-01T12:00:00Z",
        "previous": None,
    }
    return document if data_use is None else {**document, "data_use": data_use}


def sign(document: Json, signer: Owner) -> Json:
    """Its DSSE envelope."""
    return envelope(None, signer, kind=TYPE, payload=canonical(document))


def vectors() -> Json:
    """The consortium, and a case for each statement."""
    cases: list[Json] = []
    for outcome, statements in (("ok", GOOD), ("statement-invalid", BAD)):
        for name, data_use in statements.items():
            made = sign(manifest(A, data_use), A)
            case = {"name": name, "envelope": text(made), "outcome": outcome}
            if outcome == "ok":
                case |= {"data_use": data_use, "digest": sha(canonical(made))}
            cases.append(case)
    for name, threshold, outcome in (
        ("two of several brokers give the key back", 2, "ok"),
        ("sixteen brokers give the key back", 16, "ok"),
        ("one of several brokers", 1, "statement-invalid"),
        ("seventeen brokers", 17, "statement-invalid"),
        ("a number of brokers as text", "2", "statement-invalid"),
        ("no number of brokers", None, "statement-invalid"),
    ):
        made = sign({**manifest(A, None), "threshold": threshold}, A)
        case = {"name": name, "envelope": text(made), "outcome": outcome}
        cases.append(
            case | ({"data_use": None, "digest": sha(canonical(made))} if outcome == "ok" else {})
        )
    stolen = text(sign(manifest(A, WHOLE), B))
    cases.append(
        {"name": "another owner's data", "envelope": stolen, "outcome": "dataset-mismatch"}
    )
    return {"consortium": TWO_OF_THREE, "cases": cases}


def main(folder: Path) -> None:
    """Write the file."""
    folder.mkdir(parents=True, exist_ok=True)
    made = vectors()
    path = folder / "data-use.json"
    path.write_text(json.dumps(made, indent=1) + "\n")
    print(f"{path}: {len(made['cases'])} cases")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else OUT)
