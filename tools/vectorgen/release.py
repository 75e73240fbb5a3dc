"""Vectors of the key-release protocol, made without sealtrain.

Writes ``vectors/release/{conversations,receipts,challenges,leases,sealing-keys}.json``. All follows
from the seeds below, so a second run writes the same bytes. HPKE ciphertexts are random, so none is
there.
Run: ``python tools/vectorgen/release.py [FOLDER]``.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import sys
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

Json = Any
OUT = Path(__file__).resolve().parents[2] / "vectors" / "release"
RECEIPT = "application/vnd.sealtrain.release-receipt+json"
SEALING_KEY = "application/vnd.sealtrain.sealing-key+json"


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
    return hashlib.shake_256(b"sealtrain release vectors " + label.encode()).digest(size)


def to_hex(label: str, size: int = 32) -> str:
    """The same in hex."""
    return seed(label, size).hex()


def report_data(purpose: str, transcript: Json) -> str:
    """What a quote says about a conversation, 64 bytes in hex."""
    prefix = f"sealtrain/{purpose}/v1:".encode()
    return hashlib.sha512(prefix + canonical(transcript)).hexdigest()


def conversation() -> Json:
    """Fields that release and renewal share."""
    return {
        "broker_id": broker_id(),
        "challenge": to_hex("challenge"),
        "run_id": to_hex("run", 16),
        "consortium_id": to_hex("consortium"),
        "app_id": to_hex("app", 20),
        "compose_hash": to_hex("compose"),
        "recipe_hash": to_hex("recipe"),
    }


def place(number: int) -> Json:
    """Which dataset is meant: an id beside its owner's, and a root."""
    return {
        "owner_id": to_hex(f"owner {number}"),
        "dataset_id": to_hex(f"dataset {number}", 16),
        "root": to_hex(f"root {number}"),
    }


def dataset(number: int) -> Json:
    """One dataset of a request."""
    return place(number) | {
        "stanza": {
            "kind": "recipe",
            "recipient": to_hex(f"recipient {number}"),
            "body": b64(seed(f"body {number}", 1168)),
        },
    }


def release(
    name: str, count: int, resume: bool, elsewhere: int = 0, submission: str | None = None
) -> Json:
    """A release request's transcript and what follows from it."""
    transcript = conversation() | {
        "version": 3,
        "submission_id": submission,
        "hpke_public_key": b64(seed("hpke", 1216)),
        "datasets": [dataset(number) for number in range(count)],
        "elsewhere": [place(number) for number in range(count, count + elsewhere)],
        "resume": resume,
    }
    digest = sha(canonical(transcript))
    info = canonical({"purpose": "sealtrain/release/v2", "transcript_digest": digest})
    return {
        "name": name,
        "kind": "release",
        "transcript": transcript,
        "transcript_digest": digest,
        "report_data": report_data("release", transcript),
        "hpke_info": info.hex(),
    }


def renewal(name: str, checkpoint: Json) -> Json:
    """A renewal request's transcript and what follows from it."""
    transcript = conversation() | {
        "version": 2,
        "lease_id": to_hex("lease"),
        "checkpoint": checkpoint,
    }
    return {
        "name": name,
        "kind": "renewal",
        "transcript": transcript,
        "transcript_digest": sha(canonical(transcript)),
        "report_data": report_data("renewal", transcript),
    }


def identity() -> Json:
    """A broker's statement of which one it is and what its quote says about it."""
    transcript = {
        "consortium_id": to_hex("consortium"),
        "signing_key": b64(broker().public_key().public_bytes_raw()),
        "nonce": to_hex("nonce"),
    }
    return {
        "name": "identity",
        "kind": "broker-identity",
        "transcript": transcript,
        "report_data": report_data("broker-identity", transcript),
        "broker_id": broker_id(),
    }


def broker_keys() -> Json:
    """A broker's statement of its keys and what its quote says about it."""
    transcript = {
        "consortium_id": to_hex("consortium"),
        "app_id": to_hex("app", 20),
        "compose_hash": to_hex("compose"),
        "keys": [
            {
                "owner": owner,
                "owner_id": to_hex(f"{owner} id"),
                "public_key": b64(seed(f"{owner} key", 1216)),
            }
            for owner in ("hospital-a", "hospital-b")
        ],
        "signing_key": b64(broker().public_key().public_bytes_raw()),
        "nonce": to_hex("nonce"),
    }
    return {
        "name": "keys of two owners",
        "kind": "broker-keys",
        "transcript": transcript,
        "report_data": report_data("broker-keys", transcript),
        "ledger_origin": "sealtrain/ledger/" + to_hex("consortium"),
    }


