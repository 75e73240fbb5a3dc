"""The HPKE suite against published vectors and against a second implementation written here.

The vectors (filippo.io/hpke, MLKEM768-X25519) use ChaCha20-Poly1305 and per-message AAD. Our suite
is AES-256-GCM and single shot. What they share is tested against the vectors (key format, KEM, key
schedule); what differs is reached through ``Sender``, an RFC 9180 sender written here from the
primitives, which itself must reproduce the vectors first.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from cryptography.hazmat.primitives import hashes, hmac, hpke
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from hypothesis import given, settings
from hypothesis import strategies as st
from variants import examples

from sealtrain.base.secret import Secret
from sealtrain.errors import DataInvalid
from sealtrain.sealing.errors import WrongKey
from sealtrain.sealing.hpke import PUBLIC_KEY_BYTES, HpkePrivateKey, HpkePublicKey

KEM_ID, KDF_HKDF_SHA256 = 0x647A, 1
AES_256_GCM, CHACHA20_POLY1305 = 2, 3
ENC_BYTES = 1088 + 32
SEED = bytes(range(32))


# --- A second implementation: RFC 9180 base mode over MLKEM768-X25519, sender's side ------------


def extract(salt: bytes, material: bytes) -> bytes:
    mac = hmac.HMAC(salt or bytes(32), hashes.SHA256())
    mac.update(material)
    return mac.finalize()


def expand(key: bytes, info: bytes, length: int) -> bytes:
    output, block = b"", b""
    while len(output) < length:
        mac = hmac.HMAC(key, hashes.SHA256())
        mac.update(block + info + bytes([len(output) // 32 + 1]))
        block = mac.finalize()
        output += block
    return output[:length]


def key_schedule(shared_secret: bytes, info: bytes, aead_id: int) -> tuple[bytes, bytes]:
    suite = b"HPKE" + b"".join(n.to_bytes(2) for n in (KEM_ID, KDF_HKDF_SHA256, aead_id))

    def labeled_extract(salt: bytes, label: bytes, material: bytes) -> bytes:
        return extract(salt, b"HPKE-v1" + suite + label + material)

    def labeled_expand(secret: bytes, label: bytes, context: bytes, length: int) -> bytes:
        return expand(secret, length.to_bytes(2) + b"HPKE-v1" + suite + label + context, length)

    context = (
        b"\0" + labeled_extract(b"", b"psk_id_hash", b"") + labeled_extract(b"", b"info_hash", info)
    )
    secret = labeled_extract(shared_secret, b"secret", b"")
    return labeled_expand(secret, b"key", context, 32), labeled_expand(
        secret, b"base_nonce", context, 12
    )


def combine(pq: bytes, classic: bytes, classic_ct: bytes, classic_pk: bytes) -> bytes:
    """The X-Wing combiner."""
    label = bytes.fromhex("5c2e2f2f5e5c")
    return hashlib.sha3_256(pq + classic + classic_ct + classic_pk + label).digest()


def send(public: bytes, plaintext: bytes, info: bytes) -> bytes:
    """Encrypt with AES-256-GCM to a raw public key, using none of the code under test."""
    pq, enc_pq = MLKEM768PublicKey.from_public_bytes(public[:1184]).encapsulate()
    ephemeral = X25519PrivateKey.generate()
    classic = ephemeral.exchange(X25519PublicKey.from_public_bytes(public[1184:]))
    enc_classic = ephemeral.public_key().public_bytes_raw()
    shared = combine(pq, classic, enc_classic, public[1184:])
    key, nonce = key_schedule(shared, info, AES_256_GCM)
    return enc_pq + enc_classic + AESGCM(key).encrypt(nonce, plaintext, b"")


# --- Vectors ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Vector:
    """One published vector and the private key it names."""

    fields: dict[str, Any]

    def __getitem__(self, name: str) -> bytes:
        return bytes.fromhex(self.fields[name])

    @property
    def halves(self) -> tuple[MLKEM768PrivateKey, X25519PrivateKey]:
        # The vector's 32-byte private key expands by SHAKE-256, as X-Wing defines.
        okm = hashlib.shake_256(self["skRm"]).digest(96)
        return (
            MLKEM768PrivateKey.from_seed_bytes(okm[:64]),
            X25519PrivateKey.from_private_bytes(okm[64:]),
        )

    def receiver(self) -> HpkePrivateKey:
        """Our private key holding the vector's halves instead of derived ones."""
        return HpkePrivateKey.of(*self.halves)


