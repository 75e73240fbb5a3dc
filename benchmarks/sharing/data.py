"""Data sharing: holders send their tokens through TLS 1.3, or an attested channel, to the model.

One session for each holder for the whole run. A request is ``offset ‖ size`` (8 bytes each, big
endian), the answer the bytes and nothing else; requests may be sent ahead, answers come in their
order. Where the accelerator has a bus of its own behind the machine that the sessions end in,
``relay`` carries each chunk on over it (an attested channel stands for the bus, as it does for the
travelling accelerator's).
"""

from __future__ import annotations

import ssl
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING

from sealtrain.errors import DataInvalid
from sealtrain.training.errors import ChannelRefused
from sealtrain_together.channel.streams import (
    Address,
    Stream,
    dial,
    prepare,
    receive_exactly,
    receive_into,
    send_all,
)

if TYPE_CHECKING:
    import socket

    from sealtrain_together.channel.channel import AttestedChannel
    from sealtrain_together.travelling.holder import TokenSource
    from sealtrain_together.travelling.schedule import Trip

_ASKED = struct.Struct(">QQ")
_PART = 1 << 20
_MESSAGE = 1 << 18
_MAX_ASKED_BYTES = 256


def serve_data(
    sock: socket.socket, context: ssl.SSLContext, source: TokenSource, *, timeout: float
) -> None:
    """Holder: answer one session to its end.

    Args:
        sock: A connection.
        context: Whom it serves, as ``tls.server_context``.
        source: Its tokens.
        timeout: Seconds between bytes.

    Raises:
        ChannelRefused: The other side has no certificate that is known here.
        ChannelBroken, PeerUnreachable: The session broke off.
        DataInvalid: There are no such tokens.
    """
    with _secured(prepare(sock, timeout), context, server=True) as stream:
        part = memoryview(bytearray(_PART))
        while (asked := _asked(stream)) is not None:
            offset, size = asked
            for start in range(0, size, _PART):
                view = part[: min(_PART, size - start)]
                if source.read_into(offset + start, view) != len(view):
                    raise DataInvalid("the holder has no such tokens", got=offset + start)
                send_all(stream, view)


class TlsFeed:
    """Chunks straight from the holders' sessions.

    Args:
        addresses: Where each holder waits, by name.
        context: Whom it accepts, as ``tls.client_context``.
        timeout: Seconds to connect and between bytes.

    Raises:
        PeerUnreachable: A holder does not answer.
        ChannelRefused: It shows no certificate that is known here.
    """

    def __init__(
        self, addresses: Mapping[str, Address], context: ssl.SSLContext, *, timeout: float
    ) -> None:
        self._streams: dict[str, ssl.SSLSocket] = {}
        try:
            for name, address in addresses.items():
                sock = dial(address, timeout=timeout)
                self._streams[name] = _secured(sock, context, server=False)
        except BaseException:
            self.close()
            raise

    def ask(self, trip: Trip) -> None:
        """As ``Feed``."""
        self.ask_for(trip.holder, trip.offset, trip.size)

    def take(self, trip: Trip, into: memoryview) -> None:
        """As ``Feed``. Raises ``ChannelBroken``, ``PeerUnreachable``."""
        self.take_from(trip.holder, into)

    def ask_for(self, holder: str, offset: int, size: int) -> None:
        """Send for bytes of a holder's."""
        send_all(self._streams[holder], _ASKED.pack(offset, size))

    def take_from(self, holder: str, into: memoryview) -> None:
        """Receive the next bytes of a holder's."""
        receive_into(self._streams[holder], into)

    @property
    def versions(self) -> dict[str, str | None]:
        """TLS version of the session with each holder."""
        return {name: stream.version() for name, stream in self._streams.items()}

    def close(self) -> None:
        """End the sessions."""
        for stream in self._streams.values():
            stream.close()


