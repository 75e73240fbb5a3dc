"""What the vectors of approvals are made of: owners, documents and envelopes, without sealtrain."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

Json = Any
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


def consortium(
    owners: list[Owner],
    approve: int,
    revoke: int,
    name: str = "banks",
    *,
    own: bool = False,
    **more: int,
) -> Json:
    """A consortium document."""
    return {
        "version": 2,
        "name": name,
        "owners": [owner.identity() for owner in owners],
        "thresholds": {
            "approve": approve,
            "revoke": revoke,
            "amend_members": len(owners) or 1,
            "amend_thresholds": len(owners) or 1,
            "raise_logging": approve,
            "export_model": approve,
            **more,
        },
        "own_data_consent": own,
    }


TWO_OF_THREE = consortium([A, B, C], 2, 1)
TWO_REVOKE = consortium([A, B, C], 2, 2)
OWN_DATA = consortium([A, B, C], 2, 2, own=True)
GRADED = consortium([A, B, C], 1, 1, export_model=2, raise_logging=3)
NEEDS = {"actions": ["approve", "export_model"], "owners": ["bank-a", "bank-b"]}
TARGET = {"app_id": "0a" * 20, "compose_hash": "0b" * 32, "recipe_hash": "0c" * 32}
CHANGED = {"app_id": "1a" * 20, "compose_hash": "1b" * 32, "recipe_hash": "1c" * 32}
BROKERS = ["b1" * 32, "b2" * 32]
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
        "version": 2,
        "consortium_id": sha(canonical(of)),
        "brokers": BROKERS,
        **target,
        "datasets": [PIN] if word == "approve" else [],
        "needs": NEEDS if word == "approve" else None,
        "lifts": [],
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
