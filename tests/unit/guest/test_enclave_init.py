"""An enclave's first process: order, the register, the clock, and parents that lie or stall."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from carrying import carries
from enclave_world import (
    CASES,
    DOCUMENT,
    IMAGE,
    Enclave,
    PlayedKernel,
    answering,
    bound,
    reached,
    stopped,
)
from nitro_world import NOW, PKI

from sealtrain.attest.errors import EvidenceMalformed, GuestApiUnreachable
from sealtrain.attest.nitro.cbor import encode
from sealtrain.attest.nitro.collect import describe_pcr, extend_pcr, random_bytes
from sealtrain.attest.nitro.verify import compose_register
from sealtrain.base.digests import sha256_hex
from sealtrain.client.errors import TicketInvalid
from sealtrain.guest.enclave.bridge import Bridge, carry_to
from sealtrain.guest.enclave.init import EnclaveInit
from sealtrain.guest.enclave.plan import MOUNTS, module_parameters, program_of
from sealtrain.guest.enclave.ports import DOCUMENT_PORT, HEARTBEAT, HEARTBEAT_PORT
from sealtrain.recipe.document import frame_of
from sealtrain.recipe.errors import LockInvalid
from sealtrain_rehearsal.simulator.nitro import SimulatedNsm

pytestmark = pytest.mark.claim("C672")


@pytest.fixture
def enclave(tmp_path: Path) -> Iterator[Enclave]:
    made = Enclave(tmp_path)
    yield made
    made.init.close()


def test_file_systems_come_first_and_modules_get_their_words(enclave: Enclave) -> None:
    enclave.init.prepare()
    mounts = [("mount", what.target) for what in MOUNTS]
    assert enclave.kernel.done == [
        *mounts,
        ("module", "virtio_mmio.ko", "device=4K@0xd0000000:5 device=4K@0xd0001000:6"),
        ("module", "nsm.ko", "a=1"),
    ]


def test_an_open_file_has_the_name_that_outputs_are_sent_by(enclave: Enclave) -> None:
    """Without it no checkpoint came into a store: a container's runtime makes these links."""
    enclave.init.prepare()
    links = {path.name: str(path.readlink()) for path in (enclave.files / "dev").iterdir()}
    assert links == {
        "fd": "/proc/self/fd",
        "stdin": "/proc/self/fd/0",
        "stdout": "/proc/self/fd/1",
        "stderr": "/proc/self/fd/2",
    }


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("", ""),
        ("virtio_mmio", ""),
        ("virtio_mmio.", ""),
        ("xvirtio_mmio.device=1", ""),
        ("virtio_mmio.device=a.b=c", "device=a.b=c"),
        ("a\nvirtio-mmio.x=1\tb", "x=1"),
    ],
)
def test_words_of_a_module(line: str, found: str) -> None:
    assert module_parameters(line, "virtio_mmio") == found


def test_the_heartbeat_is_sent_and_answered(enclave: Enclave) -> None:
    heard = []

    def answer(connection: socket.socket) -> None:
        heard.append(connection.recv(1))
        connection.sendall(heard[-1])

    listener = answering(enclave.sockets / f"parent-{HEARTBEAT_PORT}", answer)
    enclave.init.beat()
    stopped(listener)
    assert heard == [HEARTBEAT]


@pytest.mark.parametrize("answer", [b"", b"\xb8"])
def test_another_answer_to_the_heartbeat_ends_the_start(enclave: Enclave, answer: bytes) -> None:
    def said(connection: socket.socket) -> None:
        connection.recv(1)
        connection.sendall(answer)

    listener = answering(enclave.sockets / f"parent-{HEARTBEAT_PORT}", said)
    with pytest.raises(OSError):  # it has no code of ours
        enclave.init.beat()
    stopped(listener)


def test_a_parent_that_never_listens_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    seconds = iter(range(1000))
    init = EnclaveInit(
        PlayedKernel(tmp_path / "s"), monotonic=lambda: next(seconds), sleep=lambda _: None
    )
    with pytest.raises(OSError):  # it has no code of ours
        init.beat()


def test_the_document_is_in_the_register_before_it_is_read(enclave: Enclave) -> None:
    program = enclave.given(DOCUMENT[:100], DOCUMENT[100:])
    assert program.words[:2] == ("/usr/local/bin/sealtrain", "guest")
    found = describe_pcr(enclave.nsm, 16)
    assert (found.value, found.locked) == (compose_register(sha256_hex(DOCUMENT)), True)
    assert (enclave.files / "run/sealtrain/app-compose.json").read_bytes() == DOCUMENT
    assert enclave.kernel.done == [
        ("clock", float(NOW)),
        ("entropy", 256),
        ("loopback",),
        ("listen", DOCUMENT_PORT),
        ("no more modules",),
    ]


@pytest.mark.negative(106)
@pytest.mark.parametrize(
    "document",
    [
        b"x",
        DOCUMENT[:-1],
        CASES["snp with GPUs"]["compose"].encode(),
        CASES["simulator, bash"]["compose"].encode(),
        DOCUMENT.replace(b"5a5a", b"5b5b"),
        b"[" * 100_000,
    ],
    ids=["no JSON", "cut", "snp", "script", "another image", "deep"],
)
def test_another_document_starts_nothing(enclave: Enclave, document: bytes) -> None:
    """It is in the register all the same: no second one can take its place."""
    assert isinstance(enclave.given(document), LockInvalid)
    assert describe_pcr(enclave.nsm, 16).locked
    assert ("no more modules",) not in enclave.kernel.done
    assert not (enclave.files / "run").exists()
    assert isinstance(enclave.given(DOCUMENT), GuestApiUnreachable)


