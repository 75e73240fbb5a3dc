"""Vectors of the index of an output store, made without sealtrain.

Writes ``vectors/output-store/indexes.json``: indexes that are read, and indexes that are refused.
Run: ``python tools/vectorgen/output_store.py [FOLDER]``.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

Json = Any
OUT = Path(__file__).resolve().parents[2] / "vectors" / "output-store"
PIECE = 64 << 20
CHECKPOINT = "checkpoints/checkpoint-00000003-0000000300.sealed"
JOURNAL = "journal/journal-00000003.sealed"


def canonical(value: Json) -> str:
    """RFC 8785 for what occurs here: no number but integers."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def pieces(content: bytes) -> Json:
    """Size of a file, and SHA-256 of each 64 MiB of it."""
    parts = [content[at : at + PIECE] for at in range(0, len(content), PIECE)]
    return {"size": len(content), "sha256": [hashlib.sha256(part).hexdigest() for part in parts]}


def index(**fields: Json) -> Json:
    """An index of a run with one checkpoint, with other fields where they are named."""
    return {
        "version": 1,
        "compose_hash": "c0" * 32,
        "run_id": "11" * 16,
        "state": "checkpointed",
        "code": None,
        "attempts": 2,
        "files": {CHECKPOINT: pieces(b"a checkpoint"), JOURNAL: pieces(b"a journal")},
    } | fields


def read() -> Json:
    """Indexes that a reader accepts."""
    model = {
        "manifest.json": pieces(b"{}"),
        "model/model.safetensors.sealed": pieces(bytes(PIECE) + b"x"),
        "model/1_Pooling/config.json.sealed": pieces(b""),
    }
    return {
        "before its run": index(run_id=None, state="waiting", code="approvals-missing", files={}),
        "begun": index(state="started", files={}, attempts=1),
        "with a checkpoint": index(),
        "paused": index(state="waiting", code="approval-revoked"),
        "finished": index(state="completed", files=model),
        "failed": index(state="failed", code="record-invalid"),
        "of a run that reads series": index(series={"clinic-a/notes": 3, "clinic-b/notes": 512}),
    }


def list_refused() -> Json:
    """Texts that a reader refuses."""
    one = pieces(b"x")
    changed = {
        "another version": index(version=2),
        "a version as text": index(version="1"),
        "no state": {name: value for name, value in index().items() if name != "state"},
        "an unknown state": index(state="done"),
        "an unknown field": index(message="clinic-c revoked"),
        "a code in a state that has none": index(code="approvals-missing"),
        "a sentence as a code": index(state="failed", code="a row was too long"),
        "words in the form of a code": index(state="failed", code="patient-4711-was-positive"),
        "files of no run": index(run_id=None),
        "a manifest before the end": index(files={"manifest.json": one}),
        "the end without a manifest": index(state="completed"),
        "no series": index(series={}),
        "a series without an owner": index(series={"notes": 1}),
        "a member 0": index(series={"clinic-a/notes": 0}),
        "more members than a series has": index(series={"clinic-a/notes": 513}),
        "a number as text": index(series={"clinic-a/notes": "3"}),
        "series of no run": index(
            run_id=None, state="waiting", files={}, series={"clinic-a/notes": 1}
        ),
        "a way out": index(files={"model/../../run.json.sealed": one}),
        "another file of the run's folder": index(files={"run.json": one}),
        "a model in the clear": index(files={"model/model.safetensors": one}),
        "a piece too few": index(files={CHECKPOINT: {"size": 1, "sha256": []}}),
        "a piece too many": index(files={CHECKPOINT: {"size": 1, "sha256": one["sha256"] * 2}}),
        "a size below zero": index(files={CHECKPOINT: {"size": -1, "sha256": []}}),
        "a digest in capitals": index(files={CHECKPOINT: {"size": 1, "sha256": ["AB" * 32]}}),
    }
    texts = {name: canonical(value) for name, value in changed.items()}
    texts["a line break at its end"] = canonical(index()) + "\n"
    texts["a field twice"] = canonical(index()).replace(
        '{"attempts"', '{"attempts":2,"attempts"', 1
    )
    texts["no JSON"] = "{"
    return texts


def main(out: Path) -> None:
    """Write the vectors."""
    out.mkdir(parents=True, exist_ok=True)
    document = {
        "cases": [
            *(
                {"name": name, "index": canonical(value), "outcome": "ok"}
                for name, value in read().items()
            ),
            *(
                {"name": name, "index": text, "outcome": "output-store-invalid"}
                for name, text in list_refused().items()
            ),
        ],
    }
    (out / "indexes.json").write_text(
        json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else OUT)
