"""Vectors of run control, made without sealtrain.

Writes ``vectors/run-control/documents.json``: submissions, run events and stops that are read, with
their ids and digests; documents that are refused; and chains of events with what each step ends in.
Run: ``python tools/vectorgen/run_control.py [FOLDER]``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

Json = Any
OUT = Path(__file__).resolve().parents[2] / "vectors" / "run-control"
TYPES = {
    "submission": "application/vnd.sealtrain.submission+json",
    "run-event": "application/vnd.sealtrain.run-event+json",
    "run-stop": "application/vnd.sealtrain.run-stop+json",
}
CONSORTIUM = "c0" * 32
TARGET = {"app_id": "a1" * 20, "compose_hash": "b2" * 32, "recipe_hash": "d3" * 32}
TICKET = {"version": 1, "role": "dealer", "listen": "127.0.0.1:8473"}
BEGAN = 1_767_315_600  # 2026-01-02T01:00:00Z


def canonical(value: Json) -> bytes:
    """RFC 8785 for what occurs here: no number but integers, no key beyond ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def key(seed: int) -> Ed25519PrivateKey:
    """A signing key."""
    return Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32)


def public(seed: int) -> bytes:
    """Its public half."""
    return key(seed).public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def key_id(seed: int) -> str:
    """Its name."""
    return "ed25519:" + hashlib.sha256(public(seed)).hexdigest()


def at(seconds: int) -> str:
    """A time of the day of these vectors."""
    rest = seconds - BEGAN
    return f"2026-01-02T{1 + rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}Z"


def sign(kind: str, document: Json, seed: int) -> Json:
    """A DSSE envelope."""
    payload, name = canonical(document), TYPES[kind]
    message = b"DSSEv1 %d %b %d %b" % (len(name), name.encode(), len(payload), payload)
    return {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": name,
        "signatures": [
            {"keyid": key_id(seed), "sig": base64.b64encode(key(seed).sign(message)).decode()}
        ],
    }


def digest(value: Json) -> str:
    """SHA-256 of the canonical form."""
    return hashlib.sha256(canonical(value)).hexdigest()


def submission(**changed: Json) -> Json:
    """A submission."""
    return {
        "version": 1,
        "consortium_id": CONSORTIUM,
        **TARGET,
        "name": "nightly",
        "ticket": TICKET,
        "submitter": key_id(1),
        "nonce": "11" * 16,
        "signed_at": at(BEGAN),
        "not_after": at(BEGAN + 3600),
    } | changed


def submission_id(document: Json) -> str:
    """The id: of what is asked for."""
    named = {
        "consortium_id": document["consortium_id"],
        **{name: document[name] for name in TARGET},
        "name": document["name"],
        "ticket_digest": digest(document["ticket"]),
    }
    return hashlib.sha256(b"sealtrain/submission/v1:" + canonical(named)).hexdigest()[:32]


ID = submission_id(submission())


def event(word: str, **changed: Json) -> Json:
    """A run event."""
    return {
        "version": 1,
        "consortium_id": CONSORTIUM,
        "submission_id": ID,
        "event": word,
        "code": "guest-lost" if word in ("failed", "skipped") else None,
        "run_id": "99" * 16 if word == "completed" else None,
        "claim_seconds": 600 if word == "claimed" else None,
        "runner": key_id(2),
        "instance": "22" * 16,
        "previous": None,
        "nonce": "33" * 16,
        "signed_at": at(BEGAN),
    } | changed


def stop(**changed: Json) -> Json:
    """A stop."""
    return {
        "version": 1,
        "consortium_id": CONSORTIUM,
        "submission_id": ID,
        "signer": key_id(1),
        "nonce": "44" * 16,
        "signed_at": at(BEGAN),
    } | changed


def read() -> Json:
    """Documents that are read."""
    made = {
        "a submission": ("submission", submission(), 1),
        "the same by another at another time": (
            "submission",
            submission(submitter=key_id(3), nonce="55" * 16, signed_at=at(BEGAN + 9)),
            3,
        ),
        "another name": ("submission", submission(name="weekly"), 1),
        "another ticket": ("submission", submission(ticket=TICKET | {"base": "/x"}), 1),
        "a stop": ("run-stop", stop(), 1),
        **{
            f"an event {word}": ("run-event", event(word), 2)
            for word in ("claimed", "started", "completed", "failed", "stopped", "skipped")
        },
        "started with a run": ("run-event", event("started", run_id="99" * 16), 2),
    }
    found = {}
    for name, (kind, document, seed) in made.items():
        envelope = sign(kind, document, seed)
        found[name] = {"kind": kind, "envelope": envelope, "digest": digest(envelope)}
        if kind == "submission":
            found[name] |= {
                "submission_id": submission_id(document),
                "ticket_digest": digest(document["ticket"]),
            }
    return found


