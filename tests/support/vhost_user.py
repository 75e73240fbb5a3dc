"""Devices of a QEMU guest whose other end is a test: vhost-user back ends for vsock and the NSM.

QEMU hands over the guest's memory and queues (its docs/interop/vhost-user.rst); a back end reads
requests out of virtqueues (virtio 1.2, §2.7) and writes answers. Enough for one guest of a test.
"""

from __future__ import annotations

import array
import mmap
import os
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_VERSION_1, _PROTOCOL = 1 << 32, 1 << 30
_CONFIG: Final = 1 << 9
_HEAD: Final = struct.Struct("<III")
_NEXT, _WRITE = 1, 2
_REPLY: Final = 5
_NEEDS_REPLY: Final = 8
_VSOCK: Final = struct.Struct("<QQIIIHHIII")
_REQUEST, _RESPONSE, _RST, _SHUTDOWN, _RW, _CREDIT, _ASK_CREDIT = 1, 2, 3, 4, 5, 6, 7
_BUFFER_BYTES: Final = 1 << 18
_PART_BYTES: Final = 3000
HOST: Final = 2
PARENT: Final = 3


@dataclass
class Queue:
    """A virtqueue, by its addresses in QEMU."""

    size: int = 0
    descriptors: int = 0
    available: int = 0
    used: int = 0
    base: int = 0
    kick: int | None = None
    call: int | None = None


@dataclass
class Chain:
    """A request of the guest: what it wrote, and room for an answer."""

    head: int
    written: bytes
    room: list[memoryview] = field(default_factory=list)