def broker() -> Ed25519PrivateKey:
    """The broker's signing key."""
    return Ed25519PrivateKey.from_private_bytes(seed("broker"))


def broker_id() -> str:
    """What the broker with that key is called."""
    return sha(b"sealtrain/broker/v1:" + broker().public_key().public_bytes_raw())


def sign(kind: str, document: Json, key: Ed25519PrivateKey | None = None) -> Json:
    """A document in an envelope of the broker; a field that is "absent" is left out."""
    key = key or broker()
    payload = canonical({name: value for name, value in document.items() if value != "absent"})
    message = b"DSSEv1 %d %b %d %b" % (len(kind), kind.encode(), len(payload), payload)
    public = key.public_key().public_bytes_raw()
    return {
        "payload": b64(payload),
        "payloadType": kind,
        "signatures": [{"keyid": "ed25519:" + sha(public), "sig": b64(key.sign(message))}],
    }


def sealing_keys() -> Json:
    """Signed keys that a model is sealed to, and what a guest asked for."""
    document = {
        "version": 1,
        "broker_id": broker_id(),
        "consortium_id": to_hex("consortium"),
        "app_id": to_hex("app", 20),
        "compose_hash": to_hex("compose"),
        "owner_id": to_hex("hospital-a id"),
        "public_key": b64(seed("hospital-a key", 1216)),
        "nonce": to_hex("nonce"),
    }

    def case(name: str, expect: str | None, kind: str = SEALING_KEY, **changed: Json) -> Json:
        return {
            "name": name,
            "statement": sign(kind, document | changed),
            "outcome": expect or "ok",
        }

    stranger = Ed25519PrivateKey.from_private_bytes(seed("another broker"))
    other = sign(SEALING_KEY, document, stranger)
    return {
        "public_key": b64(broker().public_key().public_bytes_raw()),
        "asked": {
            name: document[name]
            for name in ("consortium_id", "app_id", "compose_hash", "owner_id", "nonce")
        },
        "cases": [
            case("the key asked for", None),
            {
                "name": "signed by another broker",
                "statement": other,
                "outcome": "signature-invalid",
            },
            case("another payload type", "signature-invalid", RECEIPT),
            case("another broker's id", "answer-invalid", broker_id=to_hex("another broker")),
            case("another consortium", "answer-invalid", consortium_id=to_hex("another")),
            case("another deployment", "answer-invalid", compose_hash=to_hex("another")),
            case("another app id", "answer-invalid", app_id=to_hex("another", 20)),
            case("another owner", "answer-invalid", owner_id=to_hex("another")),
            case("another nonce", "answer-invalid", nonce=to_hex("another")),
            case("unknown field", "answer-invalid", extra=1),
            case("field left out", "answer-invalid", nonce="absent"),
            case("another version", "answer-invalid", version=2),
            case("a key of another length", "answer-invalid", public_key=b64(bytes(1184))),
        ],
    }


def receipt(name: str, expect: str | None = None, **changed: Json) -> Json:
    """A receipt's envelope; ``expect`` names the error of one that must be refused."""
    fields = conversation()
    del fields["challenge"]
    document = fields | {
        "version": 2,
        "kind": "release",
        "resume": False,
        "datasets": [
            {
                "dataset_id": to_hex("dataset 0", 16),
                "owner_id": to_hex("hospital-a id"),
                "root": to_hex("root 0"),
            }
        ],
        "approved_by": ["hospital-a", "hospital-b"],
        "evidence_digest": to_hex("evidence"),
        "transcript_digest": to_hex("transcript"),
        "verdict": {"label": "ATTESTED", "claims": []},
        "simulated": False,
        "released_at": "2026-03-01T12:00:00Z",
        "lease": {"lease_id": to_hex("lease"), "not_after": "2026-03-01T13:00:00Z"},
        "checkpoint": None,
    }
    document |= changed
    envelope = sign(RECEIPT, document)
    return {
        "name": name,
        "envelope": envelope,
        "digest": sha(canonical(envelope)),
        "outcome": expect or "ok",
    }


def forge(name: str, error: str) -> Json:
    """A receipt whose payload was altered after signing."""
    case = receipt(name, error)
    payload = bytearray(base64.b64decode(case["envelope"]["payload"]))
    payload[20] ^= 1
    case["envelope"]["payload"] = b64(bytes(payload))
    case["digest"] = sha(canonical(case["envelope"]))
    return case


