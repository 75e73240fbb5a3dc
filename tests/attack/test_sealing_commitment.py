"""One ciphertext, two keys: an owner who shows an auditor one dataset and trains on another."""

from __future__ import annotations

import io

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sealing_world import KEY, content, context, opened, sealed

from sealtrain.sealing.chunked import HEADER_BYTES, ChunkCipher, PayloadShape
from sealtrain.sealing.chunkreader import ChunkReader, Ciphertext
from sealtrain.sealing.errors import RootMismatch, SealRefused, WrongKey
from sealtrain.sealing.header import FileKeys, encode_header
from sealtrain.sealing.writer import PAYLOAD_CONTEXT

pytestmark = pytest.mark.claim("C1")

SALT = bytes(24)


def gf_mul(x: int, y: int) -> int:
    """Product in GF(2^128) with GCM's bit order."""
    z = 0
    for i in range(127, -1, -1):
        if (y >> i) & 1:
            z ^= x
        x = (x >> 1) ^ (0xE1 << 120 if x & 1 else 0)
    return z


def gf_inverse(x: int) -> int:
    result, power = 1 << 127, x
    for bit in range(128):
        if bit:
            result = gf_mul(result, power)
        power = gf_mul(power, power)
    return result


def ecb(key: bytes, block: bytes) -> bytes:
    encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305 - one block of GCM
    return encryptor.update(block) + encryptor.finalize()


def two_key_ciphertext(keys: list[bytes], nonces: list[bytes], first_block: bytes) -> bytes:
    """A GCM ciphertext of two blocks and tag that authenticates under both keys and nonces."""
    counter = (1).to_bytes(4, "big")
    h = [int.from_bytes(ecb(key, bytes(16)), "big") for key in keys]
    mask = [
        int.from_bytes(ecb(key, nonce + counter), "big")
        for key, nonce in zip(keys, nonces, strict=True)
    ]
    c1 = int.from_bytes(first_block, "big")
    length = 256  # bits of ciphertext; no associated data
    # tag_k = c1·h³ + c2·h² + length·h + mask; equate both and solve for c2.
    square = [gf_mul(x, x) for x in h]
    cube = [gf_mul(s, x) for s, x in zip(square, h, strict=True)]
    right = 0
    for k in range(2):
        right ^= gf_mul(c1, cube[k]) ^ gf_mul(length, h[k]) ^ mask[k]
    c2 = gf_mul(right, gf_inverse(square[0] ^ square[1]))
    tag = gf_mul(c1, cube[0]) ^ gf_mul(c2, square[0]) ^ gf_mul(length, h[0]) ^ mask[0]
    return b"".join(value.to_bytes(16, "big") for value in (c1, c2, tag))


def raw_key(cipher_key: bytes, context_bytes: bytes) -> tuple[bytes, bytes]:
    """AEAD key and first nonce as C2SP derives them, recomputed here."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

    info = b"c2sp.org/chunked-encryption@v1+AEAD_AES_256_GCM\0" + SALT + context_bytes
    okm = HKDFExpand(hashes.SHA512(), 76, info).derive(cipher_key)
    return okm[:32], okm[32:44]


def test_a_ciphertext_valid_under_two_keys_opens_under_one() -> None:
    input_keys = [b"A" * 32, b"B" * 32]
    raw = [raw_key(key, b"context") for key in input_keys]
    chunk = two_key_ciphertext([r[0] for r in raw], [r[1] for r in raw], b"invisible salam.")
    plains = [AESGCM(key).decrypt(nonce, chunk, None) for key, nonce in raw]
    assert plains[0] != plains[1]  # the attack on plain GCM works
    honest = ChunkCipher(input_keys[0], SALT, b"context")
    payload = honest.header + chunk
    cipher = ChunkCipher.opening(input_keys[0], payload[:HEADER_BYTES], b"context")
    out = bytearray(32)
    ChunkReader(Ciphertext(io.BytesIO(payload)), 0, PayloadShape(len(payload)), cipher).read_into(
        0, memoryview(out)
    )
    assert out == plains[0]
    with pytest.raises(WrongKey):
        ChunkCipher.opening(input_keys[1], payload[:HEADER_BYTES], b"context")


def test_a_header_for_another_key_on_the_same_payload_does_not_open() -> None:
    file = sealed(content(1000))
    header = opened(file).header
    other = type(KEY)(b"Z" * 32)
    forged = encode_header(header.core, (), FileKeys(other, header.core)) + file[header.size :]
    with pytest.raises(SealRefused):
        opened(forged, key=other)


def test_an_owner_cannot_swap_ciphertext_under_a_signed_root() -> None:
    """The owner knows the key, so tags prove nothing; the group hash does."""
    data = content(100_000)
    file = bytearray(sealed(data))
    root = opened(bytes(file)).root
    header = opened(bytes(file)).header
    keys = FileKeys(KEY, header.core)
    start = header.size
    cipher = ChunkCipher.opening(
        keys.payload.reveal(),
        bytes(file[start : start + HEADER_BYTES]),
        PAYLOAD_CONTEXT + header.core,
    )
    place = start + HEADER_BYTES
    other = memoryview(content(16384, "the other dataset"))
    cipher.seal(0, other, memoryview(file)[place : place + 16400])
    swapped = bytes(file)
    assert opened(swapped).read(16384) == other  # every tag and MAC is right
    with pytest.raises(RootMismatch):
        opened(swapped, root=root, expect=context()).read(16384)
