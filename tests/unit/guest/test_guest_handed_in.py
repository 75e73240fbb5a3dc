"""What an operator hands into a guest without a config drive, and what a guest says of itself."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import os
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from programs import need

from sealtrain.errors import ImageRefused
from sealtrain.guest.boot import kernel
from sealtrain.guest.boot.address_lease import (
    ACK,
    DISCOVER,
    OFFER,
    REQUEST,
    AddressOffer,
    exchange_on,
    lease_address,
    read_answer,
    write_question,
)
from sealtrain.guest.boot.decisions import CONFIG_LIMITS, HOST_MODULES, GuestState, Network
from sealtrain.guest.boot.first import close_host_line
from sealtrain.guest.boot.handed_in import (
    MAX_ARCHIVE_BYTES,
    SERVICES,
    ask_service,
    read_archive,
    receive_archive,
)
from sealtrain.guest.boot.health import HealthPage
from sealtrain.image.disk.cpio import FILE, Entry, link, write_archive

pytestmark = pytest.mark.claim("C712")
FILES = {"app-compose.json": b'{"document": 1}', "ticket.json": b"{}"}
ARCHIVE = write_archive({name: Entry(FILE, data) for name, data in FILES.items()})
TEXT = base64.encodebytes(ARCHIVE)


class Cloud:
    """A metadata service with the answers of a test; ``asked`` are the questions' first lines."""

    def __init__(self, *answers: bytes) -> None:
        self.asked: list[bytes] = []
        self._answers = [*answers]
        self._server = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, daemon=True).start()

    def connect(self) -> socket.socket:
        return socket.create_connection(self._server.getsockname(), 5)

    def _serve(self) -> None:
        for answer in self._answers:
            connection, _ = self._server.accept()
            with connection, contextlib.suppress(OSError):
                self.asked.append(connection.recv(65536))
                connection.sendall(answer)
        self._server.close()


def answer(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


GOOGLE = "Metadata-Flavor: Google"


# --- Metadata -------------------------------------------------------------------------------------


def test_each_cloud_hands_over_the_files_of_a_config_drive() -> None:
    google = Cloud(answer(TEXT, GOOGLE))
    assert read_archive(ask_service(SERVICES["Google"], google.connect)) == FILES
    assert b"Metadata-Flavor: Google" in google.asked[0]
    amazon = Cloud(answer(b"token=="), answer(TEXT))
    assert read_archive(ask_service(SERVICES["Amazon EC2"], amazon.connect)) == FILES
    assert amazon.asked[0].startswith(b"PUT ")
    assert b"X-aws-ec2-metadata-token: token==\r\n" in amazon.asked[1]
    azure = Cloud(answer(TEXT))
    assert read_archive(ask_service(SERVICES["Microsoft Corporation"], azure.connect)) == FILES


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(answer(b"", "Location: http://192.0.2.1/", GOOGLE, status=status), id=status)
        for status in ("301 Moved", "302 Found", "307 Elsewhere", "404 Not Found", "500 Sorry")
    ]
    + [
        pytest.param(said, id=name)
        for name, said in {
            "another service": answer(TEXT),
            "no length": b"HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\n\r\n" + TEXT,
            "two lengths": answer(TEXT, GOOGLE, "Content-Length: 1"),
            "negative": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\nMetadata-Flavor: Google\r\n\r\n",
            "100 MB": b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n" + GOOGLE.encode()
            + b"\r\n\r\n",
            "chunks": answer(TEXT, GOOGLE, "Transfer-Encoding: chunked"),
            "short": answer(TEXT, GOOGLE)[:-5],
            "long head": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 5000,
            "no answer": b"",
            "another protocol": b"SSH-2.0-x\r\n\r\n",
            "no base64": answer(b"!" * 100, GOOGLE),
            "cut base64": answer(TEXT[:402], GOOGLE),
        }.items()
    ],
)  # fmt: skip
def test_another_answer_is_refused(said: bytes) -> None:
    cloud = Cloud(said)
    with pytest.raises(ImageRefused):
        ask_service(SERVICES["Google"], cloud.connect)
    assert len(cloud.asked) == 1


@pytest.mark.parametrize("token", [b"", b"x" * 257, b"a\r\nHost: x", b"\xff"])
def test_a_token_of_another_form_is_sent_nowhere(token: bytes) -> None:
    cloud = Cloud(answer(token))
    with pytest.raises(ImageRefused):
        ask_service(SERVICES["Amazon EC2"], cloud.connect)
    assert len(cloud.asked) == 1


def test_a_service_that_stalls_is_given_up() -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 10.0
        return now[0]

    cloud = Cloud(answer(TEXT, GOOGLE)[:30])
    with pytest.raises(ImageRefused):
        ask_service(SERVICES["Google"], cloud.connect, clock)


def test_a_cloud_that_is_gone_is_a_refusal() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = server.getsockname()
    with pytest.raises(ImageRefused):
        ask_service(SERVICES["Google"], lambda: socket.create_connection(place, 5))


# --- The host -------------------------------------------------------------------------------------