def derive(root: bytes, purpose: str, *parts: str) -> bytes:
    """HKDF-SHA256 without salt over length-prefixed words (spec/keys.md), by hand: RFC 5869."""
    info = b""
    for word in (f"sealtrain/{purpose}/v1", *parts):
        info += len(word).to_bytes(4, "big") + word.encode()
    extracted = hmac.digest(bytes(32), root, "sha256")
    return hmac.digest(extracted, info + b"\x01", "sha256")


def challenge(purpose: str, generation: str, expires_at: int) -> Json:
    """A challenge as a broker makes it, and what else somebody may take it for."""
    random = seed(f"challenge {purpose} {expires_at}", 8)
    key = derive(seed("root"), "challenge-key", to_hex("consortium"), purpose, generation)
    head = expires_at.to_bytes(8, "big") + random
    return {
        "purpose": purpose,
        "generation": generation,
        "expires_at": expires_at,
        "random": random.hex(),
        "key": key.hex(),
        "challenge": (head + hmac.digest(key, head, "sha256")[:16]).hex(),
    }


def show_lease(root: str, lease_id: str, body: bytes) -> Json:
    """The header by which the holder of a lease shows it."""
    key = derive(seed(root), "lease-key", lease_id)
    digest = hashlib.sha256(body).digest()
    code = hmac.digest(key, b"sealtrain/renewal/v1:" + digest, "sha256")
    closing = hmac.digest(key, b"sealtrain/manifest-key/v1", "sha256")
    manifest = hmac.digest(closing, b"sealtrain/manifest/v1:" + digest, "sha256")
    return {
        "root": to_hex(root),
        "lease_id": lease_id,
        "key": key.hex(),
        "body": body.hex(),
        "header": f"{lease_id} {digest.hex()} {code.hex()}",
        "manifest_key": closing.hex(),
        "manifest_header": f"{lease_id} {digest.hex()} {manifest.hex()}",
    }


def leases() -> Json:
    """Headers of renewals and manifests."""
    return {
        "cases": [
            show_lease("root", to_hex("lease"), b"{}"),
            show_lease("root", to_hex("lease"), b""),
            show_lease("root", to_hex("another lease"), b"{}"),
            show_lease("another root", to_hex("lease"), b"{}"),
        ]
    }


def challenges() -> Json:
    """Challenges of one broker."""
    first, second = to_hex("generation", 16), to_hex("next generation", 16)
    return {
        "root": to_hex("root"),
        "consortium_id": to_hex("consortium"),
        "cases": [
            challenge("release", first, 1_772_366_520),
            challenge("renewal", first, 1_772_366_520),
            challenge("release", second, 1_772_366_520),
            challenge("renewal", second, 0),
            challenge("release", first, 2**53 - 1),
        ],
    }


def main(out: Path) -> None:
    """Write all files."""
    conversations = [
        release("one dataset, new run", 1, False),
        release("two datasets, resumed run", 2, True),
        release("one dataset of three, the others elsewhere", 1, False, 2),
        release("for a submission", 1, False, submission=to_hex("submission", 16)),
        renewal("without a checkpoint", None),
        renewal("with a checkpoint", {"counter": 7, "digest": to_hex("checkpoint")}),
        broker_keys(),
        identity(),
    ]
    anchor = {"counter": 7, "digest": to_hex("checkpoint")}
    receipts = [
        receipt("a release"),
        receipt("a renewal", kind="renewal", datasets=[], checkpoint=anchor),
        forge("payload altered after signing", "signature-invalid"),
        receipt("unknown field", "statement-invalid", extra=1),
        receipt("field left out", "statement-invalid", simulated="absent"),
        receipt("unknown kind", "statement-invalid", kind="gift"),
        receipt("another version", "statement-invalid", version=1),
        receipt("another broker's id", "statement-invalid", broker_id=to_hex("another broker")),
        receipt("no broker's id", "statement-invalid", broker_id="absent"),
        receipt(
            "lease ends at its beginning",
            "statement-invalid",
            lease={"lease_id": to_hex("lease"), "not_after": "2026-03-01T12:00:00Z"},
        ),
        receipt("no such day", "statement-invalid", released_at="2026-02-30T12:00:00Z"),
    ]
    public = b64(broker().public_key().public_bytes_raw())
    out.mkdir(parents=True, exist_ok=True)
    for name, value in (
        ("conversations", {"cases": conversations}),
        ("receipts", {"public_key": public, "cases": receipts}),
        ("challenges", challenges()),
        ("leases", leases()),
        ("sealing-keys", sealing_keys()),
    ):
        (out / f"{name}.json").write_text(json.dumps(value, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else OUT)