def list_refused() -> Json:
    """Documents that are refused; each has one fault."""
    wrong = sign("submission", submission(), 1)
    altered = wrong | {"payload": base64.b64encode(canonical(submission(name="other"))).decode()}
    twice = wrong | {"signatures": wrong["signatures"] * 2}
    cases = {
        "altered": ("submission", altered, "signature-invalid"),
        "two signatures": ("submission", twice, "signature-invalid"),
        "another payload type": (
            "submission", sign("run-stop", submission(), 1), "signature-invalid",
        ),
        "a stranger's key": ("submission", sign("submission", submission(), 9), "signer-unknown"),
        "another signer named": (
            "submission", sign("submission", submission(), 3), "statement-invalid",
        ),
        "another consortium": (
            "submission",
            sign("submission", submission(consortium_id="00" * 32), 1),
            "consortium-mismatch",
        ),
        "ends before it begins": (
            "submission",
            sign("submission", submission(not_after=at(BEGAN)), 1),
            "statement-invalid",
        ),
        "ends after 30 days": (
            "submission",
            sign("submission", submission(not_after="2026-02-01T01:00:01Z"), 1),
            "statement-invalid",
        ),
        "an unknown field": (
            "submission", sign("submission", submission(note="x"), 1), "statement-invalid",
        ),
        "words in the form of a code": (
            "run-event",
            sign("run-event", event("failed", code="patient-4711-was-positive"), 2),
            "statement-invalid",
        ),
        "no name": ("submission", sign("submission", submission(name="-"), 1),
                    "statement-invalid"),
        "a claim without its time": (
            "run-event", sign("run-event", event("claimed", claim_seconds=None), 2),
            "statement-invalid",
        ),
        "a claim of a day": (
            "run-event", sign("run-event", event("claimed", claim_seconds=86400), 2),
            "statement-invalid",
        ),
        "started with a time": (
            "run-event", sign("run-event", event("started", claim_seconds=600), 2),
            "statement-invalid",
        ),
        "completed without a run": (
            "run-event", sign("run-event", event("completed", run_id=None), 2),
            "statement-invalid",
        ),
        "failed without a code": (
            "run-event", sign("run-event", event("failed", code=None), 2), "statement-invalid",
        ),
        "stopped with a code": (
            "run-event",
            sign("run-event", event("stopped", code="guest-lost"), 2),
            "statement-invalid",
        ),
        "an unknown event": (
            "run-event", sign("run-event", event("paused"), 2), "statement-invalid",
        ),
    }  # fmt: skip
    return {
        name: {"kind": kind, "envelope": envelope, "outcome": code}
        for name, (kind, envelope, code) in cases.items()
    }


def chains() -> Json:
    """Events one after the other, the time of each, and what it ends in: a state or a code.

    A step with ``previous: right`` continues the event recorded last.
    """
    claimed = {"event": "claimed", "after": 0, "ends": "claimed"}
    other = {"runner": 4, "instance": "66" * 16}
    return {
        "a run": [
            claimed,
            {"event": "started", "after": 5, "ends": "started"},
            {"event": "claimed", "after": 300, "ends": "started"},
            {"event": "started", "after": 301, "run_id": "99" * 16, "ends": "started"},
            {"event": "completed", "after": 400, "ends": "completed"},
            {"event": "claimed", "after": 401, "ends": "submission-ended"},
        ],
        "two runners": [
            claimed,
            {"event": "claimed", "after": 1, **other, "ends": "claim-taken"},
            {"event": "started", "after": 2, **other, "ends": "claim-taken"},
            {"event": "claimed", "after": 600, **other, "ends": "claimed"},
            {"event": "started", "after": 601, "ends": "claim-taken"},
        ],
        "no store": [
            claimed,
            {"event": "started", "after": 1, "ends": "started"},
            {"event": "claimed", "after": 600, **other, "ends": "claim-taken"},
            {"event": "claimed", "after": 601, "ends": "started"},
        ],
        "order": [
            {"event": "started", "after": 0, "ends": "claim-taken"},
            claimed,
            {"event": "completed", "after": 1, "ends": "run-event-refused"},
            {"event": "started", "after": 2, "previous": "00" * 32, "ends": "run-event-refused"},
            {"event": "started", "after": 3, "ends": "started"},
            {"event": "skipped", "after": 4, "ends": "run-event-refused"},
            {"event": "failed", "after": 5, "ends": "failed"},
        ],
        "another run in one claim": [
            claimed,
            {"event": "started", "after": 1, "run_id": "99" * 16, "ends": "started"},
            {"event": "started", "after": 2, "run_id": "88" * 16, "ends": "run-mismatch"},
        ],
        "too late": [{"event": "claimed", "after": 3601, "ends": "submission-ended"}],
        "the last second": [{"event": "claimed", "after": 3600, "ends": "claimed"}],
    }


def main() -> None:
    """Write the file."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    folder.mkdir(parents=True, exist_ok=True)
    document = {
        "keys": {str(seed): base64.b64encode(public(seed)).decode() for seed in (1, 2, 3, 4)},
        "consortium_id": CONSORTIUM,
        "began": BEGAN,
        "cases": {
            "documents": [
                *({"name": name, "outcome": "ok", **case} for name, case in read().items()),
                *({"name": name, **case} for name, case in list_refused().items()),
            ],
            "chains": [{"name": name, "steps": steps} for name, steps in chains().items()],
        },
        "submission": sign("submission", submission(), 1),
    }
    text = json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    (folder / "documents.json").write_text(text, "utf-8")


if __name__ == "__main__":
    main()
