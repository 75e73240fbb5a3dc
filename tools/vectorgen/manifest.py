"""Vectors of run manifests as files, and of release receipts, made without sealtrain.

Writes ``vectors/manifest/{form,receipt}.json``. Everything comes from the fixed seeds below, so the
output never changes. Run: ``python tools/vectorgen/manifest.py [FOLDER]``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

Json = Any
OUT = Path(__file__).resolve().parents[2] / "vectors" / "manifest"
GUEST = Ed25519PrivateKey.from_private_bytes(b"\x11" * 32)
OWNER = Ed25519PrivateKey.from_private_bytes(b"\x22" * 32)
BROKER = Ed25519PrivateKey.from_private_bytes(b"\x33" * 32)
STATEMENT_TYPE = "application/vnd.in-toto+json"
EVIDENCE_TYPE = "application/vnd.sealtrain.evidence+json"
RECEIPT_TYPE = "application/vnd.sealtrain.release-receipt+json"
MARKER = "SIMULATED — NOT ATTESTED"


def canonical(value: Json) -> bytes:
    """RFC 8785 for what occurs here: no float that JSON and Python would write differently."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode()


def b64(data: bytes) -> str:
    """Standard base64."""
    return base64.b64encode(data).decode()


def sha(data: bytes) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()


def raw(key: Ed25519PrivateKey) -> bytes:
    """Public half, 32 bytes."""
    return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def hint(key: Ed25519PrivateKey) -> str:
    """Sigstore's key hint."""
    info = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return b64(hashlib.sha256(info).digest())


def envelope(payload: bytes, kind: str, key: Ed25519PrivateKey) -> Json:
    """DSSE v1 envelope."""
    pae = b"DSSEv1 %d %s %d %s" % (len(kind), kind.encode(), len(payload), payload)
    signature = {"keyid": f"ed25519:{sha(raw(key))}", "sig": b64(key.sign(pae))}
    return {"payload": b64(payload), "payloadType": kind, "signatures": [signature]}


def predicate() -> Json:
    """A small predicate of the right shape; what it claims is not looked at here."""
    sealing = MLKEM768PrivateKey.from_seed_bytes(b"\x44" * 64).public_key().public_bytes_raw()
    sealing += X25519PrivateKey.from_private_bytes(b"\x55" * 32).public_key().public_bytes_raw()
    owner = {"name": "a", "signing_key": b64(raw(OWNER)), "sealing_key": b64(sealing)}
    entry = {"seq": 1, "at": "2026-01-02T03:04:05Z", "event": "run.started"}
    entry["fields"] = {"platform": "simulator", "phase": "sft"}
    head = hashlib.sha256(b"sealtrain/run-log/v1:" + b"ab" * 16).digest()
    return {
        "version": 2,
        "simulated": True,
        "marker": MARKER,
        "signer": {"public_key": b64(raw(GUEST))},
        "consortium": {
            "version": 2,
            "name": "c",
            "owners": [owner],
            "thresholds": {
                "approve": 1,
                "revoke": 1,
                "amend_members": 1,
                "amend_thresholds": 1,
                "raise_logging": 1,
                "export_model": 1,
            },
            "own_data_consent": True,
        },
        "recipe": {"recipe_hash": "01" * 32, "lock": {"version": 1}},
        "deployment": {
            "platform": "simulator",
            "tier": "processor",
            "app_id": "02" * 20,
            "compose_hash": "03" * 32,
        },
        "datasets": [{"payload": ""}],
        "approvals": [],
        "releases": [],
        "run": {
            "run_id": "ab" * 16,
            "started_at": "2026-01-02T03:04:05Z",
            "finished_at": "2026-01-02T03:14:05Z",
            "steps": 10,
            "tokens": None,
            "tokens_sha256": None,
            "resumes": [],
            "history": [
                {"step": 5, "values": {"loss": 1.5}},
                {"step": 10, "values": {"loss": None}},
            ],
            "metrics": {"loss": 0.25},
            "environment": {"python": "3.11.9"},
        },
        "run_log": {
            "head": hashlib.sha256(head + canonical(entry)).hexdigest(),
            "entries": [entry],
        },
        "outputs": {
            "recipients": ["a"],
            "files": [{"name": "model/weights.sealed", "size": 9, "root": "0c" * 32}],
        },
        "compute": {
            "wall_s": 600,
            "cpu_s": None,
            "processors": 2,
            "accelerators": [],
            "peak_memory_bytes": None,
        },
        "privacy": {"dp": "none"},
        "limits": [{"id": "simulated", "text": "Nothing is proved about hardware."}],
    }