def test_a_register_that_holds_something_else_starts_nothing(enclave: Enclave) -> None:
    extend_pcr(enclave.nsm, 16, bytes(48))
    assert isinstance(enclave.given(DOCUMENT), GuestApiUnreachable)


def test_a_parent_that_sends_no_document_in_time_starts_nothing(tmp_path: Path) -> None:
    from sealtrain.client.parentticket import receive_from_sender

    seconds = iter([0.0, 0.0, 4000.0])
    listener = bound(tmp_path / "s")
    listener.listen()
    with pytest.raises(TicketInvalid):
        receive_from_sender(
            listener, 10, is_sender=lambda _: True, within=0.1, monotonic=lambda: next(seconds)
        )
    listener.close()


def test_the_time_is_the_modules(tmp_path: Path) -> None:
    made = Enclave(tmp_path)
    made.nsm = SimulatedNsm(PKI, clock=lambda: NOW + 7)
    made.given(DOCUMENT)
    assert made.kernel.done[0] == ("clock", float(NOW + 7))


@pytest.mark.parametrize(
    ("own", "sets"), [(0.0, []), (0.9, []), (-0.9, []), (-61.0, [0.0]), (2.0, [0.0])]
)
def test_a_clock_that_drifts_is_set_anew(tmp_path: Path, own: float, sets: list[float]) -> None:
    kernel = PlayedKernel(tmp_path)
    enclave = EnclaveInit(kernel, clock=lambda: NOW + own)
    enclave.correct_clock(SimulatedNsm(PKI, clock=lambda: NOW))
    assert kernel.done == [("clock", NOW + each) for each in sets]


def test_the_clock_is_held_each_minute_also_after_a_module_that_failed(tmp_path: Path) -> None:
    kernel, slept = PlayedKernel(tmp_path), []
    times = iter([NOW, None, NOW + 5])
    over = threading.Event()

    def module(request: bytes) -> bytes:
        now = next(times)
        if now is None:
            return encode({"Error": "InternalError"})
        return SimulatedNsm(PKI, clock=lambda: now)(request)

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) > 3:
            over.set()
            threading.Event().wait()  # the thread ends with the test's process

    EnclaveInit(kernel, nsm=lambda: module, sleep=sleep, clock=lambda: NOW).keep_clock()
    assert over.wait(60)
    assert slept == [60.0] * 4
    assert kernel.done == [("clock", NOW + 5)]


@pytest.mark.parametrize(
    "answer",
    [
        b"\xff",
        encode({"Error": "InvalidOperation"}),
        encode({"GetRandom": {}}),
        encode({"GetRandom": {"random": b""}}),
        encode({"GetRandom": {"random": bytes(257)}}),
        encode({"GetRandom": {"random": "text"}}),
        encode("GetRandom"),
    ],
)
def test_a_module_without_random_bytes_is_refused(answer: bytes) -> None:
    with pytest.raises((EvidenceMalformed, GuestApiUnreachable)):
        random_bytes(lambda _: answer)


def test_random_bytes_are_the_modules() -> None:
    nsm = SimulatedNsm(PKI, clock=lambda: NOW, randomness=lambda size: bytes(range(size)))
    assert random_bytes(nsm) == bytes(range(256))


def test_a_document_of_another_image_is_named(enclave: Enclave) -> None:
    frame = frame_of(DOCUMENT)
    assert program_of(frame, IMAGE).ports == ()
    with pytest.raises(LockInvalid, check=carries(check="image")):
        program_of(frame, f"sha256:{'00' * 32}")
    other = frame_of(CASES["snp with GPUs"]["compose"].encode())
    with pytest.raises(LockInvalid, check=carries(check="platform")):
        program_of(other, IMAGE)


def test_bytes_go_through_both_ways_whole(tmp_path: Path) -> None:
    sent = bytes(range(256)) * 2000

    def echo(connection: socket.socket) -> None:
        while data := connection.recv(7):
            connection.sendall(data)

    server = answering(tmp_path / "server", echo)
    bridge = Bridge(bound(tmp_path / "bridge"), carry_to(lambda: reached(tmp_path / "server")))
    bridge.start()
    with reached(tmp_path / "bridge") as connection:
        sender = threading.Thread(target=lambda: (connection.sendall(sent), connection.shutdown(1)))
        sender.start()
        got = b""
        while data := connection.recv(1 << 16):
            got += data
        sender.join()
    bridge.close()
    stopped(server)
    assert got == sent


def test_more_connections_than_a_bridge_carries_are_closed(tmp_path: Path) -> None:
    release = threading.Event()
    bridge = Bridge(bound(tmp_path / "b"), lambda _: release.wait(10) and None, most=2)
    bridge.start()
    held = [reached(tmp_path / "b") for _ in range(2)]
    with reached(tmp_path / "b") as third:
        assert third.recv(1) == b""
    release.set()
    assert [connection.recv(1) for connection in held] == [b"", b""]
    for connection in held:
        connection.close()
    bridge.close()


def test_a_stranger_is_not_carried(tmp_path: Path) -> None:
    bridge = Bridge(bound(tmp_path / "b"), lambda _: None, is_welcome=lambda _: False)
    bridge.start()
    with reached(tmp_path / "b") as connection:
        assert connection.recv(1) == b""
    bridge.close()


def test_an_idle_connection_ends(tmp_path: Path) -> None:
    server = bound(tmp_path / "server")
    server.listen()
    idle = carry_to(lambda: reached(tmp_path / "server"), idle=0.05)
    bridge = Bridge(bound(tmp_path / "b"), idle)
    bridge.start()
    with reached(tmp_path / "b") as connection:
        assert connection.recv(1) == b""
    bridge.close()
    server.close()
