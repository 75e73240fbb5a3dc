"""Vectors of the exchange of store credentials, made without sealtrain.

Writes ``vectors/store-credentials/exchange.json``: a transcript with what evidence commits to, and
credentials sealed to the guest's key, which is known here; documents that are taken or refused.
Run: ``python tools/vectorgen/store_credentials.py [FOLDER]``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes, hpke
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

Json = Any
OUT = Path(__file__).resolve().parents[2] / "vectors" / "store-credentials"
SEED = bytes(range(32))
GIVEN = {
    "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "not/a+secret",
    "SEALTRAIN_STORE_TOKEN": "a token",
    "SEALTRAIN_STORE_URL": "https://store.example/runs",
}


def canonical(value: Json) -> bytes:
    """RFC 8785 for what occurs here: text alone."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def exchange() -> Json:
    """A guest's key, what its evidence commits to, and the credentials sealed to it."""
    okm = HKDF(hashes.SHA256(), 96, None, b"sealtrain/hpke-key/v1").derive(SEED)
    mlkem = MLKEM768PrivateKey.from_seed_bytes(okm[:64])
    x25519 = X25519PrivateKey.from_private_bytes(okm[64:])
    raw = mlkem.public_key().public_bytes_raw() + x25519.public_key().public_bytes_raw()
    transcript = {
        "compose_hash": "c0" * 32,
        "key": base64.b64encode(raw).decode(),
        "nonce": "5e" * 32,
    }
    info = b"sealtrain/store-credentials/v1:" + canonical(transcript)
    public = hpke.MLKEM768X25519PublicKey(mlkem.public_key(), x25519.public_key())
    suite = hpke.Suite(hpke.KEM.MLKEM768_X25519, hpke.KDF.HKDF_SHA256, hpke.AEAD.AES_256_GCM)
    sealed = suite.encrypt(canonical(GIVEN), public, info=info)
    return {
        "seed": SEED.hex(),
        "transcript": transcript,
        "report_data": hashlib.sha512(info).hexdigest(),
        "sealed": base64.b64encode(sealed).decode(),
        "credentials": GIVEN,
    }


def list_refused() -> Json:
    """Documents that are no credentials."""
    return {
        "none": {},
        "a list": [],
        "another name": {"LD_PRELOAD": "x.so"},
        "a name in small letters": {"aws_access_key_id": "a"},
        "a number": {"AWS_ACCESS_KEY_ID": 7},
        "an empty value": {"AWS_ACCESS_KEY_ID": ""},
        "a line break": {"AWS_ACCESS_KEY_ID": "a\nb"},
        "a character beyond ASCII": {"AWS_ACCESS_KEY_ID": "ä"},
        "a long value": {"AWS_ACCESS_KEY_ID": "a" * 16385},
        "a token for anywhere": {"SEALTRAIN_STORE_TOKEN": "t"},
        "a place without a token": {"SEALTRAIN_STORE_URL": "https://store.example/runs"},
        "a token in the clear": {
            "SEALTRAIN_STORE_TOKEN": "t",
            "SEALTRAIN_STORE_URL": "http://store.example/runs",
        },
    }


def main(out: Path) -> None:
    """Write the vectors."""
    out.mkdir(parents=True, exist_ok=True)
    cases = [
        {"name": name, "document": value, "outcome": "usage"}
        for name, value in list_refused().items()
    ]
    document = {"exchange": exchange(), "cases": cases}
    (out / "exchange.json").write_text(
        json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else OUT)
