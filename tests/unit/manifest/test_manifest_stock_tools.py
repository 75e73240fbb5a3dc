"""Tools of other projects verify the same bundle: securesystemslib, openssl, sigstore's models."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from manifest_world import World
from programs import need

from sealtrain.base.encoding import from_base64

pytestmark = pytest.mark.claim("C30")


def bundle(honest: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(honest)["bundle"]
    return found


def payload_of(envelope: dict[str, Any]) -> bytes:
    return from_base64(envelope["payload"])


def test_securesystemslib_verifies_the_envelope_and_refuses_a_changed_one(
    world: World, honest: bytes
) -> None:
    dsse = pytest.importorskip("securesystemslib.dsse")
    signer = pytest.importorskip("securesystemslib.signer")
    document = bundle(honest)["dsseEnvelope"]
    public = from_base64(
        json.loads(payload_of(document))["predicate"]["signer"]["public_key"]
    ).hex()
    key = signer.SSlibKey(
        document["signatures"][0]["keyid"], "ed25519", "ed25519", {"public": public}
    )
    accepted = dsse.Envelope.from_dict(json.loads(json.dumps(document))).verify([key], 1)
    assert list(accepted) == [world.guest_key.key_id]
    changed = dsse.Envelope.from_dict(json.loads(json.dumps(document)))
    changed.payload = changed.payload.replace(b'"steps":300', b'"steps":301')
    from securesystemslib.exceptions import VerificationError

    with pytest.raises(VerificationError):
        changed.verify([key], 1)


def test_openssl_verifies_the_signature_over_the_pre_authentication_encoding(
    world: World, honest: bytes, tmp_path: Path
) -> None:
    openssl = need("openssl")["openssl"]
    document = bundle(honest)["dsseEnvelope"]
    payload, kind = payload_of(document), document["payloadType"].encode()
    key = Ed25519PublicKey.from_public_bytes(world.guest_key.public)
    (tmp_path / "key.pem").write_bytes(
        key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    (tmp_path / "sig").write_bytes(from_base64(document["signatures"][0]["sig"]))

    def verify(signed: bytes) -> subprocess.CompletedProcess[bytes]:
        encoded = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(signed), signed)
        (tmp_path / "pae").write_bytes(encoded)
        return subprocess.run(
            f"{openssl} pkeyutl -verify -pubin -inkey key.pem -rawin -in pae -sigfile sig".split(),
            cwd=tmp_path,
            capture_output=True,
            check=False,
        )

    accepted = verify(payload)
    assert accepted.returncode == 0, accepted.stderr
    assert verify(payload + b" ").returncode != 0


def test_sigstores_own_model_parses_the_bundle(honest: bytes) -> None:
    models = pytest.importorskip("sigstore_models.bundle.v1")
    parsed = models.Bundle.from_json(json.dumps(bundle(honest)))
    assert parsed.media_type == "application/vnd.dev.sigstore.bundle.v0.3+json"
    assert parsed.verification_material.public_key.hint
