"""Callers that prove nothing, against every server that anyone may call, other than a broker's.

The lender of stores' credentials, small pages over HTTP, accelerators, dealers and holders: a
stranger that is silent, slow, endless or many keeps none of them from the callers that are meant,
and holds neither their memory nor their threads.
"""

from __future__ import annotations

import errno
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

import httpx2
import pytest
from channel_world import keyed
from collecting import COLLECTING
from polling import wait_until

from sealtrain.base.connections import Caps
from sealtrain.base.wsgi import ServerLimits, bind_server
from sealtrain.cli.credential_lender import lending
from sealtrain.errors import SealtrainError
from sealtrain_console.web.serving import serving
from sealtrain_together.channel.channel import AttestedChannel, accept, connect
from sealtrain_together.channel.ports import Caller, first_proven, listening

if not COLLECTING:
    from pads_world import DEVICE, random_entries, random_matrix

    from sealtrain_together.pads.accelerator import RemoteAccelerator
    from sealtrain_together.pads.multiplying import Limits as AcceleratorLimits
    from sealtrain_together.pads.serving import Multiplier

pytestmark = [pytest.mark.long, pytest.mark.claim("C44")]

WITHIN = 20.0
LOOPBACK = ("127.0.0.1", 0)
SMALL = ServerLimits(
    caps=Caps(connections=6, connections_per_address=4, body_bytes=100_000),
    body_bytes=64 << 10,
    seconds=1.5,
)
LONG = ServerLimits(caps=SMALL.caps, body_bytes=SMALL.body_bytes, seconds=60.0)
Place = tuple[str, int]


class Lent:
    """A lender that lends to anyone whose request is whole."""

    def challenge(self) -> bytes:
        return b'{"challenge": 1}'

    def lend(self, body: bytes) -> bytes:
        return json.dumps({"got": len(body)}).encode()


@contextmanager
def lender(limits: ServerLimits) -> Iterator[Place]:
    lends: Any = Lent()
    with running(lending(lends, "127.0.0.1:0", limits=limits)) as place:
        yield place


@contextmanager
def running(server: Any) -> Iterator[Place]:
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield ("127.0.0.1", server.server_port)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def call(place: Place, data: bytes = b"", *, address: str = "127.0.0.1") -> socket.socket:
    made = socket.create_connection(place, timeout=WITHIN, source_address=(address, 0))
    made.sendall(data)
    return made


def is_open(sock: socket.socket) -> bool:
    """Whether the other side still holds a connection that it has not answered."""
    sock.settimeout(0.01)
    try:
        return sock.recv(1, socket.MSG_PEEK) != b""
    except TimeoutError:
        return True
    except OSError:
        return False


def post(size: int, sent: int) -> bytes:
    head = f"POST /v1/credentials HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n"
    return head.encode() + bytes(sent)


def answered(place: Place, data: bytes, *, address: str = "127.0.0.1") -> bytes:
    with call(place, data, address=address) as sock:
        found = b""
        while part := sock.recv(1 << 16):
            found += part
    return found


GET = b"GET /v1/challenge HTTP/1.1\r\nHost: x\r\n\r\n"


def test_a_whole_request_is_served_and_a_longer_one_is_not_read() -> None:
    with lender(LONG) as place:
        assert answered(place, GET).endswith(b'{"challenge": 1}')
        assert answered(place, post(64 << 10, 64 << 10)).endswith(b'{"got": 65536}')
        assert b"request-too-large" in answered(place, post(9 << 20, 0))
    with lender(ServerLimits(caps=LONG.caps, body_bytes=1000, seconds=60.0)) as place:
        # What the server takes is less than what the lender would: it ends there.
        assert b"data-invalid" in answered(place, post(30_000, 30_000))


@pytest.mark.parametrize(
    "begun",
    [b"", b"GET /v1/challenge HTTP/1.1\r\nX: ", post(64 << 10, 0), post(64 << 10, 1000)],
    ids=["silence", "half a head", "a head", "half a body"],
)
def test_many_unfinished_requests_keep_no_other_caller_out(begun: bytes) -> None:
    with ExitStack() as stack, lender(LONG) as place:
        crowd = [
            stack.enter_context(call(place, begun, address=f"127.0.0.{2 + number % 3}"))
            for number in range(30)
        ]
        began = time.monotonic()
        assert answered(place, GET).endswith(b'{"challenge": 1}')
        assert answered(place, GET, address="127.0.0.2").endswith(b'{"challenge": 1}')
        assert time.monotonic() - began < WITHIN
        wait_until(lambda: sum(map(is_open, crowd)) <= 6, WITHIN)


