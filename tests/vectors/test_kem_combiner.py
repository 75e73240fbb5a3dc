"""The KEM that ``spec/keys.md`` §2 defines, written out, opens what ours sealed."""

from __future__ import annotations

import hashlib
import hmac

from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sealtrain.base.secret import Secret
from sealtrain.sealing.hpke import HpkePrivateKey

SEED = bytes(range(32))
SUITE = b"HPKE" + bytes.fromhex("647a00010002")
CIPHERTEXT = 1088 + 32


def extract(salt: bytes, label: bytes, ikm: bytes) -> bytes:
    return hmac.digest(salt, b"HPKE-v1" + SUITE + label + ikm, "sha256")


def expand(key: bytes, label: bytes, info: bytes, size: int) -> bytes:
    labelled = size.to_bytes(2, "big") + b"HPKE-v1" + SUITE + label + info
    return hmac.digest(key, labelled + b"\x01", "sha256")[:size]


def halves(seed: bytes) -> tuple[MLKEM768PrivateKey, X25519PrivateKey]:
    key = hmac.digest(bytes(32), seed, "sha256")
    okm = block = b""
    for counter in (1, 2, 3):
        block = hmac.digest(key, block + b"sealtrain/hpke-key/v1" + bytes([counter]), "sha256")
        okm += block
    private = X25519PrivateKey.from_private_bytes(okm[64:96])
    return MLKEM768PrivateKey.from_seed_bytes(okm[:64]), private


def shared(seed: bytes, encapsulated: bytes) -> bytes:
    mlkem, x25519 = halves(seed)
    first, second = encapsulated[:1088], encapsulated[1088:]
    secret = x25519.exchange(X25519PublicKey.from_public_bytes(second))
    own = x25519.public_key().public_bytes_raw()
    return hashlib.sha3_256(mlkem.decapsulate(first) + secret + second + own + b"\\.//^\\").digest()


def test_the_written_kem_and_schedule_open_what_was_sealed() -> None:
    key = HpkePrivateKey(Secret(SEED))
    sealed = key.public.seal(b"a data key", info=b"bound to this")
    secret = shared(SEED, sealed[:CIPHERTEXT])
    context = (
        b"\x00" + extract(b"", b"psk_id_hash", b"") + extract(b"", b"info_hash", b"bound to this")
    )
    schedule = extract(secret, b"secret", b"")
    aead, nonce = (
        expand(schedule, b"key", context, 32),
        expand(schedule, b"base_nonce", context, 12),
    )
    assert AESGCM(aead).decrypt(nonce, sealed[CIPHERTEXT:], b"") == b"a data key"