def statement() -> Json:
    """The in-toto statement around it."""
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "model/weights.sealed", "digest": {"sha256": "04" * 32}}],
        "predicateType": "https://sealtrain.dev/attestations/run-manifest/v2",
        "predicate": predicate(),
    }


def document(payload: bytes) -> Json:
    """The file's JSON around a statement's bytes."""
    return {
        "version": 1,
        "bundle": {
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": {"publicKey": {"hint": hint(GUEST)}, "tlogEntries": []},
            "dsseEnvelope": envelope(payload, STATEMENT_TYPE, GUEST),
        },
        "evidence": envelope(b'{"evidence":"of another page"}', EVIDENCE_TYPE, GUEST),
    }


def well_formed() -> Json:
    """One file and every value computed from it."""
    body = statement()
    payload = canonical(body)
    commitment = {
        "statement_digest": sha(payload),
        "signing_key": b64(raw(GUEST)),
        "run_log_head": body["predicate"]["run_log"]["head"],
    }
    file = canonical(document(payload))
    return {
        "name": "a well-formed file; every signature verifies",
        "outcome": "ok",
        "file": file.decode(),
        "file_digest": sha(file),
        "guest_key": raw(GUEST).hex(),
        "hint": hint(GUEST),
        "statement_digest": commitment["statement_digest"],
        "report_data": hashlib.sha512(
            b"sealtrain/manifest/v1:" + canonical(commitment)
        ).hexdigest(),
    }


def list_malformed() -> list[Json]:
    """Files with one fault each; all signatures are good."""

    def outer(comment: str, change: Callable[[Json], object]) -> Json:
        file = document(canonical(statement()))
        change(file)
        return {"name": comment, "file": canonical(file).decode(), "outcome": "manifest-malformed"}

    def inner(comment: str, change: Callable[[Json], object]) -> Json:
        body = statement()
        change(body)
        file = canonical(document(canonical(body)))
        return {"name": comment, "file": file.decode(), "outcome": "manifest-malformed"}

    def rename(body: Json, *names: str) -> None:
        subject, file = body["subject"][0], body["predicate"]["outputs"]["files"][0]
        body["subject"] = [{**subject, "name": name} for name in names]
        body["predicate"]["outputs"]["files"] = [{**file, "name": name} for name in names]

    def rename_inner(comment: str, *names: str) -> Json:
        return inner(comment, lambda body: rename(body, *names))

    spaced = canonical(document(canonical(statement()))).replace(b'{"bundle"', b'{ "bundle"', 1)
    return [
        {"name": "a space", "file": spaced.decode(), "outcome": "manifest-malformed"},
        outer("another version", lambda file: file.update(version=2)),
        outer("a field too many", lambda file: file.update(note="")),
        outer("no evidence", lambda file: file.pop("evidence")),
        outer("another media type", lambda file: file["bundle"].update(mediaType="x")),
        outer(
            "the hint of another key",
            lambda file: file["bundle"]["verificationMaterial"]["publicKey"].update(
                hint=hint(OWNER)
            ),
        ),
        outer(
            "a log entry nobody checks",
            lambda file: file["bundle"]["verificationMaterial"]["tlogEntries"].append({}),
        ),
        inner("another predicate type", lambda body: body.update(predicateType="x")),
        inner("another statement type", lambda body: body.update(_type="x")),
        inner("an unknown fact", lambda body: body["predicate"].update(note="")),
        inner(
            "an older predicate",
            lambda body: body.update(
                predicateType="https://sealtrain.dev/attestations/run-manifest/v1"
            ),
        ),
        inner("an older version", lambda body: body["predicate"].update(version=1)),
        inner(
            "a release without rotations",
            lambda body: body["predicate"]["releases"].append({"receipt": {}, "proof": {}}),
        ),
        inner("a fact left out", lambda body: body["predicate"].pop("compute")),
        inner("no limits field", lambda body: body["predicate"].pop("limits")),
        inner("another marker", lambda body: body["predicate"].update(marker="ATTESTED")),
        inner("a step that is text", lambda body: body["predicate"]["run"].update(steps="10")),
        inner("predicate of version 1", lambda body: body["predicate"].update(version=1)),
        inner(
            "an output without a root",
            lambda body: body["predicate"]["outputs"]["files"][0].pop("root"),
        ),
        rename_inner("a name that climbs", "model/../weights.sealed"),
        rename_inner("an absolute name", "/model/weights.sealed"),
        rename_inner("a name outside the model's folder", "weights.sealed"),
        rename_inner("a name in a folder like the model's", "Model/weights.sealed"),
        rename_inner("a name with a control character", "model/a\u001b[2J.sealed"),
        rename_inner("a name with a letter that has two spellings", "model/caf\u00e9.sealed"),
        rename_inner("a name with a backslash", "model/a\\b.sealed"),
        rename_inner("a name of an alternate stream", "model/a:b.sealed"),
        rename_inner("a name of a device", "model/nul.json.sealed"),
        rename_inner("a hidden name", "model/.weights.sealed"),
        rename_inner("a name without an end", "model/weights"),
        rename_inner("a folder as a name", "model/.sealed"),
        rename_inner("names that differ by case", "model/A.json.sealed", "model/a.json.sealed"),
        rename_inner("a file and a folder of one name", "model/a.sealed", "model/a/b.sealed"),
        rename_inner(
            "a sealed file and a folder of one name", "model/a.sealed", "model/a.sealed/b.sealed"
        ),
        rename_inner("names out of order", "model/b.sealed", "model/a.sealed"),
        inner(
            "files the subjects do not name",
            lambda body: body["predicate"]["outputs"]["files"].append(
                {"name": "model/x.sealed", "size": 1, "root": "0c" * 32}
            ),
        ),
        inner(
            "a file under another name than its subject",
            lambda body: body["subject"][0].update(name="model/x.sealed"),
        ),
        inner("a subject twice", lambda body: body["subject"].append(body["subject"][0])),
        inner(
            "a key of the wrong length",
            lambda body: body["predicate"]["signer"].update(public_key=b64(b"\x11" * 31)),
        ),
        inner(
            "two owners with one key",
            lambda body: body["predicate"]["consortium"]["owners"].append(
                {**body["predicate"]["consortium"]["owners"][0], "name": "b"}
            ),
        ),
    ]


