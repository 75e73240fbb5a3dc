"""A holder of data: gives one chunk a trip, straight into the accelerator's buffer (spec §4).

It counts for itself what it gave, whatever an orchestrator says: not more than it wants to give, no
trip twice, and to another orchestrator that takes over it forgives no more trips than can be lost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

from pydantic import Field

from sealtrain.base.canonical import JsonValue
from sealtrain.base.encoding import to_base64
from sealtrain.base.fingerprint import Fingerprint
from sealtrain.base.models import Hex32, StrictModel, load_model
from sealtrain.errors import CheckpointRefused, DataInvalid, LimitExceeded
from sealtrain_collab.channel.answers import Done, answer, operation
from sealtrain_collab.channel.channel import accept
from sealtrain_collab.travelling.capability import WriteCapability, WriteConnection

if TYPE_CHECKING:
    import socket

    from sealtrain.sealing.datakey import DataKey
    from sealtrain_collab.channel.channel import AttestedChannel
    from sealtrain_collab.channel.handshake import Conversation

__all__ = ["HOLDER_PURPOSE", "Holder", "Join", "Provision", "TokenSource"]

HOLDER_PURPOSE = "travel-holder"
_MAX_ASKED_BYTES = 16 << 10


class TokenSource(Protocol):
    """A holder's tokens, little endian, in the order it gives them."""

    @property
    def size(self) -> int:
        """Bytes of all of them."""

    def read_into(self, offset: int, view: memoryview) -> int:
        """Fill ``view`` from byte ``offset`` on; returns how many bytes there were."""


class Join(StrictModel):
    """What an orchestrator says when it begins, or takes over.

    Attributes:
        trip: From this one on nothing that was given counts: it came to nothing.
    """

    version: Literal[1] = 1
    run_id: Hex32
    trip: Annotated[int, Field(ge=0)]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class GivingBounds:
    """How much a holder gives, and how long it waits.

    Attributes:
        max_bytes: Most it gives to one run, whatever it is asked.
        timeout: Seconds the accelerator may take for a write.
        patience: Seconds an orchestrator may be silent.
        forgives: Most trips of a run that may be lost with an orchestrator.
    """

    max_bytes: int
    timeout: float
    patience: float
    forgives: int = 8