class Backend:
    """One device. A subclass says what happens when the guest kicks a queue."""

    def __init__(self, path: Path, queues: int, config: bytes = b"") -> None:
        self.queues = [Queue() for _ in range(queues)]
        self._config = config
        self._regions: list[tuple[int, int, int, memoryview]] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(1)
        self._socket = self._listener
        self._wake, self._woken = os.pipe()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End once the machine has, or before it ever connected."""
        for end in {self._listener, self._socket}:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._thread.join(30)
        for end in {self._listener, self._socket}:
            end.close()

    def kicked(self, number: int) -> None:
        """The guest put something into a queue."""
        raise NotImplementedError

    def woken(self) -> None:
        """``wake`` was called, in the back end's own thread now."""

    def wake(self) -> None:
        """Have the back end's thread call ``woken``."""
        os.write(self._woken, b"x")

    def pop(self, number: int) -> Chain | None:
        """The next request of a queue."""
        queue = self.queues[number]
        if not queue.size or not queue.available:
            return None
        ring = self._at(queue.available, 4 + 2 * queue.size)
        if struct.unpack_from("<H", ring, 2)[0] == queue.base & 0xFFFF:
            return None
        (head,) = struct.unpack_from("<H", ring, 4 + 2 * (queue.base % queue.size))
        queue.base = (queue.base + 1) & 0xFFFF
        table = self._at(queue.descriptors, 16 * queue.size)
        chain, at = Chain(head, b""), head
        for _ in range(queue.size):
            address, length, flags, following = struct.unpack_from("<QIHH", table, 16 * at)
            view = self._guest(address, length)
            if flags & _WRITE:
                chain.room.append(view)
            else:
                chain.written += bytes(view)
            if not flags & _NEXT:
                break
            at = following
        return chain

    def push(self, number: int, chain: Chain, data: bytes = b"", *, notify: bool = True) -> None:
        """Answer a request."""
        at = 0
        for view in chain.room:
            part = data[at : at + len(view)]
            view[: len(part)] = part
            at += len(part)
        queue = self.queues[number]
        ring = self._at(queue.used, 4 + 8 * queue.size)
        (index,) = struct.unpack_from("<H", ring, 2)
        struct.pack_into("<II", ring, 4 + 8 * (index % queue.size), chain.head, len(data))
        struct.pack_into("<H", ring, 2, (index + 1) & 0xFFFF)
        if notify and queue.call is not None:
            os.write(queue.call, struct.pack("<Q", 1))

    def _at(self, address: int, length: int) -> memoryview:
        return self._place(address, length, 2)

    def _guest(self, address: int, length: int) -> memoryview:
        return self._place(address, length, 0)

    def _place(self, address: int, length: int, which: int) -> memoryview:
        for region in self._regions:
            start = region[which]
            assert isinstance(start, int)
            if start <= address < start + region[1]:
                return region[3][address - start : address - start + length]
        raise ValueError(f"no memory at {address:#x}")

    def _serve(self) -> None:
        try:
            self._socket, _ = self._listener.accept()
        except OSError:
            return
        while True:
            kicks = {queue.kick: n for n, queue in enumerate(self.queues) if queue.kick is not None}
            ready, _, _ = select.select([self._socket, self._wake, *kicks], [], [])
            for descriptor in ready:
                if descriptor is self._socket:
                    if not self._message():
                        return
                elif descriptor == self._wake:
                    os.read(self._wake, 4096)
                    self.woken()
                else:
                    os.read(descriptor, 8)
                    self.kicked(kicks[descriptor])

    def _message(self) -> bool:
        try:
            head, ancillary, _, _ = self._socket.recvmsg(_HEAD.size, socket.CMSG_SPACE(64))
        except OSError:
            return False
        if len(head) < _HEAD.size:
            return False
        files = array.array("i")
        for _, _, data in ancillary:
            files.frombytes(data[: len(data) // 4 * 4])
        request, flags, size = _HEAD.unpack(head)
        body = b""
        while len(body) < size:
            body += self._socket.recv(size - len(body))
        answer = self._answer(request, body, list(files))
        if answer is None and flags & _NEEDS_REPLY:
            answer = bytes(8)
        if answer is not None:
            self._socket.sendall(_HEAD.pack(request, _REPLY, len(answer)) + answer)
        return True

    def _answer(self, request: int, body: bytes, files: list[int]) -> bytes | None:
        match request:
            case 1:  # GET_FEATURES
                return struct.pack("<Q", _VERSION_1 | _PROTOCOL)
            case 15:  # GET_PROTOCOL_FEATURES
                return struct.pack("<Q", _CONFIG)
            case 17:  # GET_QUEUE_NUM
                return struct.pack("<Q", len(self.queues))
            case 24:  # GET_CONFIG
                offset, size, flags = struct.unpack_from("<III", body)
                part = self._config[offset : offset + size].ljust(size, b"\0")
                return struct.pack("<III", offset, size, flags) + part
            case 5:  # SET_MEM_TABLE
                self._map(body, files)
            case 8:  # SET_VRING_NUM
                number, size = struct.unpack("<II", body)
                self.queues[number].size = size
            case 9:  # SET_VRING_ADDR
                number, _, descriptors, used, available, _ = struct.unpack("<IIQQQQ", body)
                queue = self.queues[number]
                queue.descriptors, queue.used, queue.available = descriptors, used, available
            case 10:  # SET_VRING_BASE
                number, base = struct.unpack("<II", body)
                self.queues[number].base = base
            case 11:  # GET_VRING_BASE
                number, _ = struct.unpack("<II", body)
                self.queues[number].kick = None
                return struct.pack("<II", number, self.queues[number].base)
            case 12 | 13:  # SET_VRING_KICK, SET_VRING_CALL
                queue = self.queues[struct.unpack("<Q", body)[0] & 0xFF]
                given = files[0] if files else None
                if request == 12:
                    queue.kick = given
                else:
                    queue.call = given
        return None

    def _map(self, body: bytes, files: list[int]) -> None:
        (count,) = struct.unpack_from("<I", body)
        self._regions = []
        for number in range(count):
            guest, size, address, offset = struct.unpack_from("<QQQQ", body, 8 + 32 * number)
            view = memoryview(mmap.mmap(files[number], size + offset))[offset:]
            self._regions.append((guest, size, address, view))


class NsmBackend(Backend):
    """A security module behind Linux's own driver, by QEMU's ``vhost-user-test-device`` (id 33).

    The driver queues a request and the room for its answer as two chains, and waits for both.
    """

    def __init__(self, path: Path, nsm: Callable[[bytes], bytes]) -> None:
        self._nsm = nsm
        self.requests = 0
        self._asked: deque[Chain] = deque()
        self._room: deque[Chain] = deque()
        super().__init__(path, 1)

    def kicked(self, number: int) -> None:
        """Answer what is whole."""
        while (chain := self.pop(0)) is not None:
            (self._asked if chain.written else self._room).append(chain)
        while self._asked and self._room:
            asked, room = self._asked.popleft(), self._room.popleft()
            self.requests += 1
            answer = self._nsm(asked.written)
            self.push(0, asked, notify=False)
            self.push(0, room, answer)


@dataclass
class _Connection:
    """One connection of the guest's vsock, with a socket pair's end on our side."""

    cid: int
    local: int
    remote: int
    ours: socket.socket
    got: int = 0
    sent: int = 0
    allowed: int = 0
    open: bool = False
    ended: bool = False
    waiting: deque[bytes] = field(default_factory=deque)


class VsockBackend(Backend):
    """The host's side of a guest's vsock: services by port, and connections into the guest.

    A service is called with the other end of each connection, in a thread of its own.
    """

    def __init__(
        self, path: Path, cid: int, services: dict[int, Callable[[socket.socket], None]]
    ) -> None:
        self._cid = cid
        self._services = services
        self._connections: dict[tuple[int, int], _Connection] = {}
        self._packets: deque[bytes] = deque()
        self._lock = threading.Lock()
        self._jobs: deque[Callable[[], None]] = deque()
        self._next_port = 70_000
        super().__init__(path, 2, struct.pack("<Q", cid))

    def connect(self, port: int, seconds: float = 120) -> socket.socket:
        """A connection to a port of the guest, as from its parent.

        Raises:
            ConnectionRefusedError: Nothing listens there.
        """
        ours, theirs = socket.socketpair()
        answered = threading.Event()

        def begin() -> None:
            self._next_port += 1
            made = _Connection(PARENT, self._next_port, port, ours)
            self._connections[made.local, port] = made
            self._answered[made.local, port] = answered
            self._send(made, _REQUEST)

        self._do(begin)
        theirs.settimeout(seconds)
        if not answered.wait(seconds) or ours.fileno() < 0:
            theirs.close()
            raise ConnectionRefusedError(port)
        return theirs

    @property
    def _answered(self) -> dict[tuple[int, int], threading.Event]:
        found: dict[tuple[int, int], threading.Event] = self.__dict__.setdefault("_waits", {})
        return found

    def kicked(self, number: int) -> None:
        """Take packets of the guest, or fill the room that it made."""
        if number == 1:
            while (chain := self.pop(1)) is not None:
                packet = chain.written
                self.push(1, chain)
                self._take(packet)
        self._flush()

    def woken(self) -> None:
        """Do what other threads asked for."""
        while True:
            with self._lock:
                if not self._jobs:
                    return
                job = self._jobs.popleft()
            job()

    def _do(self, job: Callable[[], None]) -> None:
        with self._lock:
            self._jobs.append(job)
        self.wake()

    def _take(self, packet: bytes) -> None:
        _, target, from_port, to_port, size, _, op, _, room, seen = _VSOCK.unpack_from(packet)
        data = packet[_VSOCK.size : _VSOCK.size + size]
        key = (to_port, from_port)
        connection = self._connections.get(key)
        if op == _REQUEST:
            self._accept(target, to_port, from_port, room)
            return
        if connection is None:
            if op != _RST:
                lost = _Connection(target, to_port, from_port, socket.socket())
                lost.ours.close()
                self._send(lost, _RST)
            return
        connection.allowed = seen + room
        if op == _RESPONSE:
            self._opened(connection)
        elif op == _RW:
            connection.got = (connection.got + len(data)) & 0xFFFFFFFF
            with suppress(OSError):
                connection.ours.sendall(data)
            self._send(connection, _CREDIT)
        elif op == _SHUTDOWN:
            with suppress(OSError):
                connection.ours.shutdown(socket.SHUT_WR)
            connection.ended = True
            self._end_if_over(connection, key)
        elif op == _RST:
            self._forget(key)
        elif op == _ASK_CREDIT:
            self._send(connection, _CREDIT)
        if key in self._connections:
            self._write(connection)

    def _accept(self, cid: int, local: int, remote: int, room: int) -> None:
        service = self._services.get(local)
        ours, theirs = socket.socketpair()
        made = _Connection(cid, local, remote, ours, allowed=room)
        if service is None:
            ours.close()
            theirs.close()
            self._send(made, _RST)
            return
        self._connections[local, remote] = made
        self._send(made, _RESPONSE)
        self._opened(made)
        threading.Thread(target=self._served, args=(service, theirs), daemon=True).start()

    @staticmethod
    def _served(service: Callable[[socket.socket], None], theirs: socket.socket) -> None:
        with theirs, suppress(OSError):
            service(theirs)

    def _opened(self, connection: _Connection) -> None:
        connection.open = True
        threading.Thread(target=self._read, args=(connection,), daemon=True).start()
        waiting = self._answered.pop((connection.local, connection.remote), None)
        if waiting is not None:
            waiting.set()

    def _read(self, connection: _Connection) -> None:
        """Hand what our side writes to the back end's thread."""
        while True:
            try:
                data = connection.ours.recv(_PART_BYTES)
            except OSError:
                data = b""
            self._do(lambda data=data: self._queue(connection, data))  # type: ignore[misc]
            if not data:
                return

    def _queue(self, connection: _Connection, data: bytes) -> None:
        connection.waiting.append(data)
        self._write(connection)

    def _write(self, connection: _Connection) -> None:
        while connection.waiting:
            data = connection.waiting[0]
            if data and connection.sent + len(data) > connection.allowed:
                return
            connection.waiting.popleft()
            if data:
                self._send(connection, _RW, data)
                connection.sent += len(data)
            else:
                self._send(connection, _SHUTDOWN, flags=2)
                self._end_if_over(connection, (connection.local, connection.remote))

    def _end_if_over(self, connection: _Connection, key: tuple[int, int]) -> None:
        if connection.ended and not connection.waiting:
            self._send(connection, _RST)
            self._forget(key)

    def _forget(self, key: tuple[int, int]) -> None:
        connection = self._connections.pop(key, None)
        if connection is not None:
            with suppress(OSError):
                connection.ours.shutdown(socket.SHUT_RDWR)
            connection.ours.close()
        waiting = self._answered.pop(key, None)
        if waiting is not None:
            waiting.set()

    def _send(self, connection: _Connection, op: int, data: bytes = b"", flags: int = 0) -> None:
        self._packets.append(
            _VSOCK.pack(
                *(connection.cid, self._cid, connection.local, connection.remote, len(data)),
                *(1, op, flags, _BUFFER_BYTES, connection.got),
            )
            + data
        )
        self._flush()

    def _flush(self) -> None:
        while self._packets and (chain := self.pop(0)) is not None:
            self.push(0, chain, self._packets.popleft())
