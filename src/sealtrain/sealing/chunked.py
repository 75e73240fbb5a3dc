"""C2SP chunked-encryption (c2sp.org/chunked-encryption), AES-GCM instances, random access.

A payload is ``salt (24) | commitment (32) | chunks``. Each chunk is AES-GCM of 16 KiB plaintext
with empty associated data; the last one is shorter, possibly empty, and its shortness marks the
end.

Checks, in order:
 1. The payload is long enough and its last chunk has a possible length (``FileTruncated``).
 2. The commitment equals the one derived from key, salt and context (``WrongKey``).
 3. Each chunk authenticates at its own position (``ChunkDamaged``); the output is wiped if not.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, NoReturn

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from sealtrain.base.process_state import OneProcess
from sealtrain.errors import LimitExceeded
from sealtrain.sealing.errors import ChunkDamaged, FileTruncated, WrongKey

if TYPE_CHECKING:
    from sealtrain.sealing.datakey import Permit

CHUNK_BYTES = 16384
TAG_BYTES = 16
SEALED_CHUNK_BYTES = CHUNK_BYTES + TAG_BYTES
SALT_BYTES = 24
COMMITMENT_BYTES = 32
HEADER_BYTES = SALT_BYTES + COMMITMENT_BYTES
NONCE_BYTES = 12
MAX_CHUNKS = 1 << 32  # 64 TiB of plaintext, far below what one AES-GCM key may carry
_PREFIX = b"c2sp.org/chunked-encryption@v1+"


class ChunkCipher:
    """AEAD key and nonce sequence of one payload; safe to use from several threads."""

    __slots__ = ("_aead", "_base", "_permit", "_process", "commitment", "salt")

    def __init__(
        self, key: bytes, salt: bytes, context: bytes, permit: Permit | None = None
    ) -> None:
        """Derive AEAD key, base nonce and commitment.

        Args:
            key: Input key, 32 bytes (AES-256) or 16 (AES-128).
            salt: 24 bytes, fresh for every payload.
            context: What the payload is bound to, any length.
            permit: Of the key, asked before each use.

        Raises:
            WrongKey: The key has another length.
        """
        if len(key) not in (16, 32):
            raise WrongKey(
                "input key has the wrong length", got=f"{len(key)} bytes", expected="16 or 32"
            )
        name = b"AEAD_AES_%d_GCM" % (len(key) * 8)
        length = len(key) + NONCE_BYTES + COMMITMENT_BYTES
        okm = HKDFExpand(hashes.SHA512(), length, _PREFIX + name + b"\0" + salt + context).derive(
            key
        )
        self._aead = AESGCM(okm[: len(key)])
        self._base = int.from_bytes(okm[len(key) : len(key) + NONCE_BYTES], "big")
        self._permit = permit
        self._process = OneProcess("a sealed file's chunks")
        self.salt = bytes(salt)
        self.commitment = okm[len(key) + NONCE_BYTES :]

    @classmethod
    def opening(
        cls, key: bytes, header: bytes, context: bytes, permit: Permit | None = None
    ) -> ChunkCipher:
        """The cipher of an existing payload, once its commitment has been checked.

        Args:
            key: Input key.
            header: The payload's first 56 bytes.
            context: As given when sealing.
            permit: Of the key, asked before each use.

        Raises:
            FileTruncated: ``header`` is shorter than 56 bytes.
            WrongKey: Another key, salt or context, or an altered header.
        """
        if len(header) != HEADER_BYTES:
            raise FileTruncated(
                "payload ends inside its header", got=f"{len(header)} bytes", expected=HEADER_BYTES
            )
        cipher = cls(key, header[:SALT_BYTES], context, permit)
        if not hmac.compare_digest(cipher.commitment, header[SALT_BYTES:]):
            raise WrongKey(
                "payload was sealed under another key or context", check="payload commitment"
            )
        return cipher

    @property
    def header(self) -> bytes:
        """Salt and commitment, the first 56 bytes of the payload."""
        return self.salt + self.commitment

    def seal(self, index: int, plain: memoryview, out: memoryview) -> None:
        """Encrypt chunk ``index``; ``out`` is 16 bytes longer than ``plain``.

        Raises:
            ForkRefused: Another process drew the salt. It opens chunks all the same.
        """
        self._process.require()
        self._ask()
        nonce = (self._base ^ index).to_bytes(NONCE_BYTES, "big")
        self._aead.encrypt_into(nonce, plain, None, out)

    def seal_run(self, index: int, plain: memoryview, out: memoryview) -> None:
        """Encrypt consecutive full chunks from ``index`` on.

        Args:
            index: Number of the first chunk.
            plain: n · 16384 bytes.
            out: n · 16400 bytes.

        Raises:
            ForkRefused: As ``seal``.
        """
        self._process.require()
        self._ask()
        base, encrypt = self._base, self._aead.encrypt_into
        position = 0
        start = 0
        for number in range(index, index + len(plain) // CHUNK_BYTES):
            encrypt(
                (base ^ number).to_bytes(NONCE_BYTES, "big"),
                plain[start : start + CHUNK_BYTES],
                None,
                out[position : position + SEALED_CHUNK_BYTES],
            )
            position += SEALED_CHUNK_BYTES
            start += CHUNK_BYTES

    def open(self, index: int, sealed: memoryview, out: memoryview) -> None:
        """Decrypt chunk ``index``; ``out`` is 16 bytes shorter than ``sealed``.

        Raises:
            ChunkDamaged: The chunk does not authenticate here; ``out`` holds zeros only.
        """
        self._ask()
        nonce = (self._base ^ index).to_bytes(NONCE_BYTES, "big")
        try:
            self._aead.decrypt_into(nonce, sealed, None, out)
        except InvalidTag:
            _wipe_and_refuse(index, out)

    def open_run(self, index: int, sealed: memoryview, out: memoryview) -> None:
        """Decrypt consecutive full chunks from ``index`` on.

        Args:
            index: Number of the first chunk.
            sealed: n · 16400 bytes.
            out: n · 16384 bytes.

        Raises:
            ChunkDamaged: As ``open``; chunks before the damaged one stay in ``out``.
        """
        self._ask()
        base, decrypt = self._base, self._aead.decrypt_into
        position = 0
        start = 0
        for number in range(index, index + len(sealed) // SEALED_CHUNK_BYTES):
            chunk = out[start : start + CHUNK_BYTES]
            try:
                decrypt(
                    (base ^ number).to_bytes(NONCE_BYTES, "big"),
                    sealed[position : position + SEALED_CHUNK_BYTES],
                    None,
                    chunk,
                )
            except InvalidTag:
                _wipe_and_refuse(number, chunk)
            position += SEALED_CHUNK_BYTES
            start += CHUNK_BYTES

    def _ask(self) -> None:
        if self._permit is not None:
            self._permit()


def chunk_span(offset: int, length: int) -> tuple[int, int]:
    """Plaintext offsets of the whole chunks that hold a range, in bytes: first, and after last."""
    return offset - offset % CHUNK_BYTES, -(-(offset + length) // CHUNK_BYTES) * CHUNK_BYTES


class PayloadShape:
    """Where the chunks of a payload of known size lie. Offsets count from the payload's start."""

    __slots__ = ("chunks", "last_sealed", "plain_size", "size")

    def __init__(self, size: int) -> None:
        """Work out the chunks of a payload.

        Args:
            size: Bytes of the whole payload, header included.

        Raises:
            FileTruncated: No payload has this size.
            LimitExceeded: More than 2**32 chunks.
        """
        body = size - HEADER_BYTES
        full, last = divmod(body, SEALED_CHUNK_BYTES)
        if body < TAG_BYTES or last < TAG_BYTES:
            raise FileTruncated(
                "payload does not end with a final chunk",
                check="payload length",
                got=f"{max(size, 0)} bytes",
                hint="the file was cut off; fetch it again from its owner",
            )
        if full >= MAX_CHUNKS:
            raise LimitExceeded("payload has too many chunks", got=full + 1, expected=MAX_CHUNKS)
        self.size = size
        self.chunks = full + 1
        self.last_sealed = last
        self.plain_size = full * CHUNK_BYTES + last - TAG_BYTES

    def sealed_span(self, first: int, stop: int) -> tuple[int, int]:
        """Offset and length in the payload of chunks ``first`` … ``stop - 1``."""
        start = HEADER_BYTES + first * SEALED_CHUNK_BYTES
        end = self.size if stop >= self.chunks else HEADER_BYTES + stop * SEALED_CHUNK_BYTES
        return start, end - start


def size_sealed(plain_size: int) -> int:
    """Bytes of the payload that holds ``plain_size`` bytes."""
    return HEADER_BYTES + plain_size + (plain_size // CHUNK_BYTES + 1) * TAG_BYTES


def _wipe_and_refuse(index: int, out: memoryview) -> NoReturn:
    # AES-GCM writes its output before it knows the tag is wrong.
    out[:] = bytes(len(out))
    raise ChunkDamaged(
        f"chunk {index} does not authenticate",
        check="chunk tag",
        hint="the file was altered or its parts were moved; fetch it again from its owner",
    ) from None