def test_unfinished_bodies_have_so_much_memory_together() -> None:
    with ExitStack() as stack, lender(LONG) as place:
        crowd = []
        for number in range(5):
            sock = call(place, address=f"127.0.0.{2 + number}")
            crowd.append(stack.enter_context(sock))
            with suppress(OSError):
                sock.sendall(post(64 << 10, (64 << 10) - 16))
        wait_until(lambda: sum(map(is_open, crowd)) <= 1, WITHIN)
        assert answered(place, post(100, 100)).endswith(b'{"got": 100}')


@pytest.mark.parametrize("where", ["head", "body"])
def test_a_byte_now_and_then_holds_a_connection_no_longer(where: str) -> None:
    with lender(SMALL) as place, call(place) as sock:
        sock.sendall(post(1000, 10) if where == "body" else b"GET /v1/ch")
        began = time.monotonic()
        while is_open(sock) and time.monotonic() - began < WITHIN:
            time.sleep(0.1)
            try:
                sock.sendall(b"x")
            except OSError:
                break
        assert time.monotonic() - began < WITHIN / 2


@pytest.mark.parametrize("endless", [b"x", b"X: y\r\n"], ids=["line", "lines"])
def test_a_head_without_end_is_cut(endless: bytes) -> None:
    with lender(LONG) as place, call(place, b"GET / HTTP/1.1\r\n") as sock:
        sent = 0
        with suppress(OSError):
            while sent < 64 << 20:
                sock.sendall(endless * 5000)
                sent += 5000 * len(endless)
        assert sent < 16 << 20  # what lies in the kernel's buffers