def sent(data: bytes) -> bytes:
    own, other = socket.socketpair()

    def send() -> None:
        with own, contextlib.suppress(OSError):
            own.sendall(data)

    with other:
        threading.Thread(target=send, daemon=True).start()
        return receive_archive(other)


def test_the_host_sends_the_same_archive() -> None:
    assert read_archive(sent(ARCHIVE)) == FILES


def test_a_host_that_sends_too_much_is_refused_early() -> None:
    with pytest.raises(ImageRefused):
        sent(bytes(MAX_ARCHIVE_BYTES + 1))
    with pytest.raises(ImageRefused):
        sent(bytes(100_000_000))


def test_a_host_that_stalls_is_given_up() -> None:
    own, other = socket.socketpair()
    times = iter([0.0, 1.0, 29.0, 31.0])
    with own, other:
        own.sendall(ARCHIVE[:10])
        threading.Timer(0.1, own.sendall, [ARCHIVE[10:20]]).start()
        with pytest.raises(ImageRefused):
            receive_archive(other, lambda: next(times))


@pytest.mark.parametrize(
    "entries",
    [
        {"run.sh": Entry(FILE, b"")},
        {"../app-compose.json": Entry(FILE, b"")},
        {"ticket.json": link("/etc/shadow")},
        {"ticket.json": Entry(0o020644, b"")},
        {"ticket.json": Entry(FILE, bytes(CONFIG_LIMITS["ticket.json"] + 1))},
    ],
)
def test_no_other_file_is_handed_in(entries: dict[str, Entry]) -> None:
    with pytest.raises(ImageRefused):
        read_archive(write_archive(entries))


@pytest.mark.claim("C710")
def test_the_line_to_the_host_goes_before_anything_is_started(tmp_path: Path) -> None:
    modules = tmp_path / "modules"
    there = ["ext4", *reversed(HOST_MODULES)]
    tried = []

    def unload(name: str) -> None:
        tried.append(name)
        if len(tried) == 2:  # a connection of it is still being closed
            raise OSError(11, "busy")
        there.remove(name)
        modules.write_text("".join(f"{name} 1 0 - Live 0x0\n" for name in there))

    modules.write_text("".join(f"{name} 1 0 - Live 0x0\n" for name in there))
    close_host_line(modules, unload)
    assert there == ["ext4"]

    def refuse(name: str) -> None:
        raise OSError(11, "busy")

    modules.write_text("vsock 1 0 - Live 0x0\n")
    with pytest.raises(ImageRefused):
        close_host_line(modules, refuse, seconds=0)


# --- A leased address -----------------------------------------------------------------------------

CARD, TRANSACTION = bytes(range(6)), b"abcd"
LEASED = Network(
    address=bytes((10, 1, 2, 3)), mask=bytes((255, 255, 255, 0)), gateway=bytes((10, 1, 2, 1))
)
SERVER = bytes((10, 1, 2, 1))


def reply(
    kind: int,
    *,
    network: Network = LEASED,
    card: bytes = CARD,
    transaction: bytes = TRANSACTION,
    options: bytes | None = None,
) -> bytes:
    head = struct.pack(
        ">BBBB4sHH4s4s4s4s16s64s128s4s", 2, 1, 6, 0, transaction, 0, 0x8000, bytes(4),
        network.address, bytes(4), bytes(4), card, b"", b"", b"\x63\x82\x53\x63",
    )  # fmt: skip
    if options is None:
        options = bytes((53, 1, kind, 1, 4)) + network.mask + bytes((3, 4)) + network.gateway
        options += bytes((54, 4)) + SERVER + b"\xff"
    return head + options


def test_an_address_is_offered_and_leased() -> None:
    questions = []

    def exchange(message: bytes) -> bytes:
        questions.append(message)
        return reply(OFFER if len(questions) == 1 else ACK)

    assert lease_address(exchange, CARD, TRANSACTION) == LEASED
    assert [message[242] for message in questions] == [DISCOVER, REQUEST]
    assert LEASED.address in questions[1][240:]


@pytest.mark.parametrize(
    "message",
    [
        b"", bytes(300), bytes(5000), reply(ACK), reply(OFFER, card=bytes(6)),
        reply(OFFER, transaction=b"abce"), reply(OFFER, options=b""),
        reply(OFFER, options=b"\xff"), reply(OFFER)[:-1], reply(OFFER)[:-3],
        reply(OFFER, options=bytes((53, 1, OFFER, 53, 1, OFFER, 255))),
        reply(OFFER, options=bytes((53, 200, OFFER, 255))),
    ]
    + [
        reply(OFFER, network=Network(address=bytes(a), mask=bytes(m), gateway=bytes(g)))
        for a, m, g in (
            ((0, 0, 0, 0), (255, 255, 255, 0), (10, 1, 2, 1)),
            ((127, 0, 0, 1), (255, 0, 0, 0), (127, 0, 0, 2)),
            ((224, 0, 0, 1), (255, 0, 0, 0), (10, 1, 2, 1)),
            ((10, 1, 2, 3), (255, 0, 255, 0), (10, 1, 2, 1)),
            ((10, 1, 2, 3), (0, 0, 0, 0), (10, 1, 2, 1)),
            ((10, 1, 2, 3), (255, 255, 255, 0), (10, 1, 2, 3)),
            ((10, 1, 2, 3), (255, 255, 255, 0), (255, 255, 255, 255)),
        )
    ],
)  # fmt: skip
def test_another_offer_is_none(message: bytes) -> None:
    assert read_answer(message, OFFER, CARD, TRANSACTION) is None
    with pytest.raises(ImageRefused):
        lease_address(lambda _question: message, CARD, TRANSACTION)