def serve_channel(channel: AttestedChannel, source: TokenSource) -> None:
    """Holder: answer a channel to its end, in the messages of a travelling write.

    Args:
        channel: To where the chunks are wanted.
        source: Its tokens.

    Raises:
        DataInvalid: There are no such tokens.
        SealtrainError: The channel broke off.
    """
    part = memoryview(bytearray(_MESSAGE))
    while (message := channel.receive(max_bytes=_MAX_ASKED_BYTES)) is not None:
        offset, size = _ASKED.unpack(message)
        for start in range(0, size, _MESSAGE):
            view = part[: min(_MESSAGE, size - start)]
            if source.read_into(offset + start, view) != len(view):
                raise DataInvalid("the holder has no such tokens", got=offset + start)
            channel.send(view)


class ChannelFeed:
    """Chunks over an attested channel to each holder: the records of travelling, nothing else.

    Args:
        channels: To each holder, by name.
    """

    def __init__(self, channels: Mapping[str, AttestedChannel]) -> None:
        self._channels = channels

    def ask(self, trip: Trip) -> None:
        """As ``Feed``."""
        self.ask_for(trip.holder, trip.offset, trip.size)

    def take(self, trip: Trip, into: memoryview) -> None:
        """As ``Feed``. Raises ``ChannelBroken``, ``LimitExceeded``, ``PeerUnreachable``."""
        self.take_from(trip.holder, into)

    def ask_for(self, holder: str, offset: int, size: int) -> None:
        """Send for bytes of a holder's."""
        self._channels[holder].send(_ASKED.pack(offset, size))

    def take_from(self, holder: str, into: memoryview) -> None:
        """Receive the next bytes of a holder's."""
        done = 0
        while done < len(into):
            done += self._channels[holder].receive_into(into[done:])

    def close(self) -> None:
        """End the channels."""
        for channel in self._channels.values():
            channel.close()


class BusFeed:
    """Chunks over a channel from the machine that holders' sessions end in (``relay``)."""

    def __init__(self, channel: AttestedChannel) -> None:
        self._channel = channel

    def ask(self, trip: Trip) -> None:
        """As ``Feed``."""
        self._channel.send(_ASKED.pack(trip.offset, trip.size) + trip.holder.encode())

    def take(self, trip: Trip, into: memoryview) -> None:
        """As ``Feed``. Raises ``ChannelBroken``, ``LimitExceeded``, ``PeerUnreachable``."""
        done = 0
        while done < trip.size:
            done += self._channel.receive_into(into[done:])


def relay(channel: AttestedChannel, feed: TlsFeed | ChannelFeed) -> None:
    """Between holders' sessions and the bus: carry what is asked for until the channel ends.

    A part is on the bus while the next one is still on its way from the holder.

    Args:
        channel: To the accelerator.
        feed: Of the holders.

    Raises:
        SealtrainError: Either side broke off.
    """
    part = memoryview(bytearray(_PART))
    while (message := channel.receive(max_bytes=_MAX_ASKED_BYTES)) is not None:
        offset, size = _ASKED.unpack_from(message)
        holder = message[_ASKED.size :].decode()
        feed.ask_for(holder, offset, size)
        for start in range(0, size, _PART):
            view = part[: min(_PART, size - start)]
            feed.take_from(holder, view)
            channel.send(view)


def _secured(sock: socket.socket, context: ssl.SSLContext, *, server: bool) -> ssl.SSLSocket:
    try:
        return context.wrap_socket(sock, server_side=server)
    except OSError as error:  # ssl.SSLError is one
        sock.close()
        raise ChannelRefused(
            "the other side shows no certificate that is known here",
            check="certificate",
            got=type(error).__name__,
        ) from error


def _asked(stream: Stream) -> tuple[int, int] | None:
    """The next request, ``None`` at the end of the session."""
    first = bytearray(1)
    try:
        if not stream.recv_into(memoryview(first)):
            return None
    except OSError:  # whoever asked is gone, or was refused
        return None
    offset, size = _ASKED.unpack(bytes(first) + receive_exactly(stream, _ASKED.size - 1))
    return offset, size