def test_a_page_that_takes_no_body_reads_none() -> None:
    read: list[bytes] = []

    def page(request: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
        read.append(request["wsgi.input"].read(1000))
        start("200 OK", [("content-length", "0")])
        return []

    with running(bind_server(page, "127.0.0.1:0")) as place:
        assert answered(place, b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
    assert read == [b""]


# --- Ports of parties ---------------------------------------------------------------------------


@contextmanager
def party(connections: int = 6) -> Iterator[tuple[Place, list[str]]]:
    """A party that answers those that prove themselves, and what it says of others."""
    said: list[str] = []

    def serve(sock: Caller) -> None:
        with accept(sock, keyed("pads", "b", "a"), timeout=WITHIN) as channel:
            while (message := channel.receive(max_bytes=100)) is not None:
                channel.send(message)

    with listening(
        LOOPBACK, serve, what="guests", connections=connections, say=said.append
    ) as place:
        yield place, said


def proven(place: Place) -> AttestedChannel:
    talk = keyed("pads", "a", "b", context={"run_id": "00" * 16})
    return connect(place, talk, timeout=WITHIN)


@pytest.mark.parametrize("begun", [b"", b"\0", struct.pack(">I", 4 << 20), b"\0\0\1\0{"])
def test_strangers_keep_no_party_that_proves_itself_out(begun: bytes) -> None:
    with ExitStack() as stack, party() as (place, _):
        crowd = [
            stack.enter_context(call(place, begun, address=f"127.0.0.{2 + number % 3}"))
            for number in range(30)
        ]
        channels = [stack.enter_context(proven(place)) for _ in range(3)]
        crowd += [stack.enter_context(call(place, begun)) for _ in range(30)]
        for channel in channels:  # what was proven is not let go
            channel.send(b"still there")
            assert channel.receive(max_bytes=100) == b"still there"
        wait_until(lambda: sum(map(is_open, crowd)) <= 3, WITHIN)


@pytest.mark.claim("C555")
@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nHost: x\r\n"], ids=["silent", "begun"])
def test_callers_on_this_machine_keep_no_owner_out_of_the_console(begun: bytes) -> None:
    """Loopback is everybody's who has an account here."""
    from fastapi import FastAPI

    app = FastAPI()
    app.get("/")(lambda: "the console")
    with serving(app) as url, ExitStack() as held:
        place = ("127.0.0.1", int(url.rpartition(":")[2]))
        for _ in range(150):
            held.enter_context(closing(call(place, begun)))
        for _ in range(3):
            assert httpx2.get(f"http://127.0.0.1:{place[1]}/", trust_env=False).status_code == 200


class Crowded(socket.socket):
    """A listener of a process whose descriptors were all taken for a while."""

    refusals = 0

    def accept(self) -> tuple[socket.socket, Any]:
        if self.refusals:
            self.refusals -= 1
            raise OSError(errno.EMFILE, "no descriptor is free")
        return super().accept()


@pytest.mark.claim("C551")
def test_a_port_without_descriptors_goes_on_listening() -> None:
    served = threading.Event()
    listener = Crowded()
    listener.bind(LOOPBACK)
    listener.listen()
    listener.refusals = 3

    def handle(_caller: Caller) -> None:
        served.set()

    with listening(listener, handle, what="a test") as place, closing(call(place)):
        assert served.wait(WITHIN)
        assert not listener.refusals


def test_parties_that_proved_themselves_are_so_many_and_no_more() -> None:
    with ExitStack() as stack, party(connections=2) as (place, said):
        channels = [stack.enter_context(proven(place)) for _ in range(2)]
        with pytest.raises(SealtrainError):
            proven(place)
        assert len([line for line in said if "2 connections" in line]) == 1
        channels[0].send(b"still there")
        assert channels[0].receive(max_bytes=100) == b"still there"


def test_the_first_that_proves_itself_is_found_among_silent_callers() -> None:
    before = set(threading.enumerate())

    def prove(sock: Caller) -> AttestedChannel:
        return accept(sock, keyed("pads", "b", "a"), timeout=WITHIN)

    with ExitStack() as stack, socket.create_server(LOOPBACK) as listener:
        place = listener.getsockname()[:2]
        crowd = [stack.enter_context(call(place)) for _ in range(40)]
        opened: list[AttestedChannel] = []
        thread = threading.Thread(target=lambda: opened.append(proven(place)))
        thread.start()
        found = first_proven(
            listener, prove, what="orchestrators", seconds=WITHIN, connections=4,
            say=lambda _: None,
        )  # fmt: skip
        thread.join()
        assert found is not None
        assert set(threading.enumerate()) <= before  # before a sandbox closes around the process
        opened[0].send(b"a message")
        assert found.receive(max_bytes=100) == b"a message"
        assert not any(map(is_open, crowd))
        found.close()
        opened[0].close()


def test_where_none_proves_itself_the_wait_ends() -> None:
    def prove(sock: Caller) -> AttestedChannel:
        return accept(sock, keyed("pads", "b", "a"), timeout=WITHIN)

    with socket.create_server(LOOPBACK) as listener, call(listener.getsockname()[:2], b"x"):
        began = time.monotonic()
        assert first_proven(
            listener, prove, what="orchestrators", seconds=0.3, say=lambda _: None
        ) is None  # fmt: skip
        assert time.monotonic() - began < WITHIN / 2


# --- Accelerators, which ask for no proof -------------------------------------------------------


@contextmanager
def accelerating(**limits: Any) -> Iterator[Place]:
    limit = AcceleratorLimits(**limits)
    work = Multiplier(DEVICE, limit)
    with listening(
        LOOPBACK, work.serve, what="accelerator", connections=limit.connections,
        say=lambda _: None,
    ) as place:  # fmt: skip
        yield place


@pytest.mark.parametrize("begun", [b"", b"\1", struct.pack(">BI", 1, 1 << 28)])
def test_callers_that_bring_no_matrix_give_way_to_one_that_does(begun: bytes) -> None:
    matrix = random_matrix()
    with ExitStack() as stack, accelerating(connections=6) as place:
        crowd = [stack.enter_context(call(place, begun)) for _ in range(30)]
        remote = RemoteAccelerator(*place)
        remote.admit(matrix)
        crowd += [stack.enter_context(call(place, begun)) for _ in range(30)]
        remote.product(matrix, "forward", random_entries(matrix, "forward"))()
        remote.close()
        wait_until(lambda: sum(map(is_open, crowd)) <= 6, WITHIN)


def test_one_address_that_brings_matrices_keeps_no_other_address_out() -> None:
    matrix = random_matrix()
    tiny = struct.pack(">BIII", 1, 9, 1, 1) + b"\1"
    with ExitStack() as stack, accelerating(connections=6) as place:
        remote = RemoteAccelerator(*place)
        remote.admit(matrix)
        for number in range(12):
            sock = stack.enter_context(call(place, tiny, address=f"127.0.0.{2 + number % 2}"))
            sock.settimeout(1.0)
            with suppress(OSError):
                sock.recv(5 + 32)
        late = RemoteAccelerator(*place)
        late.admit(matrix)
        for item in (remote, late):
            item.product(matrix, "forward", random_entries(matrix, "forward"))()
            item.close()


def test_frames_that_are_announced_have_so_much_memory_together() -> None:
    matrix = random_matrix()
    with ExitStack() as stack, accelerating(connections=16) as place:
        crowd = [
            stack.enter_context(
                call(place, struct.pack(">BI", 1, 1 << 28), address=f"127.0.0.{2 + number % 2}")
            )
            for number in range(12)
        ]
        wait_until(lambda: sum(map(is_open, crowd)) <= 8, WITHIN)
        remote = RemoteAccelerator(*place)
        remote.admit(matrix)
        remote.product(matrix, "forward", random_entries(matrix, "forward"))()
        remote.close()
