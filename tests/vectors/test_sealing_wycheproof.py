"""All Wycheproof vectors of C2SP chunked-encryption through our own chunk core, both suites."""

from __future__ import annotations

import hashlib
import io
import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from sealtrain.sealing.chunked import (
    CHUNK_BYTES,
    HEADER_BYTES,
    SALT_BYTES,
    ChunkCipher,
    PayloadShape,
    size_sealed,
)
from sealtrain.sealing.chunkreader import ChunkReader, Ciphertext
from sealtrain.sealing.errors import SealRefused, WrongKey

SIZES = (128, 256)
EXPECTED_COUNT = 35


def load(shared: Path, bits: int) -> list[dict[str, Any]]:
    folder = shared / "vectors" / "wycheproof" / "testvectors_v1"
    document = json.loads(
        (folder / f"c2sp_chunked_encryption_aes_{bits}_gcm_test.json").read_text()
    )
    return [test for group in document["testGroups"] for test in group["tests"]]


def reader_of(test: dict[str, Any], bits: int) -> ChunkReader:
    key, context = bytes.fromhex(test["key"]), bytes.fromhex(test["ctx"])
    if len(key) * 8 != bits:
        # The suite is fixed by the caller; a key of the other length is refused by the cipher.
        ChunkCipher(key, bytes(SALT_BYTES), context)
        raise WrongKey("key of another suite")
    sealed = zlib.decompress(bytes.fromhex(test["ct"]))
    source = Ciphertext(io.BytesIO(sealed))
    cipher = ChunkCipher.opening(key, sealed[:HEADER_BYTES], context)
    return ChunkReader(source, 0, PayloadShape(len(sealed)), cipher)


def read_prefix(reader: ChunkReader) -> tuple[bytes, SealRefused | None]:
    """Everything readable chunk by chunk from the start, and what stopped it."""
    out = b""
    for start in range(0, max(reader.shape.plain_size, 1), CHUNK_BYTES):
        chunk = bytearray(min(CHUNK_BYTES, reader.shape.plain_size - start))
        try:
            if chunk:
                reader.read_into(start, memoryview(chunk))
            if start + CHUNK_BYTES >= reader.shape.plain_size:
                reader.authenticate_length()
        except SealRefused as refusal:
            return out, refusal
        out += chunk
    return out, None


@pytest.mark.parametrize("bits", SIZES)
def test_the_file_holds_the_vectors_we_know_of(shared: Path, bits: int) -> None:
    assert len(load(shared, bits)) == EXPECTED_COUNT


@pytest.mark.parametrize("bits", SIZES)
@pytest.mark.parametrize("number", range(EXPECTED_COUNT))
def test_vector(shared: Path, bits: int, number: int) -> None:
    test = load(shared, bits)[number]
    if test["result"] == "valid":
        message, refusal = read_prefix(reader_of(test, bits))
        assert refusal is None
        assert len(message) == test["msgLength"]
        assert hashlib.sha512(message).hexdigest() == test["msgSha512"]
        whole = bytearray(test["msgLength"])
        reader_of(test, bits).read_into(0, memoryview(whole))
        assert whole == message
        assert reseal(test, message) == zlib.decompress(bytes.fromhex(test["ct"]))
        return
    try:
        reader = reader_of(test, bits)
    except SealRefused:
        # Our reader fixes the payload's shape before any chunk, so a bad length ends here too.
        assert {"HeaderFailure", "Truncation", "TrailingData"} & set(test["flags"])
        return
    assert "HeaderFailure" not in test["flags"]
    message, refusal = read_prefix(reader)
    assert refusal is not None
    if "PartialPlaintext" in test["flags"]:
        assert len(message) <= test["msgLength"]
        if len(message) == test["msgLength"]:
            assert hashlib.sha512(message).hexdigest() == test["msgSha512"]
    else:
        assert message == b""
    again, refusal_again = read_prefix(reader)
    assert again == message
    assert refusal_again is not None


@pytest.mark.parametrize("bits", SIZES)
def test_the_length_is_proven_by_the_final_chunk_only(shared: Path, bits: int) -> None:
    proven, refused = 0, 0
    for test in load(shared, bits):
        may_succeed = test["result"] == "valid" or "ValidFinalChunk" in test["flags"]
        try:
            size = reader_of(test, bits).authenticate_length()
        except SealRefused:
            assert not may_succeed
            refused += 1
            continue
        assert may_succeed
        if test["result"] == "valid":
            assert size == test["msgLength"]
        proven += 1
    assert proven + refused == EXPECTED_COUNT
    assert proven >= 10


def reseal(test: dict[str, Any], message: bytes) -> bytes:
    """Encrypt again under the vector's key, context and salt."""
    salt = zlib.decompress(bytes.fromhex(test["ct"]))[:SALT_BYTES]
    cipher = ChunkCipher(bytes.fromhex(test["key"]), salt, bytes.fromhex(test["ctx"]))
    out = bytearray(size_sealed(len(message)))
    out[:HEADER_BYTES] = cipher.header
    at = HEADER_BYTES
    for index in range(len(message) // CHUNK_BYTES + 1):
        chunk = memoryview(message)[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES]
        cipher.seal(index, chunk, memoryview(out)[at : at + len(chunk) + 16])
        at += len(chunk) + 16
    return bytes(out)
