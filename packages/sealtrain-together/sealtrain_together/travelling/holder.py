"""A holder of data: gives one chunk a trip, straight into the accelerator's buffer (spec §4).

It counts for itself what it gave, whatever an orchestrator says: not more than it wants to give, no
trip twice, and to another orchestrator that takes over it forgives no more trips than can be lost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

from pydantic import Field

from sealtrain.base.canonical import JsonValue
from sealtrain.base.encoding import to_base64
from sealtrain.base.fingerprint import Fingerprint
from sealtrain.base.models import Hex32, StrictModel, load_model
from sealtrain.errors import DataInvalid
from sealtrain_together.channel.answers import Done, answer, operation
from sealtrain_together.channel.channel import accept
from sealtrain_together.travelling.capability import WriteCapability, WriteConnection
from sealtrain_together.travelling.holder_memory import GivenTrips

if TYPE_CHECKING:
    import socket

    from sealtrain.sealing.datakey import DataKey
    from sealtrain_together.channel.channel import AttestedChannel
    from sealtrain_together.channel.handshake import ChannelTerms

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


class Holder:
    """One holder in its own guest.

    Args:
        source: Its tokens.
        given: Counts what it gives to its run, and bounds it.
        key: Key of the holder's for this run; the marks of its chunks are derived from it.
        share: What it adds to the standby's key, 32 bytes; raises when its lease has ended.
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
        given: GivenTrips,
        key: DataKey,
        share: Callable[[], bytes],
        report: Callable[[], bytes] | None = None,
        writes: tuple[str, int] | None = None,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._source = source
        self._key = key
        self._share = share
        self._given = given
        self._report = report
        self._writes = writes
        self._timer = timer
        self._connection: WriteConnection | None = None
        self._lock = threading.RLock()
        self.over = threading.Event()

    @property
    def given(self) -> tuple[int, ...]:
        """Bytes of each chunk that it gave and that was not forgiven."""
        with self._lock:
            return self._given.sizes

    def serve(self, sock: socket.socket, conversation: ChannelTerms) -> None:
        """Serve an orchestrator that proved itself to its end.

        Raises:
            SealtrainError: It did not prove itself, or the channel broke.
        """
        with accept(sock, conversation, timeout=self._given.bounds.patience) as channel:
            self.attend(channel)

    def attend(self, channel: AttestedChannel) -> None:
        """As ``serve``, where the orchestrator has proved itself already."""
        try:
            while (message := channel.receive(max_bytes=_MAX_ASKED_BYTES)) is not None:
                answer(channel, partial(self._answer, message))
        finally:
            self.close()

    def close(self) -> None:
        """Close the connection to the accelerator; the next write opens another."""
        with self._lock:
            self._hang_up()

    def _answer(self, message: bytes) -> Done:
        does = {
            "join": self._join,
            "provision": self._provide,
            "report": self._tell_given,
            "finish": self._finish,
        }
        name, asked = operation(message, does)
        with self._lock:  # an orchestrator that was thought dead may still be talking
            return does[name](asked)

    def _join(self, asked: dict[str, Any]) -> Done:
        wanted = load_model(Join, asked, DataInvalid, "join")
        self._given.goes_on(wanted.run_id, wanted.trip)
        return {"bytes": self._source.size, "share": to_base64(self._share())}, b""

    def _tell_given(self, _asked: dict[str, Any]) -> Done:
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
            return self._take_provision(asked)

    def _take_provision(self, asked: Provision) -> dict[str, JsonValue]:
        began = self._timer()
        capability = WriteCapability.from_dict(asked.capability)
        if capability.trip != asked.trip:
            raise DataInvalid("the capability is for another trip", got=asked.trip)
        end = asked.offset + asked.size
        if end > self._source.size:
            raise DataInvalid("the holder has no such tokens", got=asked.offset)
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

        self._given.begins(asked.run_id, asked.trip, asked.offset, end)
        there = self._writes or (asked.host, asked.port)
        written = self._connect(there).write(capability, asked.size, fill)
        self._given.wrote(asked.trip, written.size)
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

    def _connect(self, address: tuple[str, int]) -> WriteConnection:
        """The connection to a write port, which is kept from trip to trip."""
        if self._connection is None or self._connection.address != address:
            self._hang_up()
            self._connection = WriteConnection(address, timeout=self._given.bounds.timeout)
        return self._connection

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
