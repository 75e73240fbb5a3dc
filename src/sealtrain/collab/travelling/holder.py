"""A holder of data: gives one chunk a trip, straight into the accelerator's buffer (spec §4)."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal, Protocol

from pydantic import Field

from sealtrain.base.canonical import JsonValue
from sealtrain.base.models import Hex32, StrictModel
from sealtrain.collab.channel.channel import accept
from sealtrain.collab.travelling.answers import Done, answered
from sealtrain.collab.travelling.capability import WriteCapability, write_chunk
from sealtrain.errors import DataInvalid, LimitExceeded
from sealtrain.release.messages import load_message

if TYPE_CHECKING:
    import socket

    from sealtrain.collab.channel.handshake import Conversation

__all__ = ["HOLDER_PURPOSE", "Holder", "Provision", "TokenSource"]

HOLDER_PURPOSE = "travel-holder"
_MAX_PROVISION_BYTES = 16 << 10


class TokenSource(Protocol):
    """A holder's tokens, uint16 little endian, in the order it gives them."""

    def read_into(self, offset: int, view: memoryview) -> int:
        """Fill ``view`` from byte ``offset`` on; returns how many bytes there were."""


class Provision(StrictModel):
    """What the orchestrator asks of a holder for one trip.

    Attributes:
        offset: First byte of the holder's data that it wants.
        size: How many bytes.
        host, port: The accelerator's write port.
        capability: Leave to write, ``WriteCapability.to_dict()``.
    """

    version: Literal[1] = 1
    run_id: Hex32
    trip: Annotated[int, Field(ge=0)]
    offset: Annotated[int, Field(ge=0)]
    size: Annotated[int, Field(ge=1, le=1 << 40)]
    host: str
    port: Annotated[int, Field(ge=1, le=65535)]
    capability: dict[str, JsonValue] = Field(repr=False)


class Holder:
    """One holder in its own guest.

    Args:
        source: Its tokens.
        max_bytes: Most it gives to one run, whatever it is asked.
        timeout: Seconds the accelerator may take for a write.
        patience: Seconds an orchestrator may be silent.
    """

    def __init__(
        self,
        source: TokenSource,
        *,
        max_bytes: int,
        timeout: float,
        patience: float,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._source = source
        self._left = max_bytes
        self._timeout = timeout
        self._patience = patience
        self._timer = timer
        self._chunk = bytearray()
        self._trips: set[tuple[str, int]] = set()

    def serve(self, sock: socket.socket, conversation: Conversation) -> None:
        """Serve an orchestrator that proved itself to its end.

        Raises:
            SealtrainError: It did not prove itself, or the channel broke.
        """
        with accept(sock, conversation, timeout=self._patience) as channel:
            while (message := channel.receive(max_bytes=_MAX_PROVISION_BYTES)) is not None:
                answer, _ = answered(partial(self._provided, message))
                channel.send(answer)

    def _provided(self, message: bytes) -> Done:
        return self.provide(message), b""

    def provide(self, message: bytes) -> dict[str, JsonValue]:
        """Write the chunk of one trip.

        Returns:
            ``{size, sha256, timers}``; timers in seconds.

        Raises:
            LimitExceeded: More than this holder gives.
            DataInvalid: Not a provision, a trip it served before, or beyond its data.
            CapabilityRefused, ChannelBroken, PeerUnreachable: As ``write_chunk``.
        """
        began = self._timer()
        asked = load_message(Provision, message, max_bytes=_MAX_PROVISION_BYTES)
        capability = WriteCapability.from_dict(asked.capability)
        if (asked.run_id, asked.trip) in self._trips or capability.trip != asked.trip:
            raise DataInvalid("this trip was served before, or is another", got=asked.trip)
        if asked.size > self._left:
            raise LimitExceeded(
                "the orchestrator asks for more than this holder gives",
                got=f"{asked.size} bytes",
                expected=f"at most {self._left}",
            )
        imported = self._timer()
        if len(self._chunk) < asked.size:
            self._chunk = bytearray(asked.size)
        chunk = memoryview(self._chunk)[: asked.size]
        try:
            if self._source.read_into(asked.offset, chunk) != asked.size:
                raise DataInvalid("the holder has no such tokens", got=asked.offset)
            opened = self._timer()
            self._trips.add((asked.run_id, asked.trip))
            written = write_chunk(
                (asked.host, asked.port), capability, chunk, timeout=self._timeout
            )
        finally:
            chunk[:] = bytes(len(chunk))
        self._left -= written.size
        timers = {
            "import_key": imported - began,
            "open": opened - imported,
            "buffer_write": self._timer() - opened,
        }
        return {**written.to_dict(), "timers": {name: round(s, 6) for name, s in timers.items()}}
