"""Signed notes (C2SP signed-note v1.0.0): text, a blank line, signature lines.

``— name base64(key id ‖ signature)``; the key id of an Ed25519 key is
``SHA-256(name ‖ 0x0A ‖ 0x01 ‖ public key)[:4]``. A note is read strictly: UTF-8 without control
characters, canonical base64, at most 64 signature lines. ``verify`` then demands

1. a signature line with the expected name and key id,
2. no second one by the same key, and
3. that its signature over the text verifies.

Lines by other keys are kept as they are and mean nothing until a reader who knows their keys
verifies them: that is how witnesses add cosignatures to a tree head.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Self

from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.errors import DataInvalid, SignatureInvalid
from sealtrain.signing.ed25519 import Ed25519Signer, verify_signature

MAX_NOTE_BYTES = 512 << 10
MAX_SIGNATURE_LINES = 64
_ED25519 = b"\x01"
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f]")
_NAME = re.compile(r"[^\s+]{1,256}")
_DASH = "\u2014"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteSignature:
    """One signature line."""

    name: str
    key_id: bytes
    """4 bytes."""
    signature: bytes
    """64 bytes for Ed25519; other kinds of key have other lengths."""

    def to_line(self) -> str:
        """The line, with its newline."""
        return f"{_DASH} {self.name} {to_base64(self.key_id + self.signature)}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedNote:
    """A text that ends in a newline, and its signature lines in their order."""

    text: str
    signatures: tuple[NoteSignature, ...]

    def to_text(self) -> str:
        """The whole note."""
        return self.text + "\n" + "".join(line.to_line() for line in self.signatures)

    @classmethod
    def from_text(cls, note: str) -> Self:
        """Parse a note; nothing is verified yet.

        Raises:
            SignatureInvalid: Not a signed note, or too long.
        """
        try:
            size = len(note.encode("utf-8"))
        except UnicodeEncodeError as error:
            raise _refuse_malformed("it is not UTF-8") from error
        if size > MAX_NOTE_BYTES:
            raise _refuse_malformed(f"it is longer than {MAX_NOTE_BYTES} bytes")
        if _CONTROL.search(note):
            raise _refuse_malformed("it holds a control character")
        text, blank, lines = note.rpartition("\n\n")
        if not blank or not text or not lines.endswith("\n"):
            raise _refuse_malformed("text, blank line and signature lines are not all there")
        rows = lines[:-1].split("\n")
        if len(rows) > MAX_SIGNATURE_LINES:
            raise _refuse_malformed(f"it has more than {MAX_SIGNATURE_LINES} signatures")
        return cls(text=text + "\n", signatures=tuple(_signature(row) for row in rows))

    def with_signature(self, signature: NoteSignature) -> Self:
        """A copy with one more signature line."""
        return type(self)(text=self.text, signatures=(*self.signatures, signature))


def note_key_id(name: str, public: bytes) -> bytes:
    """Key id of an Ed25519 key under ``name``, 4 bytes.

    Args:
        name: Key name: not empty, no space, no plus sign.
        public: 32-byte public key.
    """
    return hashlib.sha256(name.encode("utf-8") + b"\n" + _ED25519 + public).digest()[:4]


def sign(text: str, name: str, signer: Ed25519Signer) -> SignedNote:
    """Sign ``text``.

    Raises:
        ValueError: The text does not end in a newline, or the name or text cannot be in a note.
    """
    if not text.endswith("\n") or _CONTROL.search(text) or not _NAME.fullmatch(name):
        raise ValueError("a note's text ends in a newline and its key name has no space or plus")
    signature = NoteSignature(
        name=name,
        key_id=note_key_id(name, signer.public),
        signature=signer.sign(text.encode("utf-8")),
    )
    return SignedNote(text=text, signatures=(signature,))


def verify(note: SignedNote, name: str, public: bytes) -> str:
    """Return the text when the module's checks hold.

    Args:
        note: As parsed.
        name: Name of the trusted key.
        public: The trusted 32-byte Ed25519 key.

    Raises:
        SignatureInvalid: A check fails.
    """
    wanted = note_key_id(name, public)
    lines = [
        signature
        for signature in note.signatures
        if (signature.name, signature.key_id) == (name, wanted)
    ]
    if len(lines) != 1:
        raise SignatureInvalid(
            "note is not signed by the expected key" if not lines else "a key signed a note twice",
            check="note signer",
            got=", ".join(
                f"{signature.name}+{signature.key_id.hex()}" for signature in note.signatures
            ),
            expected=f"{name}+{wanted.hex()}",
            hint="it belongs to another log, or its key is not the one you pinned",
        )
    verify_signature(public, lines[0].signature, note.text.encode("utf-8"))
    return note.text


def _signature(row: str) -> NoteSignature:
    parts = row.split(" ")
    if len(parts) != 3 or parts[0] != _DASH or not _NAME.fullmatch(parts[1]):
        raise _refuse_malformed("a signature line is not '— name base64'")
    try:
        data = from_base64(parts[2])
    except DataInvalid as error:
        raise _refuse_malformed(f"a signature line: {error}") from error
    if len(data) < 5:
        raise _refuse_malformed("a signature line is too short")
    return NoteSignature(name=parts[1], key_id=data[:4], signature=data[4:])


def _refuse_malformed(why: str) -> SignatureInvalid:
    return SignatureInvalid(f"not a signed note: {why}", check="note")