class Holder:
    """One holder in its own guest.

    Args:
        source: Its tokens.
        key: Key of the holder's for this run; the marks of its chunks are derived from it.
        share: What it adds to the standby's key, 32 bytes; raises when its lease has ended.
        bounds: How much it gives, and how long it waits.
        report: Shows other parties how it came by its data; ``None`` without a report.
        writes: The accelerator's write port, whatever an orchestrator says; ``None`` to believe it.
        timer: Seconds, for timers.

    Attributes:
        over: Set when an orchestrator said that the run is over.
    """

    def __init__(
        self,
        source: TokenSource,
        *,
        key: DataKey,
        share: Callable[[], bytes],
        bounds: GivingBounds,
        report: Callable[[], bytes] | None = None,
        writes: tuple[str, int] | None = None,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._source = source
        self._key = key
        self._share = share
        self._most = bounds.max_bytes
        self._forgives = bounds.forgives
        self._timeout = bounds.timeout
        self._patience = bounds.patience
        self._report = report
        self._writes = writes
        self._timer = timer
        self._connection: WriteConnection | None = None
        self._given: dict[tuple[str, int], int] = {}
        self._left: list[tuple[int, int]] = []
        """Ranges of its bytes that were on their way to an accelerator, whatever came of it."""
        self._lock = threading.RLock()
        self.over = threading.Event()

    def given(self, run_id: str) -> tuple[int, ...]:
        """Bytes of each chunk that it gave to a run and that was not forgiven."""
        with self._lock:
            return tuple(size for (run, _), size in self._given.items() if run == run_id and size)

    def serve(self, sock: socket.socket, conversation: Conversation) -> None:
        """Serve an orchestrator that proved itself to its end.

        Raises:
            SealtrainError: It did not prove itself, or the channel broke.
        """
        with accept(sock, conversation, timeout=self._patience) as channel:
            self.attend(channel)

    def attend(self, channel: AttestedChannel) -> None:
        """As ``serve``, where the orchestrator has proved itself already."""
        try:
            while (message := channel.receive(max_bytes=_MAX_ASKED_BYTES)) is not None:
                answer(channel, partial(self._done, message))
        finally:
            self.close()

    def close(self) -> None:
        """Close the connection to the accelerator; the next write opens another."""
        with self._lock:
            self._hang_up()

    def _done(self, message: bytes) -> Done:
        does = {
            "join": self._join,
            "provision": self._provide,
            "report": self._told,
            "finish": self._finish,
        }
        name, asked = operation(message, does)
        with self._lock:  # an orchestrator that was thought dead may still be talking
            return does[name](asked)

    def _join(self, asked: dict[str, Any]) -> Done:
        wanted = load_model(Join, asked, DataInvalid, "join")
        lost = [one for one in self._given if one[0] == wanted.run_id and one[1] >= wanted.trip]
        missing = max((trip + 1 for _, trip in lost), default=wanted.trip) - wanted.trip
        if missing > self._forgives:
            raise CheckpointRefused(
                "the orchestrator goes on from an older state than can be the newest",
                check="trips",
                got=f"{missing} trips unknown to it",
                expected=f"at most {self._forgives}",
                hint="the store holds newer sealed states back; use the newest",
            )
        for one in lost:
            del self._given[one]
        return {"bytes": self._source.size, "share": to_base64(self._share())}, b""

    def _told(self, _asked: dict[str, Any]) -> Done:
        if self._report is None:
            raise DataInvalid("this holder has nothing to report", check="operation")
        return {}, self._report()

    def _finish(self, _asked: dict[str, Any]) -> Done:
        self._hang_up()
        self.over.set()
        return {}, b""

    def _provide(self, asked: dict[str, Any]) -> Done:
        return self.provide(load_model(Provision, asked, DataInvalid, "provision")), b""

    def provide(self, asked: Provision) -> dict[str, JsonValue]:
        """Write the chunk of one trip.

        Returns:
            ``{size, fingerprint, mark, timers}``; timers in seconds.

        Raises:
            LimitExceeded: More than this holder gives.
            DataInvalid: A trip it served before, or beyond its data.
            CapabilityRefused, ChannelBroken, PeerUnreachable: As ``WriteConnection.write``.
        """
        with self._lock:
            return self._provided(asked)

    def _provided(self, asked: Provision) -> dict[str, JsonValue]:
        began = self._timer()
        capability = WriteCapability.from_dict(asked.capability)
        trip = (asked.run_id, asked.trip)
        if trip in self._given or capability.trip != asked.trip:
            raise DataInvalid("this trip was served before, or is another", got=asked.trip)
        left = self._most - sum(self._given.values())
        if asked.size > left:
            raise LimitExceeded(
                "the orchestrator asks for more than this holder gives",
                got=f"{asked.size} bytes",
                expected=f"at most {left}",
            )
        if asked.offset + asked.size > self._source.size:
            raise DataInvalid("the holder has no such tokens", got=asked.offset)
        # A write that failed gave its bytes all the same, to an accelerator that says otherwise.
        leaving = _merged([*self._left, (asked.offset, asked.offset + asked.size)])
        if sum(end - start for start, end in leaving) > self._most:
            raise LimitExceeded(
                "the orchestrator asks for other bytes than those that this holder has given",
                got=f"{asked.size} bytes from {asked.offset}",
                expected=f"at most {self._most} different bytes",
            )
        imported = self._timer()
        opening = 0.0
        mark = Fingerprint(self._key.derive("travel-chunk", asked.run_id).reveal())

        def fill(start: int, part: memoryview) -> None:
            nonlocal opening
            began = self._timer()
            if self._source.read_into(asked.offset + start, part) != len(part):
                raise DataInvalid("the holder has no such tokens", got=asked.offset + start)
            opening += self._timer() - began
            mark.take(part)

        # Counted before it leaves: whatever becomes of the write, this trip is used up.
        self._given[trip] = 0
        self._left = leaving
        there = self._writes or (asked.host, asked.port)
        written = self._connected(there).write(capability, asked.size, fill)
        self._given[trip] = written.size
        timers = {
            "import_key": imported - began,
            "open": opening,
            "buffer_write": self._timer() - imported - opening,
        }
        marked = self._key.derive("travel-mark", asked.run_id).mac(mark.digest())
        return {
            **written.to_dict(),
            "mark": marked.hex(),
            "timers": {name: round(s, 6) for name, s in timers.items()},
        }

    def _connected(self, address: tuple[str, int]) -> WriteConnection:
        """The connection to a write port, which is kept from trip to trip."""
        if self._connection is None or self._connection.address != address:
            self._hang_up()
            self._connection = WriteConnection(address, timeout=self._timeout)
        return self._connection

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same bytes in as few ranges as there can be, in order."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
