"""One-shot write capabilities: a holder may append to one range of the buffer, once (spec §3).

Contract: bytes reach the buffer only in order, inside the range, under the capability's own key,
over its one connection, before it is taken back. Nothing can be read.
"""

from __future__ import annotations

import hashlib
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from sealtrain.base.canonical import JsonValue
from sealtrain.base.encoding import from_base64, from_hex, to_base64
from sealtrain.base.secret import Secret
from sealtrain.collab.channel.records import (
    END,
    MAX_PLAINTEXT,
    RecordReader,
    RecordWriter,
)
from sealtrain.collab.channel.streams import dialled, receive_exactly, send_all
from sealtrain.errors import (
    CapabilityRefused,
    ChannelBroken,
    DataInvalid,
    SealtrainError,
)

__all__ = ["Gate", "WriteCapability", "Written", "wipe", "write_chunk"]

ID_BYTES = 16
_LABEL = b"sealtrain/travelling/v1 "
_OFFSET = struct.Struct(">Q")
_PART = MAX_PLAINTEXT - _OFFSET.size
_DIGEST_BYTES = 32
_ZEROS = bytes(1 << 20)

Random = Callable[[int], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteCapability:
    """Leave to append to ``[start, end)`` of the buffer on one trip.

    Attributes:
        id: 32 hex digits; names it, proves nothing.
        trip: Counted from 0.
        start: First byte.
        end: One behind the last byte.
        secret: 32 bytes that its two keys come from.
    """

    id: str
    trip: int
    start: int
    end: int
    secret: Secret

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
        """The key of ``"write"`` or ``"receipt"``."""
        info = _LABEL + direction.encode()
        return Secret(HKDFExpand(hashes.SHA256(), 32, info).derive(self.secret.reveal()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What came through a capability: so many bytes, of this SHA-256 (hex)."""

    size: int
    sha256: str

    def to_dict(self) -> dict[str, JsonValue]:
        """JSON form."""
        return {"size": self.size, "sha256": self.sha256}


def write_chunk(address: tuple[str, int], capability: WriteCapability, chunk: memoryview, *,
                timeout: float) -> Written:  # fmt: skip
    """Holder: write a chunk through a capability and see that it arrived as it is.

    Args:
        address: The accelerator's write port.
        capability: As the orchestrator lent it; used up by this call.
        chunk: At most as long as its range.
        timeout: Seconds to connect and between bytes.

    Raises:
        DataInvalid: The chunk is empty or longer than the range.
        CapabilityRefused: The accelerator took something else.
        ChannelBroken: It refused, or somebody cut the connection.
        PeerUnreachable: It does not answer.
    """
    if not 0 < len(chunk) <= capability.end - capability.start:
        raise DataInvalid(
            "the chunk does not fit the range that was lent",
            got=len(chunk),
            expected=f"1 to {capability.end - capability.start} bytes",
        )
    with dialled(address, timeout=timeout) as sock:
        writer = RecordWriter(sock, capability.key("write"))
        reader = RecordReader(sock, capability.key("receipt"))
        send_all(sock, bytes.fromhex(capability.id))
        message = bytearray(_OFFSET.size + min(len(chunk), _PART))
        digest = hashlib.sha256()
        for start in range(0, len(chunk), _PART):
            part = chunk[start : start + _PART]
            _OFFSET.pack_into(message, 0, capability.start + start)
            message[_OFFSET.size : _OFFSET.size + len(part)] = part
            writer.send(memoryview(message)[: _OFFSET.size + len(part)])
            digest.update(part)  # while the other side opens what was sent
        writer.control(END)
        receipt = reader.receive(max_bytes=_DIGEST_BYTES)
    if receipt != digest.digest():
        raise CapabilityRefused(
            "the accelerator received another chunk than was sent",
            check="receipt",
            hint="the trip is void; the orchestrator starts another one",
        )
    return Written(size=len(chunk), sha256=digest.hexdigest())


@dataclass(slots=True)
class _Loan:
    """An open capability at the accelerator."""

    capability: WriteCapability
    used: bool = False
    size: int = 0
    digest: hashlib._Hash = field(default_factory=hashlib.sha256)
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
                        "part of the range is lent to somebody else",
                        check="capability range",
                        got=f"{capability.start} to {capability.end}",
                        expected=f"nothing of {other.start} to {other.end}",
                    )
            self._loans[capability.id] = _Loan(capability)

    def take_back(self, capability_id: str) -> Written:
        """Close a capability; from now on nothing comes through it.

        Returns:
            What came.

        Raises:
            CapabilityRefused: There is none of this id, its holder broke the rules, or it has not
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
            return Written(size=loan.size, sha256=loan.digest.hexdigest())

    def void(self) -> None:
        """Close all capabilities."""
        with self._lock:
            loans, self._loans = self._loans, {}
            for loan in loans.values():
                if loan.connection is not None:
                    _shut(loan.connection)

    def serve_one(self, sock: socket.socket, *, timeout: float) -> None:
        """Serve one connection of the write port to its end. Raises nothing a holder can cause."""
        loan: _Loan | None = None
        with sock:
            try:
                sock.settimeout(timeout)
                loan = self._claim(receive_exactly(sock, ID_BYTES).hex(), sock)
                capability = loan.capability
                reader = RecordReader(sock, capability.key("write"))
                while (message := reader.receive(max_bytes=MAX_PLAINTEXT)) is not None:
                    self._append(loan, message)
                with self._lock:
                    loan.complete = True
                    receipt = loan.digest.digest()
                RecordWriter(sock, capability.key("receipt")).send(receipt)
            except (SealtrainError, OSError) as error:
                if loan is not None:
                    with self._lock:
                        loan.complete = False
                        loan.breach = loan.breach or (
                            error.message if isinstance(error, SealtrainError) else "cut off"
                        )

    def _claim(self, capability_id: str, sock: socket.socket) -> _Loan:
        with self._lock:
            loan = self._loans.get(capability_id)
            if loan is None or loan.used:
                raise CapabilityRefused("unknown, used or taken back", check="capability")
            loan.used = True
            loan.connection = sock
            return loan

    def _append(self, loan: _Loan, message: bytes) -> None:
        if len(message) <= _OFFSET.size:
            raise ChannelBroken("a write of nothing", check="write")
        (offset,) = _OFFSET.unpack_from(message)
        data = memoryview(message)[_OFFSET.size :]
        with self._lock:
            # Under the lock: a write is before the capability was taken back or not at all.
            if self._loans.get(loan.capability.id) is not loan:
                raise CapabilityRefused("taken back", check="capability")
            expected = loan.capability.start + loan.size
            if offset != expected or offset + len(data) > loan.capability.end:
                raise CapabilityRefused("a write outside the range that was lent", check="write")
            self._buffer[offset : offset + len(data)] = data
            loan.digest.update(data)
            loan.size += len(data)


def wipe(view: memoryview) -> None:
    """Overwrite with zeros, in place."""
    for start in range(0, len(view), len(_ZEROS)):
        part = view[start : start + len(_ZEROS)]
        part[:] = _ZEROS[: len(part)]


def _shut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