def test_a_gateway_may_be_outside_of_an_address_that_is_a_network() -> None:
    network = Network(address=bytes((10, 1, 2, 3)), mask=b"\xff" * 4, gateway=SERVER)
    found = read_answer(reply(OFFER, network=network), OFFER, CARD, TRANSACTION)
    assert found == AddressOffer(network=network, server=SERVER)
    assert not network.has_gateway
    assert LEASED.has_gateway


def serve_leases(answers: Callable[[bytes], bytes]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"server\0")
        server.bind(("", 67))
        for _ in range(2):
            server.sendto(answers(server.recv(2000)), ("255.255.255.255", 68))


NEW_NETWORK = 0x40000000
NETWORK_OF_THREAD = "/proc/thread-self/ns/net"


@pytest.fixture
def networks() -> Iterator[tuple[int, int]]:
    """Two networks, each of a descriptor: a card in the first, a server's card in the second."""
    need("iproute2")
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open(NETWORK_OF_THREAD, os.O_RDONLY)
    held = [before]
    try:
        for _ in range(2):
            if libc.unshare(NEW_NETWORK):
                pytest.skip("this machine makes no networks")
            held.append(os.open(NETWORK_OF_THREAD, os.O_RDONLY))
        there = f"/proc/{os.getpid()}/fd/{held[1]}"
        pair = f"ip link add server type veth peer name card netns {there}"
        if subprocess.run(pair.split(), check=False, capture_output=True).returncode:
            pytest.skip("this machine has no pairs of network cards")
        for words in ("link set server up", "address add 10.9.2.1/24 dev server"):
            subprocess.run(["ip", *words.split()], check=True)
        libc.setns(held[1], NEW_NETWORK)
        yield held[1], held[2]
    finally:
        libc.setns(before, NEW_NETWORK)
        for descriptor in held:
            os.close(descriptor)


@pytest.mark.parametrize("mask", [bytes((255, 255, 255, 0)), b"\xff" * 4])
def test_linux_takes_a_leased_address(networks: tuple[int, int], mask: bytes) -> None:
    network = Network(address=bytes((10, 9, 2, 3)), mask=mask, gateway=bytes((10, 9, 2, 1)))
    kernel.raise_network("card", None)
    assert not kernel.has_address("card")
    ready = threading.Event()

    def serve() -> None:
        ctypes.CDLL(None).setns(networks[1], NEW_NETWORK)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            server.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"server\0")
            server.bind(("", 67))
            server.settimeout(20)
            ready.set()
            for kind in (OFFER, ACK):
                question = server.recv(2000)
                answer = reply(kind, network=network)
                assert question[4:8] == TRANSACTION
                server.sendto(answer, ("255.255.255.255", 68))

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    ready.wait(20)
    leased = lease_address(exchange_on("card"), CARD, TRANSACTION)
    server.join()
    assert leased == network
    kernel.raise_network("card", leased)
    assert kernel.has_address("card")
    routes = subprocess.run(["ip", "route"], check=True, capture_output=True, text=True).stdout
    assert "default via 10.9.2.1 dev card" in routes


# --- Health ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("question", [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 1024, b"POST /stop x"])
def test_a_caller_learns_one_word(question: bytes) -> None:
    page = HealthPage()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        page.serve(listener)
        for state, status in (
            (GuestState.STARTING, b"503"), (GuestState.RUNNING, b"200"), (GuestState.ENDED, b"503"),
        ):  # fmt: skip
            page.state = state
            with socket.create_connection(listener.getsockname(), 5) as connection:
                connection.sendall(question)
                found = b""
                while more := connection.recv(4096):
                    found += more
            head, _, body = found.partition(b"\r\n\r\n")
            assert body == f"{state}\n".encode()
            assert head.split()[1] == status


def test_a_caller_that_says_nothing_keeps_no_other_waiting_for_long() -> None:
    page = HealthPage()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        page.serve(listener)
        with (
            socket.create_connection(listener.getsockname(), 5),
            socket.create_connection(listener.getsockname(), 20) as other,
        ):
            other.sendall(b"x")
            assert other.recv(4096).endswith(b"starting\n")


def test_questions_have_the_form_of_the_protocol() -> None:
    message = write_question(DISCOVER, CARD, TRANSACTION)
    assert len(message) == 300
    assert message[:8] == b"\1\1\6\0" + TRANSACTION
    assert message[10:12] == b"\x80\0"
    assert message[28:34] == CARD
    assert message[236:240] == b"\x63\x82\x53\x63"
