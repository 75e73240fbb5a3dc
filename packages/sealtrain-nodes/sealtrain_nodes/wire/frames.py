"""Frames of a wire: numbered, encrypted, authenticated with what they are part of (spec §4).

    frame = head ‖ AES-256-GCM(key, nonce = number of the frame, aad = head, plaintext)
    head  = type (1) ‖ zero (3) ‖ length of the plaintext (4) ‖ form (8)

``form`` says of which operation the plaintext is a part, so ranks that disagree notice. Each
direction has a key of its own, which moves on after 2^20 frames.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from sealtrain.base.process_state import OneProcess
from sealtrain.base.secret import Secret
from sealtrain.training.errors import ChannelBroken

LABEL: Final = b"sealtrain/node-wire/v1 "
READY, DATA, END, FAILED = range(4)

FRAME_BYTES: Final = 512 << 10
"""Plaintext of a frame at most. Larger frames leave the caches, smaller ones cost more calls."""
FRAMES_PER_KEY: Final = 1 << 20
HEAD: Final = struct.Struct(">B3xI8s")
_TAG: Final = 16
OVERHEAD: Final = HEAD.size + _TAG
NO_FORM: Final = bytes(8)


def form_of(text: str) -> bytes:
    """What an operation is, in 8 bytes: both ends of a message expect the same."""
    return hashlib.sha256(LABEL + text.encode()).digest()[:8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a direction stands between two frames.

    Attributes:
        key: Of the next frame.
        number: Of the next frame under it.
    """

    key: Secret = field(repr=False)
    number: int


class _LinkDirection:
    """Key and frame number of one direction."""

    def __init__(
        self, key: Secret, *, number: int = 0, frames_per_key: int = FRAMES_PER_KEY
    ) -> None:
        self._key: Secret | None = key
        self._aead = AESGCM(key.reveal())
        self._number = number
        self._limit = frames_per_key
        self._process = OneProcess("frames of a wire")

    def handed_over(self) -> Position:
        """Where the direction stands, for the one process that goes on with it; this one forgets.

        Raises:
            ChannelBroken: The wire is closed, or was handed over.
            ForkRefused: Another process connected the wire.
        """
        self._process.require()
        if self._key is None:
            raise _refuse_closed()
        position = Position(key=self._key, number=self._number)
        self.forget()
        return position

    def _next(self) -> bytes:
        self._process.require()
        if self._key is None:
            raise _refuse_closed()
        if self._number == self._limit:
            self._key = Secret(
                HKDFExpand(hashes.SHA256(), 32, LABEL + b"ratchet").derive(self._key.reveal())
            )
            self._aead = AESGCM(self._key.reveal())
            self._number = 0
        nonce = self._number.to_bytes(12, "big")
        self._number += 1
        return nonce

    def forget(self) -> None:
        """Drop the key: nothing is sealed or opened any more."""
        self._key = None
        self._aead = AESGCM(bytes(32))


class Sealer(_LinkDirection):
    """Makes the frames of the direction that this end sends in."""

    def seal(self, kind: int, form: bytes, plain: memoryview, target: memoryview) -> int:
        """Write a frame.

        Args:
            kind: Type of the frame.
            form: What it is part of, 8 bytes.
            plain: At most ``FRAME_BYTES``.
            target: Room for the plaintext and ``OVERHEAD`` bytes.

        Returns:
            How long the frame is.

        Raises:
            ChannelBroken: The wire is closed.
            ForkRefused: Another process connected the wire.
        """
        size = len(plain)
        nonce = self._next()
        HEAD.pack_into(target, 0, kind, size, form)
        self._aead.encrypt_into(
            nonce, plain, target[: HEAD.size], target[HEAD.size : size + OVERHEAD]
        )
        return size + OVERHEAD


class FrameOpener(_LinkDirection):
    """Opens the frames of the direction that this end receives."""

    def open(self, frame: memoryview, target: memoryview) -> None:
        """Decrypt a frame.

        AES-GCM writes its output before it knows the tag is wrong: after a refusal ``target`` is
        garbage, and the wire is closed.

        Args:
            frame: Head, ciphertext and tag.
            target: As long as the plaintext.

        Raises:
            ChannelBroken: It is not the next frame of this direction, or was altered.
        """
        nonce = self._next()
        try:
            self._aead.decrypt_into(nonce, frame[HEAD.size :], frame[: HEAD.size], target)
        except InvalidTag as error:
            raise ChannelBroken(
                "a frame does not open: it was altered, repeated, moved or left out",
                check="frame",
                hint="start the run again from its last checkpoint",
            ) from error


def _refuse_closed() -> ChannelBroken:
    return ChannelBroken("the wire is closed", check="wire", hint="connect again")
