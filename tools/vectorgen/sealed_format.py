"""The format of spec/sealed-file.md written out once more, for generators only.

Independent of sealtrain: ``cryptography``, ``hashlib`` and ``blake3`` alone.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from typing import Any

from blake3 import blake3
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

CHUNK, GROUP = 16384, 64
DATASET, OWNER = "d1" * 16, "0a" * 32


def seed(label: str, size: int = 32) -> bytes:
    """Bytes that follow from the label."""
    return hashlib.shake_256(b"sealtrain sealed-file vectors " + label.encode()).digest(size)


def sha(data: bytes) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()


def canonical(value: Any) -> bytes:
    """RFC 8785 for the ASCII keys and small integers used here."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def derive(key: bytes, purpose: str, *parts: str) -> bytes:
    """Section 2."""
    texts = [f"sealtrain/{purpose}/v1".encode(), *(part.encode() for part in parts)]
    info = b"".join(len(text).to_bytes(4, "big") + text for text in texts)
    return HKDFExpand(hashes.SHA256(), 32, info).derive(key)


def hash_of(suite: int, data: bytes) -> bytes:
    """H of the suite."""
    digest: bytes = blake3(data).digest() if suite == 1 else hashlib.sha256(data).digest()
    return digest


def top(hasher: Callable[[bytes], bytes], leaves: list[bytes]) -> bytes:
    """RFC 9162 tree head, written recursively."""
    if len(leaves) == 1:
        return leaves[0]
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    return hasher(b"\x01" + top(hasher, leaves[:split]) + top(hasher, leaves[split:]))


def core_of(**changes: Any) -> dict[str, Any]:
    """A core with some members changed."""
    core = {
        "dataset_id": DATASET, "owner_id": OWNER, "name": "records", "shard": 0,
        "schema_digest": "", "padding": "none", "kind": "raw", "suite": 1, "binding": {},
    }  # fmt: skip
    return core | changes


def stanza(mark: str, kind: str = "owner") -> dict[str, str]:
    """A stanza of the right form that wraps nothing."""
    body = base64.b64encode(seed(f"stanza {mark}", 24)).decode()
    return {"kind": kind, "recipient": mark * 32, "body": body}


class Made:
    """A sealed file in its parts."""

    def __init__(
        self,
        content: bytes,
        *,
        key: bytes,
        core: dict[str, Any],
        stanzas: list[dict[str, str]] | None = None,
        salt: str = "salt",
        plain: bytes | None = None,
    ) -> None:
        self.core = canonical(core)
        self.suite = core["suite"]
        self.content = content
        plain = pad(core["padding"], content) if plain is None else plain
        file_key = derive(key, "sealed-file", self.core.decode())
        self.check = derive(key, "key-check")
        self.header_key = derive(file_key, "sealed-file-header")
        self.trailer_key = derive(file_key, "sealed-file-trailer")
        self.header = self.make_header(canonical(stanzas or []))
        context = b"sealtrain/sealed-file/v1:" + self.core
        self.first = seed(salt, 24)
        info = b"c2sp.org/chunked-encryption@v1+AEAD_AES_256_GCM\0" + self.first + context
        okm = HKDFExpand(hashes.SHA512(), 76, info).derive(derive(file_key, "sealed-file-payload"))
        self.aead, self.base = AESGCM(okm[:32]), int.from_bytes(okm[32:44], "big")
        self.first += okm[44:]
        self.chunks = [
            self.aead.encrypt(self.nonce(k), plain[k * CHUNK : (k + 1) * CHUNK], None)
            for k in range(len(plain) // CHUNK + 1)
        ]

    def nonce(self, k: int) -> bytes:
        """Nonce of chunk k."""
        return (self.base ^ k).to_bytes(12, "big")

    def make_header(self, stanzas: bytes) -> bytes:
        """Header with these stanza bytes and a right MAC."""
        sizes = len(self.core).to_bytes(4, "big") + len(stanzas).to_bytes(4, "big")
        body = b"SEALTRN\x01" + sizes + self.core + stanzas + self.check
        return body + hmac.digest(self.header_key, body, "sha256")

    def root(self, chunks: list[bytes] | None = None) -> bytes:
        """File root."""
        return self.root_over(self.leaves(chunks), self.payload_size(chunks))

    def leaves(self, chunks: list[bytes] | None = None) -> list[bytes]:
        """Group hashes."""
        parts = self.chunks if chunks is None else chunks
        groups = [b"".join(parts[i : i + GROUP]) for i in range(0, len(parts), GROUP)]
        return [hash_of(self.suite, b"\0" + group) for group in groups]

    def payload_size(self, chunks: list[bytes] | None = None) -> int:
        """Bytes of the payload."""
        return 56 + sum(len(chunk) for chunk in (self.chunks if chunks is None else chunks))

    def root_over(self, leaves: list[bytes], size: int) -> bytes:
        """File root over given leaves."""
        head = b"\x02sealtrain/file-root/v1" + size.to_bytes(8, "big")
        tree = top(lambda data: hash_of(self.suite, data), leaves)
        return hash_of(self.suite, head + hash_of(self.suite, self.core) + self.first + tree)

    def trailer(self, chunks: list[bytes] | None = None) -> bytes:
        """Trailer with a right MAC."""
        mac = hmac.digest(self.trailer_key, self.root(chunks), "sha256")
        size = self.payload_size(chunks).to_bytes(8, "big")
        return b"".join(self.leaves(chunks)) + size + mac + b"SEALEND\x01"

    def file(
        self,
        *,
        header: bytes | None = None,
        chunks: list[bytes] | None = None,
        trailer: bytes | None = None,
    ) -> bytes:
        """The file, with parts replaced."""
        return (
            (self.header if header is None else header)
            + self.first
            + b"".join(self.chunks if chunks is None else chunks)
            + (self.trailer() if trailer is None else trailer)
        )


def pad_content(policy: str, content: int) -> int:
    """Section 6."""
    if policy == "none":
        return content
    size = content + 8
    step = int(policy.removeprefix("fixed:")) if policy != "bucket" else 1
    if policy == "bucket":
        e = size.bit_length() - 1
        step = 2 ** max(e - (e.bit_length() if e else 0), 0)
    return (size + step - 1) // step * step


def pad(policy: str, content: bytes) -> bytes:
    """Plaintext of the payload."""
    if policy == "none":
        return content
    zeros = pad_content(policy, len(content)) - len(content) - 8
    return content + bytes(zeros) + len(content).to_bytes(8, "big")


def flip(data: bytes, place: int) -> bytes:
    """One bit changed."""
    changed = bytearray(data)
    changed[place] ^= 0x01
    return bytes(changed)
