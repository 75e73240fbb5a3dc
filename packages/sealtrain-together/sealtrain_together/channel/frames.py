"""Frames of a channel: numbered, encrypted, in order, under keys that only move forward.

Contract (spec/attested-channel.md §3): bytes of a message are handed out when the whole message
opened; after the first frame that does not open nothing is sent or received any more.
"""

from __future__ import annotations

import io
import struct
import threading
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from sealtrain.base.process_state import OneProcess
from sealtrain.base.secret import Secret
from sealtrain.errors import LimitExceeded
from sealtrain.training.errors import ChannelBroken, PeerUnreachable
from sealtrain_together.channel.streams import (
    Buffer,
    Stream,
    receive_exactly,
    receive_into,
    send_all,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

LABEL = b"sealtrain/attested-channel/v1 "
MAX_PLAINTEXT = 1 << 20
END, PART, WHOLE, RATCHET, READY = range(5)

_TAG = 16
_HEAD = struct.Struct(">BI")
_MAX_FRAMES = 1 << 32
_SMALL = 1 << 12


def derive_next(key: Secret, info: bytes) -> Secret:
    """The key that follows from one of a channel's, for one use."""
    return Secret(HKDFExpand(hashes.SHA256(), 32, LABEL + info).derive(key.reveal()))


class _Direction:
    """Key and frame number of one direction; the key is forgotten with each step forward."""

    def __init__(self, key: Secret, number: int = 0) -> None:
        self._key: Secret | None = key
        self._aead = AESGCM(key.reveal())
        self._number = number
        self._process = OneProcess("frames of a channel")

    def next(self) -> tuple[AESGCM, bytes]:
        self._process.require()
        if self._key is None:
            raise ChannelBroken("the channel is closed", check="channel", hint="open a new one")
        if self._number >= _MAX_FRAMES:
            raise ChannelBroken(
                "a key of the channel has served its time",
                check="records",
                got=self._number,
                expected=f"at most {_MAX_FRAMES}",
                hint="ratchet before",
            )
        nonce = self._number.to_bytes(12, "big")
        self._number += 1
        return self._aead, nonce

    def ratchet(self) -> None:
        self._process.require()
        if self._key is None:
            raise ChannelBroken("the channel is closed", check="channel", hint="open a new one")
        self._key = derive_next(self._key, b"ratchet")
        self._aead = AESGCM(self._key.reveal())
        self._number = 0

    def forget(self) -> None:
        self._key = None
        self._aead = AESGCM(bytes(32))

    @property
    def open(self) -> bool:
        return self._key is not None and self._process.here

    def require(self) -> None:
        self._process.require()


class FrameWriter:
    """Sends messages in one direction. Thread-safe: messages do not mix."""

    def __init__(self, sock: Stream, key: Secret) -> None:
        self._socket = sock
        self._direction = _Direction(key)
        self._lock = threading.Lock()
        self._sealed = memoryview(bytearray(_SMALL))

    def send(self, message: Buffer) -> None:
        """Send one message of any length, the empty one included.

        Raises:
            ChannelBroken: The channel is closed.
            ForkRefused: Another process opened the channel.
            PeerUnreachable: The other side does not take it.
        """
        self._direction.require()
        view = memoryview(message).cast("B")
        with self._lock:
            starts = range(0, max(len(view), 1), MAX_PLAINTEXT)
            for start in starts:
                part = view[start : start + MAX_PLAINTEXT]
                self._write_frame(WHOLE if start == starts[-1] else PART, part)

    def control(self, kind: int) -> None:
        """Send an empty frame of a type that carries no message.

        Raises:
            ChannelBroken, ForkRefused, PeerUnreachable: As ``send``.
        """
        self._direction.require()
        with self._lock:
            self._write_frame(kind, b"")
            if kind == RATCHET:
                self._direction.ratchet()
            elif kind == END:
                self._direction.forget()

    @property
    def open(self) -> bool:
        """Whether anything can still be sent, by this process."""
        return self._direction.open

    def forget(self) -> None:
        """Forget the key: nothing can be sent any more."""
        self._direction.forget()

    def _write_frame(self, kind: int, plaintext: Buffer) -> None:
        aead, nonce = self._direction.next()
        size = len(plaintext) + _TAG
        self._sealed = _roomy(self._sealed, _HEAD.size + size)
        _HEAD.pack_into(self._sealed, 0, kind, size)
        frame = self._sealed[: _HEAD.size + size]
        aead.encrypt_into(nonce, plaintext, bytes(frame[: _HEAD.size]), frame[_HEAD.size :])
        try:
            send_all(self._socket, frame)
        except PeerUnreachable:
            self._direction.forget()  # half a frame may be out: nothing can follow it
            raise


class FrameReader:
    """Receives messages of one direction. Of one thread.

    Args:
        sock: The connection.
        key: Of the direction.
        number: Of the next frame: how many another process of this end received before.
    """

    def __init__(self, sock: Stream, key: Secret, *, number: int = 0) -> None:
        self._socket = sock
        self._direction = _Direction(key, number)
        self._sealed = memoryview(bytearray(_SMALL))
        self._plain = memoryview(bytearray(_SMALL))

    def receive(self, *, max_bytes: int) -> bytes | None:
        """The next message; ``None`` when the other side ended the conversation.

        Args:
            max_bytes: Longest accepted message.

        Raises:
            ChannelBroken: A frame is not what was sent, in its place.
            LimitExceeded: The message is longer.
            PeerUnreachable: Nothing arrives in time.
        """
        message, more, size = b"", io.BytesIO(), 0
        for part, _last in self._parts(max_bytes):
            size += len(part)
            # Most messages are one frame: copied once then. Longer ones grow in a buffer that
            # becomes the message itself.
            if size == len(part):
                message = bytes(part)
                continue
            if message:
                more.write(message)
                message = b""
            more.write(part)
        if not self._direction.open:
            return None
        return message or more.getvalue()

    def receive_into(self, target: memoryview) -> int | None:
        """The length of the next message, decrypted into ``target``; ``None`` as ``receive``.

        ``target`` may hold a part of a message that breaks off: use it only after the return.

        Raises:
            ChannelBroken: As ``receive``.
            LimitExceeded: The message is longer than ``target``.
            PeerUnreachable: As ``receive``.
        """
        done = 0
        for part, _last in self._parts(len(target)):
            target[done : done + len(part)] = part
            done += len(part)
        return done if self._direction.open else None

    def receive_view(self, *, max_bytes: int) -> memoryview | None:
        """As ``receive``, without a copy where the message is one frame.

        What is returned holds until the next message is received, or ``wipe``.
        """
        view, before = memoryview(b""), list[bytes]()
        for part, last in self._parts(max_bytes):
            if not last:
                before.append(bytes(part))
            else:
                view = memoryview(b"".join((*before, part))) if before else part
        return view if self._direction.open else None

    def wipe(self) -> None:
        """Overwrite what the last frame held."""
        self._plain[:] = bytes(len(self._plain))

    def skip(self, *, max_bytes: int) -> None:
        """Receive the next message and keep nothing of it. Errors as ``receive``."""
        for _ in self._parts(max_bytes):
            pass

    def expect(self, kind: int) -> None:
        """Receive one empty frame of that type.

        Raises:
            ChannelBroken, PeerUnreachable: As ``receive``, or it is of another type.
        """
        found, part = self._write_frame()
        if found != kind or len(part):
            raise self._broken("another frame than was due", got=found, expected=kind)

    def forget(self) -> None:
        """Forget the key: nothing can be received any more."""
        self._direction.forget()

    def _parts(self, max_bytes: int) -> Iterator[tuple[memoryview, bool]]:
        """Frames of the next message, and of each whether it is the last; none at the end."""
        begun, size = False, 0
        while True:
            kind, part = self._write_frame()
            if kind in (PART, WHOLE):
                begun = True
                size += len(part)
                if size > max_bytes:
                    self._direction.forget()
                    raise LimitExceeded(
                        "a message of the channel is too long",
                        expected=f"at most {max_bytes} bytes",
                    )
                yield part, kind == WHOLE
                if kind == WHOLE:
                    return
                if not len(part):
                    raise self._broken("an empty part of a message")
            elif begun or len(part):
                raise self._broken("a frame in the middle of a message", got=kind)
            elif kind == RATCHET:
                self._direction.ratchet()
            elif kind == END:
                self._direction.forget()
                return
            else:
                raise self._broken("a frame of a type that is not due", got=kind)

    def _write_frame(self) -> tuple[int, memoryview]:
        aead, nonce = self._direction.next()
        try:
            head = receive_exactly(self._socket, _HEAD.size)
            kind, size = _HEAD.unpack(head)
            if not _TAG <= size <= MAX_PLAINTEXT + _TAG:
                raise self._broken("a frame of an impossible length", got=size)
            self._sealed = _roomy(self._sealed, size)
            sealed = self._sealed[:size]
            receive_into(self._socket, sealed)
        except (PeerUnreachable, ChannelBroken):
            self._direction.forget()
            raise
        self._plain = _roomy(self._plain, size - _TAG)
        plain = self._plain[: size - _TAG]
        try:
            aead.decrypt_into(nonce, sealed, head, plain)
        except InvalidTag:
            raise self._broken("something else than the frame that was sent next") from None
        return kind, plain

    def _broken(self, problem: str, got: object = None, expected: object = None) -> ChannelBroken:
        self._direction.forget()
        return ChannelBroken(
            f"the channel carried {problem}",
            check="record",
            got=got,
            expected=expected,
            hint="the network altered, dropped or repeated it; open a new channel",
        )


def _roomy(buffer: memoryview, size: int) -> memoryview:
    """The buffer, or a longer one: most channels never see a long frame."""
    return buffer if len(buffer) >= size else memoryview(bytearray(size))