@pytest.fixture(scope="module")
def vector(shared: Path) -> Vector:
    document = json.loads((shared / "vectors/hpke/testdata/hpke-pq.json").read_bytes())
    chosen = [
        fields
        for fields in document
        if (fields["kem_id"], fields["kdf_id"]) == (KEM_ID, KDF_HKDF_SHA256)
    ]
    assert len(chosen) == 1
    return Vector(chosen[0])


def test_our_public_key_format_is_the_published_one(vector: Vector) -> None:
    mlkem, x25519 = vector.halves
    ours = mlkem.public_key().public_bytes_raw() + x25519.public_key().public_bytes_raw()
    assert ours == vector["pkRm"]
    assert HpkePublicKey(vector["pkRm"]).raw == vector["pkRm"]
    assert len(vector["pkRm"]) == PUBLIC_KEY_BYTES


def test_the_second_implementation_reproduces_the_published_secrets(vector: Vector) -> None:
    mlkem, x25519 = vector.halves
    enc = vector["enc"]
    shared = combine(
        mlkem.decapsulate(enc[:1088]),
        x25519.exchange(X25519PublicKey.from_public_bytes(enc[1088:])),
        enc[1088:],
        vector["pkRm"][1184:],
    )
    assert shared == vector["shared_secret"]
    assert key_schedule(shared, vector["info"], CHACHA20_POLY1305) == (
        vector["key"],
        vector["base_nonce"],
    )
    first = vector.fields["encryptions"][0]
    ciphertext = ChaCha20Poly1305(vector["key"]).encrypt(
        vector["base_nonce"], bytes.fromhex(first["pt"]), bytes.fromhex(first["aad"])
    )
    assert ciphertext.hex() == first["ct"]


def test_the_library_opens_a_message_made_from_the_published_key_schedule(vector: Vector) -> None:
    suite = hpke.Suite(hpke.KEM.MLKEM768_X25519, hpke.KDF.HKDF_SHA256, hpke.AEAD.CHACHA20_POLY1305)
    body = ChaCha20Poly1305(vector["key"]).encrypt(vector["base_nonce"], b"message", b"")
    key = hpke.MLKEM768X25519PrivateKey(*vector.halves)
    assert suite.decrypt(vector["enc"] + body, key, info=vector["info"]) == b"message"


def test_our_suite_opens_a_message_made_from_the_published_shared_secret(vector: Vector) -> None:
    key, nonce = key_schedule(vector["shared_secret"], vector["info"], AES_256_GCM)
    message = vector["enc"] + AESGCM(key).encrypt(nonce, b"message", b"")
    opened = vector.receiver().open(message, info=vector["info"])
    assert opened.reveal() == b"message"


# --- Our own keys -------------------------------------------------------------------------------


def test_a_message_of_the_second_implementation_opens_with_our_key() -> None:
    private = HpkePrivateKey(Secret(SEED))
    message = send(private.public.raw, b"data key", b"info")
    assert private.open(message, info=b"info") == Secret(b"data key")


def test_a_seed_always_gives_the_same_pair_and_another_seed_another() -> None:
    first, again = HpkePrivateKey(Secret(SEED)), HpkePrivateKey(Secret(SEED))
    other = HpkePrivateKey(Secret(SEED[::-1]))
    assert first.public.raw == again.public.raw
    assert first.public.raw != other.public.raw
    # Derivation is a promise: keys in use must not move. HKDF-SHA256, 96 bytes, no salt.
    okm = expand(extract(b"", SEED), b"sealtrain/hpke-key/v1", 96)
    mlkem = MLKEM768PrivateKey.from_seed_bytes(okm[:64])
    x25519 = X25519PrivateKey.from_private_bytes(okm[64:])
    assert first.public.raw == (
        mlkem.public_key().public_bytes_raw() + x25519.public_key().public_bytes_raw()
    )


