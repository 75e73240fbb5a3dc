"""One-shot write capabilities: a holder may append to one range of the buffer, once (spec §3).

Contract: bytes reach the buffer only in order, inside the range, under the capability's own key,
over its one connection, before it is taken back. Nothing can be read. A connection carries the
writes of one holder, one capability after the other.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from sealtrain.base.canonical import JsonValue
from sealtrain.base.encoding import from_base64, from_hex, to_base64
from sealtrain.base.fingerprint import PIECE_BYTES, ZEROS, Fingerprint, pieces
from sealtrain.base.process_state import OneProcess
from sealtrain.base.secret import Random, Secret
from sealtrain.errors import DataInvalid, SealtrainError
from sealtrain.training.errors import ChannelBroken
from sealtrain_together.channel.frames import (
    END,
    FrameReader,
    FrameWriter,
)
from sealtrain_together.channel.ports import Caller
from sealtrain_together.channel.streams import (
    dial,
    receive_exactly,
    receive_or_end,
    send_all,
)
from sealtrain_together.errors import CapabilityRefused

ID_BYTES = 16
_LABEL = b"sealtrain/travelling/v2 "
_OFFSET = struct.Struct(">Q")
_MESSAGE_BYTES = _OFFSET.size + PIECE_BYTES
_RECEIPT_BYTES = 32

Fill = Callable[[int, memoryview], None]
"""A byte of the chunk, and what to fill from there on; raises where it cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteCapability:
    """Leave to append to ``[start, end)`` of the buffer on one trip.

    Attributes:
        id: 32 hex digits; names it, proves nothing.
        trip: Counted from 0.
        start: First byte.
        end: One behind the last byte.
        secret: 32 bytes that its keys come from.
    """

    id: str
    trip: int
    start: int
    end: int
    secret: Secret
    _process: OneProcess = field(
        default_factory=lambda: OneProcess("a write capability"),
        init=False, repr=False, compare=False,
    )  # fmt: skip

    @classmethod
    def make(cls, trip: int, start: int, end: int, random: Random) -> WriteCapability:
        """A fresh one.

        Raises:
            DataInvalid: The range is empty or begins before 0.
        """
        if not 0 <= start < end:
            raise DataInvalid("a capability needs a range", got=f"{start} to {end}")
        return cls(
            id=random(ID_BYTES).hex(), trip=trip, start=start, end=end, secret=Secret(random(32))
        )

    def to_dict(self) -> dict[str, JsonValue]:
        """JSON form, secret included: for attested channels only."""
        return {
            "id": self.id,
            "trip": self.trip,
            "start": self.start,
            "end": self.end,
            "secret": to_base64(self.secret.reveal()),
        }

    @classmethod
    def from_dict(cls, value: JsonValue) -> WriteCapability:
        """Parse the JSON form.

        Raises:
            CapabilityRefused: A field is missing, unknown or malformed; its value is not shown.
        """
        names = {"id", "trip", "start", "end", "secret"}
        if not isinstance(value, dict) or set(value) != names:
            raise CapabilityRefused("not a write capability", check="capability")
        numbers = [value[name] for name in ("trip", "start", "end")]
        if any(type(number) is not int for number in numbers) or not (
            numbers[0] >= 0 and 0 <= numbers[1] < numbers[2]
        ):
            raise CapabilityRefused("a write capability of no range", check="capability")
        try:
            from_hex(value["id"], length=ID_BYTES)
            secret = Secret(from_base64(value["secret"], length=32))
        except (DataInvalid, TypeError, AttributeError):
            raise CapabilityRefused("not a write capability", check="capability") from None
        return cls(id=value["id"], trip=numbers[0], start=numbers[1], end=numbers[2], secret=secret)

    def key(self, direction: str) -> Secret:
        """The key of ``"write"``, ``"receipt"`` or ``"fingerprint"``, for one use.

        Raises:
            ForkRefused: Another process made or read the capability.
        """
        self._process.require()
        info = _LABEL + direction.encode()
        return Secret(HKDFExpand(hashes.SHA256(), 32, info).derive(self.secret.reveal()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What came through a capability: so many bytes, of this fingerprint under its key (hex)."""

    size: int
    fingerprint: str

    @classmethod
    def of(cls, fingerprint: Fingerprint) -> Written:
        """What a fingerprint has taken."""
        return cls(size=fingerprint.size, fingerprint=fingerprint.digest().hex())

    def to_dict(self) -> dict[str, JsonValue]:
        """JSON form."""
        return {"size": self.size, "fingerprint": self.fingerprint}


class WriteConnection:
    """Holder: a connection to an accelerator's write port, kept from trip to trip.

    Args:
        address: The accelerator's write port.
        timeout: Seconds to connect and between bytes.
    """

    def __init__(self, address: tuple[str, int], *, timeout: float) -> None:
        self.address = address
        self._timeout = timeout
        self._socket: socket.socket | None = None
        self._message = memoryview(bytearray(_MESSAGE_BYTES))

    def write(self, capability: WriteCapability, size: int, fill: Fill) -> Written:
        """Write a chunk through a capability and see that it arrived as it is.

        Args:
            capability: As the orchestrator lent it; used up by this call.
            size: Bytes of the chunk, at most those of its range.
            fill: Gives the chunk part by part, in order; what it raises ends the write.

        Raises:
            DataInvalid: The chunk is empty or longer than the range.
            CapabilityRefused: The accelerator took something else.
            ChannelBroken: It refused, or the network cut the connection.
            PeerUnreachable: It does not answer.
        """
        if not 0 < size <= capability.end - capability.start:
            raise DataInvalid(
                "the chunk does not fit the range that was lent",
                got=size,
                expected=f"1 to {capability.end - capability.start} bytes",
            )
        try:
            sent, receipt = self._write(self._connect(), capability, size, fill)
        except BaseException:
            self.close()  # half a write may be out: nothing can follow it
            raise
        finally:
            wipe(self._message)
        if receipt != sent.digest():
            raise CapabilityRefused(
                "the accelerator received another chunk than was sent",
                check="receipt",
                hint="the trip is void; the orchestrator starts another one",
            )
        return Written.of(sent)

    def close(self) -> None:
        """Close the connection; the next write opens another."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connect(self) -> socket.socket:
        # Between two writes nothing comes: what can be read there is the end.
        if self._socket is not None and select.select([self._socket], [], [], 0)[0]:
            self.close()
        if self._socket is None:
            self._socket = dial(self.address, timeout=self._timeout)
        return self._socket

    def _write(
        self, sock: socket.socket, capability: WriteCapability, size: int, fill: Fill
    ) -> tuple[Fingerprint, bytes | None]:
        message = self._message
        sent = Fingerprint(capability.key("fingerprint").reveal())
        writer = FrameWriter(sock, capability.key("write"))
        reader = FrameReader(sock, capability.key("receipt"))
        send_all(sock, bytes.fromhex(capability.id))
        for start, length in pieces(size):
            part = message[_OFFSET.size :][:length]
            fill(start, part)
            _OFFSET.pack_into(message, 0, capability.start + start)
            writer.send(message[: _OFFSET.size + length])
            sent.take(part)  # while the other side opens what was sent
        writer.control(END)
        return sent, reader.receive(max_bytes=_RECEIPT_BYTES)


def write_chunk(address: tuple[str, int], capability: WriteCapability, size: int, fill: Fill, *,
                timeout: float) -> Written:  # fmt: skip
    """Holder: one write over a connection of its own. As ``WriteConnection.write``."""
    with closing(WriteConnection(address, timeout=timeout)) as connection:
        return connection.write(capability, size, fill)


@dataclass(slots=True)
class _Loan:
    """An open capability at the accelerator."""

    capability: WriteCapability
    arrived: Fingerprint
    used: bool = False
    complete: bool = False
    breach: str | None = None
    connection: socket.socket | None = None


class Gate:
    """Accelerator: where writes come in. ``serve_one`` may run in many threads."""

    def __init__(self, buffer: memoryview) -> None:
        self._buffer = buffer
        self._loans: dict[str, _Loan] = {}
        self._lock = threading.Lock()

    def lend(self, capability: WriteCapability) -> None:
        """Let one holder in.

        Raises:
            CapabilityRefused: The range is not inside the buffer, or part of it is lent already.
        """
        with self._lock:
            if capability.end > len(self._buffer):
                raise CapabilityRefused(
                    "the range lies outside the buffer",
                    check="capability range",
                    got=capability.end,
                    expected=f"at most {len(self._buffer)}",
                )
            for loan in self._loans.values():
                other = loan.capability
                if capability.start < other.end and other.start < capability.end:
                    raise CapabilityRefused(
                        "part of the range is lent to another holder",
                        check="capability range",
                        got=f"{capability.start} to {capability.end}",
                        expected=f"nothing of {other.start} to {other.end}",
                    )
            arrived = Fingerprint(capability.key("fingerprint").reveal())
            self._loans[capability.id] = _Loan(capability, arrived)

    def take_back(self, capability_id: str) -> Written:
        """Close a capability; from now on nothing comes through it.

        Returns:
            What came.

        Raises:
            CapabilityRefused: No capability has this id, its holder broke the rules, or it has not
                said that it is done.
        """
        with self._lock:
            loan = self._loans.pop(capability_id, None)
            if loan is None:
                raise CapabilityRefused("nothing was lent under this id", check="capability")
            if loan.connection is not None:
                # Wakes the thread that reads; what it holds already is refused by `_append`.
                _shut(loan.connection)
            if loan.breach is not None or not loan.complete:
                raise CapabilityRefused(
                    f"the holder broke off: {loan.breach or 'it was not done'}",
                    check="capability",
                    hint="the trip is void: scrub the range and go on with another holder",
                )
            return Written.of(loan.arrived)

    def close(self, capability_id: str) -> None:
        """Close a capability, whatever came through it; an unknown one is closed already."""
        with self._lock:
            loan = self._loans.pop(capability_id, None)
            if loan is not None and loan.connection is not None:
                _shut(loan.connection)

    def void(self) -> None:
        """Close all capabilities."""
        with self._lock:
            loans, self._loans = self._loans, {}
            for loan in loans.values():
                if loan.connection is not None:
                    _shut(loan.connection)

    def serve_one(self, sock: socket.socket, *, timeout: float, idle: float | None = None) -> None:
        """Serve one connection of the write port to its end. Raises nothing a holder can cause.

        Args:
            sock: The connection, on which a holder writes one chunk after the other.
            timeout: Seconds for the first id, and between bytes of a write.
            idle: Seconds between two writes; ``timeout`` where ``None``. Only a connection that
                wrote a whole chunk waits so long.
        """
        with sock:
            sock.settimeout(timeout)
            try:
                name: bytes | None = receive_exactly(sock, ID_BYTES)
                while name is not None and self._serve(sock, name.hex(), timeout):
                    sock.settimeout(timeout if idle is None else idle)
                    name = receive_or_end(sock, ID_BYTES)
            except (SealtrainError, OSError):
                return

    def _serve(self, sock: socket.socket, capability_id: str, timeout: float) -> bool:
        """Serve one write; whether another may follow."""
        sock.settimeout(timeout)
        loan = self._claim(capability_id, sock)
        if isinstance(sock, Caller):
            sock.mark_served()
        capability = loan.capability
        reader = FrameReader(sock, capability.key("write"))
        try:
            while (message := reader.receive_view(max_bytes=_MESSAGE_BYTES)) is not None:
                self._append(loan, message)
            with self._lock:
                # Complete before its holder knows: the orchestrator may ask at once.
                receipt = loan.arrived.digest()
                loan.complete, loan.connection = loan.breach is None, None
            FrameWriter(sock, capability.key("receipt")).send(receipt)
        except (SealtrainError, OSError) as error:
            with self._lock:
                loan.complete = False
                loan.breach = loan.breach or (
                    error.message if isinstance(error, SealtrainError) else "cut off"
                )
            return False
        finally:
            reader.wipe()
        return True

    def _claim(self, capability_id: str, sock: socket.socket) -> _Loan:
        with self._lock:
            loan = self._loans.get(capability_id)
            if loan is None or loan.used:
                raise CapabilityRefused("unknown, used or taken back", check="capability")
            loan.used = True
            loan.connection = sock
            return loan

    def _append(self, loan: _Loan, message: memoryview) -> None:
        if len(message) <= _OFFSET.size:
            raise ChannelBroken("a write of nothing", check="write")
        (offset,) = _OFFSET.unpack_from(message)
        data = message[_OFFSET.size :]
        with self._lock:
            # Under the lock: a write is before the capability was taken back or not at all.
            if self._loans.get(loan.capability.id) is not loan:
                raise CapabilityRefused("taken back", check="capability")
            expected = loan.capability.start + loan.arrived.size
            if offset != expected or offset + len(data) > loan.capability.end:
                raise CapabilityRefused("a write outside the range that was lent", check="write")
            self._buffer[offset : offset + len(data)] = data
            loan.arrived.take(data)


def wipe(view: memoryview) -> None:
    """Overwrite with zeros, in place."""
    for start, length in pieces(len(view)):
        view[start : start + length] = ZEROS[:length]


def _shut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
