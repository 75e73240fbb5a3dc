"""A channel between two parties that proved themselves: messages in, messages out, or nothing.

    channel = connect(address, conversation, timeout=10.0)
    channel.send(b"...")
    answer = channel.receive(max_bytes=1 << 20)

Made by ``connect`` and ``accept`` only, so an object of this class is proof that both proofs held.
One process may prove and be proven to (``reach``) and another of the same guest speak
(``go_on``): the first hands over the connection and the keys, and keeps neither.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from types import TracebackType
from typing import Final, Self

from sealtrain.base.canonical import JsonValue
from sealtrain.base.process_state import OneProcess
from sealtrain.base.secret import Secret
from sealtrain.training.errors import ChannelBroken, ChannelCut, PeerUnreachable
from sealtrain_together.channel.frames import (
    END,
    RATCHET,
    READY,
    FrameReader,
    FrameWriter,
    derive_next,
)
from sealtrain_together.channel.handshake import ChannelKeys, ChannelTerms, initiate, respond
from sealtrain_together.channel.ports import Caller
from sealtrain_together.channel.proofs import Peer
from sealtrain_together.channel.streams import Address, Buffer, Stream, Timed, dial, prepare

HANDSHAKE_SECONDS: Final = 120.0
"""Longest handshake of a caller: time for both sides' evidence."""
_READY_FRAMES: Final = 1
"""Frames of the responder that belong to the handshake."""