@settings(max_examples=examples(25), deadline=None)
@given(st.binary(max_size=200), st.binary(max_size=200))
def test_what_is_sealed_opens_under_the_same_info(plaintext: bytes, info: bytes) -> None:
    private = HpkePrivateKey(Secret(SEED))
    message = private.public.seal(plaintext, info=info)
    assert len(message) == len(plaintext) + ENC_BYTES + 16
    assert private.open(message, info=info) == Secret(plaintext)


def test_sealing_twice_gives_different_messages() -> None:
    public = HpkePrivateKey(Secret(SEED)).public
    assert public.seal(b"same", info=b"") != public.seal(b"same", info=b"")


def test_another_key_or_another_info_is_refused() -> None:
    private, other = HpkePrivateKey(Secret(SEED)), HpkePrivateKey(Secret(SEED[::-1]))
    message = private.public.seal(b"data key", info=b"for release")
    with pytest.raises(WrongKey):
        other.open(message, info=b"for release")
    with pytest.raises(WrongKey):
        private.open(message, info=b"for something else")


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(0, ENC_BYTES + 16 + 7), st.integers(0, 7))
def test_any_flipped_bit_is_refused(position: int, bit: int) -> None:
    private = HpkePrivateKey(Secret(SEED))
    message = bytearray(private.public.seal(b"data key", info=b""))
    message[position] ^= 1 << bit
    with pytest.raises(WrongKey):
        private.open(bytes(message), info=b"")


@pytest.mark.parametrize("length", [0, 1, 1087, 1088, 1119, 1120, 1135, 1136, 1143])
def test_a_truncated_message_is_refused(length: int) -> None:
    private = HpkePrivateKey(Secret(SEED))
    message = private.public.seal(b"data key", info=b"")
    with pytest.raises(WrongKey):
        private.open(message[:length], info=b"")


def test_an_x25519_share_of_low_order_is_refused() -> None:
    private = HpkePrivateKey(Secret(SEED))
    message = private.public.seal(b"data key", info=b"")
    with pytest.raises(WrongKey):
        private.open(message[:1088] + bytes(32) + message[1120:], info=b"")


@pytest.mark.parametrize("length", [0, 1184, 1215, 1217])
def test_a_public_key_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(DataInvalid, check=carries(expected="1216")):
        HpkePublicKey(bytes(length))


def test_a_public_key_that_is_no_key_is_refused() -> None:
    # Coefficients of an ML-KEM key must lie below 3329; all ones do not.
    with pytest.raises(DataInvalid, check=carries(code="data-invalid")):
        HpkePublicKey(b"\xff" * PUBLIC_KEY_BYTES)


def test_sealing_to_a_low_order_share_is_a_typed_refusal() -> None:
    public = HpkePublicKey(HpkePrivateKey(Secret(SEED)).public.raw[:1184] + bytes(32))
    with pytest.raises(DataInvalid):
        public.seal(b"data key", info=b"")


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_seed_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(DataInvalid, check=carries(expected="32")):
        HpkePrivateKey(Secret(bytes(length)))


def test_a_refusal_does_not_show_the_plaintext_or_the_seed() -> None:
    private = HpkePrivateKey(Secret(SEED))
    message = private.public.seal(b"secret-data-key", info=b"")
    with pytest.raises(WrongKey) as caught:
        private.open(message[:-1] + bytes([message[-1] ^ 1]), info=b"")
    shown = f"{caught.value!r} {caught.value.to_dict()}"
    assert "secret-data-key" not in shown
    assert SEED.hex() not in shown