def receipt() -> Json:
    """A release receipt's payload."""
    return {
        "version": 2,
        "kind": "release",
        "broker_id": sha(b"sealtrain/broker/v1:" + raw(BROKER)),
        "run_id": "ab" * 16,
        "resume": False,
        "consortium_id": "05" * 32,
        "app_id": "02" * 20,
        "compose_hash": "03" * 32,
        "recipe_hash": "01" * 32,
        "datasets": [{"dataset_id": "06" * 16, "owner_id": "07" * 32, "root": "08" * 32}],
        "approved_by": ["a"],
        "evidence_digest": "09" * 32,
        "transcript_digest": "0a" * 32,
        "verdict": {"label": MARKER, "claims": []},
        "simulated": True,
        "released_at": "2026-01-02T03:04:10Z",
        "lease": {"lease_id": "0b" * 32, "not_after": "2026-01-02T04:04:10Z"},
        "checkpoint": None,
    }


def receipts() -> list[Json]:
    """One good receipt and faults, one each."""

    def add_signed(
        comment: str,
        error: str | None,
        change: Callable[[Json], object] = lambda body: None,
        *,
        kind: str = RECEIPT_TYPE,
        key: Ed25519PrivateKey = BROKER,
    ) -> Json:
        body = receipt()
        change(body)
        found = envelope(canonical(body), kind, key)
        return {
            "name": comment,
            "broker_key": raw(BROKER).hex(),
            "envelope": found,
            "receipt_digest": sha(canonical(found)),
            "outcome": error or "ok",
        }

    return [
        add_signed("a release", None),
        add_signed("a renewal", None, lambda body: body.update(kind="renewal", datasets=[])),
        add_signed("signed by somebody else", "signature-invalid", key=OWNER),
        add_signed("another payload type", "signature-invalid", kind="application/json"),
        add_signed("an unknown field", "statement-invalid", lambda body: body.update(note="")),
        add_signed("a field left out", "statement-invalid", lambda body: body.pop("checkpoint")),
        add_signed("an unknown kind", "statement-invalid", lambda body: body.update(kind="gift")),
        add_signed("an older version", "statement-invalid", lambda body: body.update(version=1)),
        add_signed(
            "another broker's id",
            "statement-invalid",
            lambda body: body.update(broker_id="0c" * 32),
        ),
        add_signed(
            "a day that does not exist",
            "statement-invalid",
            lambda body: body.update(released_at="2026-02-30T00:00:00Z"),
        ),
        add_signed(
            "a lease that ends as it begins",
            "statement-invalid",
            lambda body: body["lease"].update(not_after=body["released_at"]),
        ),
    ]


def main() -> None:
    """Write the files."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    folder.mkdir(parents=True, exist_ok=True)
    pages = {
        "form": {"version": 1, "cases": [well_formed(), *list_malformed()]},
        "receipt": {"version": 1, "cases": receipts()},
    }
    for name, page in pages.items():
        text = json.dumps(page, indent=1, ensure_ascii=False)
        (folder / f"{name}.json").write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
