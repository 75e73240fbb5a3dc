"""Vectors of runs of several parties, made without sealtrain.

Writes ``vectors/parties/{run_ids,joint_keys,reports}.json``: run ids of parties, the key that all
parties' shares give, and reports that a lead takes or refuses. HKDF is written out here with
``hmac`` alone. Everything follows from the labels below, so a second run writes the same bytes.
Run: ``python tools/vectorgen/parties.py [FOLDER]``.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import sys
from pathlib import Path
from typing import Any

OUT = Path(__file__).resolve().parents[2] / "vectors" / "parties"
RUN, OTHER_RUN = "5a" * 16, "a5" * 16
COMPOSE, OTHER_COMPOSE = "b1" * 32, "b2" * 32
NAMES = ("clinic-a", "clinic-b", "clinic-c")
PARTS = {"whole": 140, "truncated": 4, "filtered": 0, "empty": 8}
COUNTS = {"records": 152, **PARTS}
MANY = [f"{number:032x}" for number in range(257)]


def seed(label: str) -> bytes:
    """32 bytes that follow from the label."""
    return hashlib.shake_256(b"sealtrain party vectors " + label.encode()).digest(32)


def run_id(run: str, name: str) -> str:
    """spec/parties.md §2."""
    return hashlib.sha256(b"sealtrain/party/v1:" + f"{run}/{name}".encode()).digest()[:16].hex()


def lp(*texts: str) -> bytes:
    """Length-prefixed texts."""
    return b"".join(len(text).to_bytes(4, "big") + text.encode() for text in texts)


def expand(key: bytes, info: bytes) -> bytes:
    """HKDF-Expand with SHA-256, one block."""
    return hmac.digest(key, info + b"\x01", "sha256")


def share(run_key: bytes, purpose: str) -> bytes:
    """What a party gives towards a joint key (§3)."""
    return expand(run_key, lp("sealtrain/lead-share/v1", purpose))


def joint(shares: dict[str, bytes], purpose: str, compose: str, run: str) -> bytes:
    """The key that they give together (§3)."""
    names = sorted(shares)
    key = hmac.digest(b"\0" * 32, b"".join(shares[name] for name in names), "sha256")
    return expand(key, lp("sealtrain/joint-key/v1", purpose, compose, run, *names))


def run_ids() -> list[dict[str, Any]]:
    """One for each pair of run and name."""
    return [
        {"name": f"{name} in {run[:4]}", "run_id": run, "party": name, "own": run_id(run, name)}
        for run in (RUN, OTHER_RUN)
        for name in (*NAMES, "a", "0" * 63)
    ]


def joint_keys() -> list[dict[str, Any]]:
    """Every input changes the key; the order of parties does not."""
    run_keys = {name: seed(name) for name in NAMES}
    cases = [
        ("three parties", NAMES, "travel-state", COMPOSE, RUN),
        ("in another order", tuple(reversed(NAMES)), "travel-state", COMPOSE, RUN),
        ("two of them", NAMES[:2], "travel-state", COMPOSE, RUN),
        ("one alone", NAMES[:1], "travel-state", COMPOSE, RUN),
        ("another purpose", NAMES, "federated-state", COMPOSE, RUN),
        ("another deployment", NAMES, "travel-state", OTHER_COMPOSE, RUN),
        ("another run", NAMES, "travel-state", COMPOSE, OTHER_RUN),
    ]
    vectors = []
    for comment, names, purpose, compose, run in cases:
        shares = {name: share(run_keys[name], purpose) for name in names}
        vectors.append(
            {
                "name": comment,
                "run_keys": {name: run_keys[name].hex() for name in names},
                "shares": {name: share.hex() for name, share in shares.items()},
                "purpose": purpose,
                "compose_hash": compose,
                "run_id": run,
                "key": joint(shares, purpose, compose, run).hex(),
            }
        )
    return vectors


def reports() -> list[dict[str, Any]]:
    """Canonical bytes of a report, and changes that make it none."""
    whole: dict[str, Any] = {
        "version": 4,
        "name": NAMES[0],
        "role": "holder",
        "run_id": run_id(RUN, NAMES[0]),
        "datasets": [{"payload": "e30=", "payloadType": "x", "signatures": []}],
        "releases": [{"receipt": {"a": 1}, "proof": {"b": 2}, "rotations": []}],
        "from": "2026-01-02T03:04:05Z",
        "until": "2026-01-02T04:04:05Z",
        "closings": [{"broker_id": "b1" * 32, "lease_id": "1e" * 32, "key": "A" * 43 + "="}],
        "counts": {"d5" * 16: COUNTS, "d6" * 16: None},
    }
    closing = whole["closings"][0]
    changes: list[tuple[str, dict[str, Any] | str, bool]] = [
        ("as it is", {}, True),
        ("without receipts", {"releases": []}, True),
        ("without the name", "name", False),
        ("with a field of tomorrow", {"epsilon": 1}, False),
        ("of another version", {"version": 3}, False),
        ("without counts", "counts", False),
        ("of records that are not counted", {"counts": None}, True),
        ("with counts of no dataset", {"counts": {}}, True),
        ("with counts of half an id", {"counts": {"d5" * 8: COUNTS}}, False),
        ("with counts without a sum", {"counts": {"d5" * 16: PARTS}}, False),
        ("with counts below zero", {"counts": {"d5" * 16: COUNTS | {"empty": -1}}}, False),
        ("with a part of tomorrow", {"counts": {"d5" * 16: COUNTS | {"odd": 1}}}, False),
        ("with counts of 257 datasets", {"counts": dict.fromkeys(MANY, None)}, False),
        ("without a broker", {"closings": []}, True),
        ("without closings", "closings", False),
        ("with half a key", {"closings": [closing | {"key": "A" * 22 + "=="}]}, False),
        ("with a key spelled twice", {"closings": [closing | {"key": "A" * 42 + "B="}]}, False),
        ("with a lease that is none", {"closings": [closing | {"lease_id": "1e" * 16}]}, False),
        ("with a name that is none", {"name": "Clinic A"}, False),
        ("with half a run id", {"run_id": "5a" * 8}, False),
        ("with a time in words", {"until": "tomorrow"}, False),
        (
            "with a rotation",
            {"releases": [{"receipt": {}, "proof": {}, "rotations": [{"c": 3}]}]},
            True,
        ),
        ("with a release without proof", {"releases": [{"receipt": {}, "rotations": []}]}, False),
        (
            "with a release without rotations",
            {"releases": [{"receipt": {}, "proof": {}}]},
            False,
        ),
        ("with begun in place of from", {"begun": whole["from"]}, False),
    ]
    vectors = []
    for comment, change, valid in changes:
        document = dict(whole)
        if isinstance(change, str):
            del document[change]
        else:
            document |= change
        text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        vectors.append(
            {"name": comment, "report": text, "outcome": "ok" if valid else "data-invalid"}
        )
    vectors.append(
        {
            "name": "not canonical",
            "report": json.dumps(whole, sort_keys=True),
            "outcome": "data-invalid",
        }
    )
    return vectors


def main(folder: Path) -> None:
    """Write the files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, vectors in (
        ("run_ids", run_ids()),
        ("joint_keys", joint_keys()),
        ("reports", reports()),
    ):
        text = json.dumps({"spec": "spec/parties.md", "cases": vectors}, indent=2)
        (folder / f"{name}.json").write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else OUT)