class AttestedChannel:
    """One conversation. Sending is thread-safe; one thread receives."""

    def __init__(
        self, sock: Stream, *, sends: FrameWriter, receives: FrameReader, keys: ChannelKeys
    ) -> None:
        self._socket = sock
        self._sends = sends
        self._receives = receives
        self._process = OneProcess("the secret of a channel")
        self._export: Secret | None = keys.export
        self.peer: Peer = keys.peer
        """The peer."""
        self.context: dict[str, JsonValue] = keys.context
        """The context that the initiator sent; both proofs cover it."""

    def send(self, message: Buffer) -> None:
        """Send one message of any length.

        Raises:
            ChannelBroken: The channel is closed.
            ForkRefused: Another process opened the channel.
            PeerUnreachable: The other side does not take it in time.
        """
        self._sends.send(message)

    def receive(self, *, max_bytes: int) -> bytes | None:
        """The next message, ``None`` when the other side said that it ends here.

        Raises:
            ChannelBroken: Something was altered, dropped, repeated or cut off.
            LimitExceeded: The message is longer than ``max_bytes``.
            PeerUnreachable: Nothing arrives in time.
        """
        return self._receives.receive(max_bytes=max_bytes)

    def expect(self, *, max_bytes: int) -> bytes:
        """As ``receive``, where a message has to come: an end in its place is ``ChannelCut``."""
        message = self.receive(max_bytes=max_bytes)
        if message is None:
            raise _make_cut_error()
        return message

    def skip(self, *, max_bytes: int) -> None:
        """Receive the next message and keep nothing of it. Arguments and errors as ``receive``."""
        self._receives.skip(max_bytes=max_bytes)

    def receive_into(self, target: memoryview) -> int:
        """As ``expect``, into ``target``; returns the length."""
        length = self._receives.receive_into(target)
        if length is None:
            raise _make_cut_error()
        return length

    def export(self, label: str) -> Secret:
        """A secret that both ends have, that no message carries and neither end chose (spec §2).

        Args:
            label: What it is for; the same at both ends.

        Returns:
            32 bytes, another for every channel. A channel gives one, once.

        Raises:
            ChannelBroken: It was given, or the channel is closed.
            ForkRefused: Another process opened the channel.
        """
        self._process.require()
        key, self._export = self._export, None
        if key is None:
            raise ChannelBroken(
                "a channel gives one secret to its application",
                check="channel",
                hint="open a new channel",
            )
        return derive_next(key, f"export {label}".encode())

    def ratchet(self) -> None:
        """Move this direction's key on: the new key opens nothing that was sent before."""
        self._sends.control(RATCHET)

    def cut(self) -> None:
        """End the connection for a thread that waits on it; that thread gets ``ChannelCut``."""
        if isinstance(self._socket, socket.socket):
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Say that nothing follows, forget the keys and close the connection."""
        if self._sends.open:
            with contextlib.suppress(PeerUnreachable):
                self._sends.control(END)
        self._export = None
        self._sends.forget()
        self._receives.forget()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            # A sender that fails in the middle must not tell its peer that all was said.
            self._sends.forget()
        self.close()


def _make_cut_error() -> ChannelCut:
    return ChannelCut("the peer ended the conversation", check="channel")


def connect(address: Address, conversation: ChannelTerms, *, timeout: float) -> AttestedChannel:
    """Open a channel to a listening party.

    Args:
        address: Host and port.
        conversation: What both sides agree on, and how they prove themselves.
        timeout: Seconds to connect and between bytes.

    Raises:
        PeerUnreachable: No peer answers there.
        Refused: The other side's proof does not hold, or it refused ours (``ChannelBroken``).
    """
    return open_over(dial(address, timeout=timeout), conversation)


def open_over(stream: Stream, conversation: ChannelTerms) -> AttestedChannel:
    """Open a channel over a connection that is there. Errors as ``connect``."""
    with _close_on_error(stream):
        return go_on(stream, _agree_keys(stream, conversation))


def reach(
    address: Address, conversation: ChannelTerms, *, timeout: float
) -> tuple[socket.socket, ChannelKeys]:
    """Open a channel on which another process of this guest goes on. Arguments as ``connect``.

    A peer that proves nothing is left after ``HANDSHAKE_SECONDS``, however slowly it speaks.

    Returns:
        The connection, and what ``go_on`` needs. Neither was used beyond the handshake.

    Raises:
        PeerUnreachable, Refused: As ``connect``.
    """
    sock = dial(address, timeout=timeout)
    with _close_on_error(sock):
        keys = _agree_keys(Timed(sock, HANDSHAKE_SECONDS, pause=timeout), conversation)
        sock.settimeout(timeout)
        return sock, keys


def go_on(stream: Stream, keys: ChannelKeys) -> AttestedChannel:
    """The channel of an initiator whose handshake is complete (``reach``).

    Args:
        stream: The connection.
        keys: Of the handshake, for one channel only: frames are numbered from here on.
    """
    reader = FrameReader(stream, keys.responder, number=_READY_FRAMES)
    return _channel(stream, keys, FrameWriter(stream, keys.initiator), reader)


def _agree_keys(stream: Stream, conversation: ChannelTerms) -> ChannelKeys:
    keys = initiate(stream, conversation)
    FrameReader(stream, keys.responder).expect(READY)  # (6)
    return keys


def accept(sock: socket.socket, conversation: ChannelTerms, *, timeout: float) -> AttestedChannel:
    """Answer a party that connected. Arguments and errors as ``connect``.

    A caller that proves nothing is left after ``HANDSHAKE_SECONDS``, however slowly it speaks.
    """
    with _close_on_error(sock):
        prepare(sock, timeout)
        keys = respond(Timed(sock, HANDSHAKE_SECONDS, pause=timeout), conversation)
        if isinstance(sock, Caller):
            sock.mark_proven()
        sock.settimeout(timeout)
        return _answering(sock, keys)


def accept_over(stream: Stream, conversation: ChannelTerms) -> AttestedChannel:
    """Answer a party at the other end of a connection. Errors as ``connect``."""
    with _close_on_error(stream):
        return _answering(stream, respond(stream, conversation))


def _answering(stream: Stream, keys: ChannelKeys) -> AttestedChannel:
    writer = FrameWriter(stream, keys.responder)
    writer.control(READY)
    return _channel(stream, keys, writer, FrameReader(stream, keys.initiator))


def _channel(
    sock: Stream, keys: ChannelKeys, sends: FrameWriter, receives: FrameReader
) -> AttestedChannel:
    return AttestedChannel(sock, sends=sends, receives=receives, keys=keys)


@contextlib.contextmanager
def _close_on_error(sock: Stream) -> Iterator[None]:
    try:
        yield
    except BaseException:
        sock.close()
        raise
