"""An OpenSSF model-signing bundle over the opened model, for stock verifiers.

A recipient signs, with an elliptic-curve key of its own, after opening the outputs. The guest
cannot: it discards its manifest key after one signature, the format does not know that key's kind
(Ed25519), and the guest signs sealed files, which their recipients do not run. So the recipient
vouches for this step, and only after a check: sealtrain compares every file of the folder with the
opened outputs of the manifest. ``model_signing verify key`` then needs neither sealtrain nor the
manifest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sealtrain.base.digests import file_sha256
from sealtrain.base.encoding import to_base64
from sealtrain.errors import KeyFileInvalid
from sealtrain.manifest.errors import SubjectMismatch
from sealtrain.signing.dsse import pae

_PREDICATE = "https://model_signing/signature/v1.0"
_PAYLOAD_TYPE = "application/vnd.in-toto+json"
_BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_HASH_OF: dict[int, hashes.HashAlgorithm] = {
    256: hashes.SHA256(),
    384: hashes.SHA384(),
    521: hashes.SHA512(),
}


def load_signing_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read an unencrypted PEM key on P-256, P-384 or P-521.

    Raises:
        KeyFileInvalid: The file holds another kind of key, or none.
    """
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not key.curve.name.startswith("secp"):
        raise KeyFileInvalid(
            f"the key cannot sign models: {path}",
            expected="an unencrypted PEM private key on P-256, P-384 or P-521",
            hint="make one: openssl ecparam -name prime256v1 -genkey -noout -out signing.pem",
        )
    if key.curve.key_size not in _HASH_OF:
        raise KeyFileInvalid(f"the key cannot sign models: {path}", got=key.curve.name)
    return key


def hash_opened(folder: Path, expected: Mapping[str, str]) -> dict[str, str]:
    """Digests of the files in a folder, if they are exactly the files that the guest sealed.

    Args:
        folder: Folder of the opened model.
        expected: Name → SHA-256 of the opened outputs.

    Returns:
        Name → SHA-256, 64 hex digits, sorted by name.

    Raises:
        SubjectMismatch: A file is missing, unknown, a link, or has another content.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    linked = [path.name for path in paths if path.is_symlink()]
    found = {path.relative_to(folder).as_posix(): path for path in paths}
    differing = sorted(set(found) ^ set(expected))
    if linked or differing:
        raise SubjectMismatch(
            "the folder does not hold exactly the files that the guest sealed",
            check="model",
            got=", ".join([*linked, *differing])[:200],
            expected=", ".join(sorted(expected))[:200],
            hint="open the outputs into a new folder and sign that",
        )
    digests = {name: file_sha256(path) for name, path in sorted(found.items())}
    for name, got in digests.items():
        if got != expected[name]:
            raise SubjectMismatch(
                f"{name} is not the file that was sealed",
                check="model",
                got=got,
                expected=expected[name],
            )
    return digests


def model_signature(
    name: str, digests: Mapping[str, str], key: ec.EllipticCurvePrivateKey
) -> bytes:
    """``model.sig``: a Sigstore bundle around a DSSE envelope around the statement.

    Args:
        name: Name of the model.
        digests: Name → SHA-256 of every file, 64 hex digits.
        key: From ``load_signing_key``.
    """
    ordered = sorted(digests.items())
    overall = hashlib.sha256(b"".join(bytes.fromhex(digest) for _, digest in ordered))
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": overall.hexdigest()}}],
        "predicateType": _PREDICATE,
        "predicate": {
            "serialization": {
                "method": "files",
                "hash_type": "sha256",
                "allow_symlinks": False,
                "ignore_paths": [],
            },
            "resources": [
                {"name": file, "algorithm": "sha256", "digest": digest} for file, digest in ordered
            ],
        },
    }
    payload = json.dumps(statement, indent=2).encode()
    algorithm = ec.ECDSA(_HASH_OF[key.curve.key_size])
    signature = key.sign(pae(_PAYLOAD_TYPE, payload), algorithm)
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    bundle: dict[str, Any] = {
        "mediaType": _BUNDLE,
        "verificationMaterial": {
            "publicKey": {"hint": hashlib.sha256(public).hexdigest()},
            "tlogEntries": [],
        },
        "dsseEnvelope": {
            "payload": to_base64(payload),
            "payloadType": _PAYLOAD_TYPE,
            "signatures": [{"sig": to_base64(signature), "keyid": ""}],
        },
    }
    return json.dumps(bundle).encode()
