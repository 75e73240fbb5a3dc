"""Guest keys, claims and chains against dstack's published constants."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from sealtrain.attest.dstack import keys
from sealtrain.attest.dstack.keccak import keccak256
from sealtrain.attest.dstack.parse import runtime_digest
from sealtrain.attest.dstack.secp256k1 import public_key_of, recover, sign_recoverable
from sealtrain.base.secret import Secret
from sealtrain.errors import KeyProviderMismatch, SignatureInvalid


@pytest.fixture(scope="module")
def published(shared: Path) -> dict[str, Any]:
    text = (shared / "vectors/dstack/published-constants.json").read_text()
    document: dict[str, Any] = json.loads(text)
    return document


def test_keccak_agrees_with_an_independent_implementation() -> None:
    keccak = pytest.importorskip("Crypto.Hash.keccak")
    for length in (0, 1, 31, 32, 64, 134, 135, 136, 137, 271, 272, 273, 1000):
        data = bytes(index * 7 % 251 for index in range(length))
        assert keccak256(data) == keccak.new(digest_bits=256, data=data).digest()


def test_v1_keys_equal_the_published_ones(published: dict[str, Any]) -> None:
    section = published["v1_getkey"]
    app_key = Secret(bytes.fromhex(section["app_k256_key"]))
    assert public_key_of(app_key).hex() == section["app_public_key"]
    for vector in section["vectors"]:
        domain = bytes.fromhex(vector["domain_hex"]).decode()
        key = keys.derive_v1(app_key, domain, vector["algorithm"])
        assert key.reveal().hex() == vector["key"]
        assert keys.public_half(key, vector["algorithm"]).hex() == vector["public_key"]


def test_v1_claim_signature_is_bit_exact(published: dict[str, Any]) -> None:
    section = published["v1_getkey"]
    link = section["link0"]
    app_key = Secret(bytes.fromhex(section["app_k256_key"]))
    key = keys.derive_v1(app_key, link["domain"], link["algorithm"])
    claim = keys.claim_v1(
        link["domain"], link["algorithm"], keys.public_half(key, link["algorithm"])
    )
    assert sign_recoverable(app_key, claim).hex() == link["signature"]


def test_v0_key_and_claim_are_bit_exact(published: dict[str, Any]) -> None:
    section = published["v0_getkey"]
    app_key = Secret(bytes.fromhex(section["app_k256_key"]))
    key = keys.derive_v0(app_key, section["path"])
    assert key.reveal().hex() == section["key"]
    claim = keys.claim_v0(section["purpose"], keys.public_half(key, "secp256k1"))
    assert claim.decode() == section["claim"]
    assert sign_recoverable(app_key, claim).hex() == section["link0"]


def test_the_upstream_simulators_chain_verifies_to_its_root(
    shared: Path, published: dict[str, Any]
) -> None:
    section = published["simulator_v054"]
    stored = json.loads((shared / "vectors/dstack/simulator-v0.5.4/appkeys.json").read_text())
    app_key = Secret(bytes.fromhex(stored["k256_key"]))
    app_id = bytes.fromhex(section["app_id"])
    root = bytes.fromhex(section["kms_root_pub"])
    for vector in section["get_key"]:
        key = keys.derive_v0(app_key, vector["path"])
        assert key.reveal().hex() == vector["key"]
        assert keys.public_half(key, "secp256k1").hex() == vector["pub"]
        assert keys.public_half(key, "ed25519").hex() == vector["ed25519_pub"]
        claim = keys.claim_v0("p", keys.public_half(key, "secp256k1"))
        chain = (sign_recoverable(app_key, claim), bytes.fromhex(stored["k256_signature"]))
        found = keys.verify_chain(chain, claim=claim, app_id=app_id, root_key=root)
        assert found.app_key.hex() == section["app_pub"]
    with pytest.raises(KeyProviderMismatch):
        keys.verify_chain(chain, claim=claim, app_id=bytes(20), root_key=root)
    with pytest.raises(KeyProviderMismatch):
        keys.verify_chain(chain, claim=claim, app_id=app_id, root_key=public_key_of(app_key))
    with pytest.raises(KeyProviderMismatch):
        keys.verify_chain(chain[:1], claim=claim, app_id=app_id, root_key=root)


def test_app_key_derivation_starts_from_the_providers_root_and_the_app() -> None:
    root = Secret(hashlib.sha256(b"root").digest())
    one = keys.derive_app_key(root, bytes(20))
    assert one == keys.derive_app_key(root, bytes(20))
    assert one != keys.derive_app_key(root, bytes(19) + b"\x01")


def test_a_high_s_signature_and_a_large_recovery_id_are_refused() -> None:
    from sealtrain.attest.dstack.secp256k1 import ORDER

    key = Secret(hashlib.sha256(b"k").digest())
    good = sign_recoverable(key, b"m")
    assert recover(good, b"m") == public_key_of(key)
    assert recover(good, b"n") != public_key_of(key)
    s = int.from_bytes(good[32:64], "big")
    high = good[:32] + (ORDER - s).to_bytes(32, "big") + bytes([good[64] ^ 1])
    for bad in (high, good[:64] + b"\x02", good[:64], bytes(65), b"\xff" * 65):
        with pytest.raises(SignatureInvalid):
            recover(bad, b"m")


def test_keys_out_of_range_are_refused() -> None:
    for scalar in (bytes(32), b"\xff" * 32, b"\x01" * 31):
        with pytest.raises(SignatureInvalid):
            sign_recoverable(Secret(scalar), b"m")


def test_runtime_event_digests_equal_the_published_ones(published: dict[str, Any]) -> None:
    for number, name in ((1, "v1"), (2, "v2")):
        vector = published["runtime_event_digest"][name]
        digest = runtime_digest(vector["name"], bytes.fromhex(vector["payload"]), number)
        assert digest.hex() == vector["digest"]


def test_recovery_agrees_with_an_independent_implementation() -> None:
    eth_keys = pytest.importorskip("eth_keys")
    for number in range(1, 12):
        secret = hashlib.sha256(bytes([number])).digest()
        message = b"m" * number
        ours = sign_recoverable(Secret(secret), message)
        theirs = eth_keys.keys.PrivateKey(secret).sign_msg(message)
        assert ours == theirs.to_bytes()
        public = theirs.recover_public_key_from_msg(message)
        assert recover(ours, message) == public.to_compressed_bytes()


def test_a_key_of_one_and_degenerate_sums_are_handled() -> None:
    """The base point itself meets the additions of equal and of opposite points."""
    one = Secret((1).to_bytes(32, "big"))
    for message in (b"", b"a", b"b", b"c"):
        assert recover(sign_recoverable(one, message), message) == public_key_of(one)
