"""Accelerators as servers: what they refuse, and what a guest makes of broken ones."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any

import pytest
from collecting import COLLECTING
from polling import wait_until

from sealtrain.errors import AcceleratorUnreachable, SealtrainError, UsageError
from sealtrain.training.errors import PeerUnreachable
from sealtrain_together.channel.ports import bind, listening
from sealtrain_together.errors import ProductAltered

if not COLLECTING:
    import torch
    from pads_world import (
        DEVICE,
        Address,
        Watched,
        accelerating,
        dealing,
        dealt,
        random_entries,
        random_matrix,
    )

    from sealtrain_together.pads import tensors, wire
    from sealtrain_together.pads.accelerator import RemoteAccelerator
    from sealtrain_together.pads.engine import Inside, UnderPads
    from sealtrain_together.pads.matrix import PublicMatrix
    from sealtrain_together.pads.multiplying import Limits
    from sealtrain_together.pads.serving import Multiplier, run, start_accelerator
    from sealtrain_together.pads.tensors import MAX_ROWS

    MATRIX = random_matrix()


def asked(address: Address, kind: int, body: bytes) -> tuple[int, bytes]:
    """Kind and body of what an accelerator answers to raw bytes; zero where it closed at once."""
    with (
        suppress(ConnectionError),
        socket.create_connection(address, timeout=10) as connection,
        connection.makefile("rb") as answer,
    ):
        connection.sendall(struct.pack(">BI", kind, len(body)) + body)
        if len(head := answer.read(5)) == 5:
            kind, length = struct.unpack(">BI", head)
            return kind, answer.read(length)
    return 0, b""


if not COLLECTING:
    PRODUCT = wire.describe_product(MATRIX.digest, "forward", 1)
REFUSED: dict[str, Callable[[], tuple[int, bytes]]] = {
    "an unknown kind": lambda: (0x55, b""),
    "what a dealer was asked once": lambda: (0x03, bytes(1168)),
    "an unknown matrix": lambda: (
        wire.PRODUCT,
        wire.describe_product(bytes(32), "forward", 1) + bytes(160),
    ),
    "a matrix of another connection": lambda: (wire.PRODUCT, PRODUCT + bytes(160)),
    "a cut product": lambda: (wire.PRODUCT, PRODUCT[:-1]),
    "a third direction": lambda: (
        wire.PRODUCT,
        struct.pack(">32sII", MATRIX.digest, 2, 1) + bytes(160),
    ),
    "a matrix without sides": lambda: (wire.MATRIX, struct.pack(">II", 0, 0)),
    "a matrix too wide": lambda: (wire.MATRIX, struct.pack(">II", 1, 1 << 20)),
    "a matrix cut short": lambda: (wire.MATRIX, struct.pack(">II", 8, 8) + bytes(63)),
    "a matrix too much": lambda: (wire.MATRIX, struct.pack(">II", 100, 100) + bytes(10_000)),
    "a matrix of nothing": lambda: (wire.MATRIX, b""),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_accelerator_refuses_says_so_and_serves_the_next(case: str) -> None:
    kind, body = REFUSED[case]()
    with accelerating(matrix_bytes=4000) as address, brought(address):
        answered, said = asked(address, kind, body)
        assert answered == wire.REFUSED
        assert 0 < len(said) <= wire.MAX_REFUSAL
        assert asked(address, wire.MATRIX, small_matrix())[0] == 0x81


BAD_ROWS: dict[str, Callable[[], bytes]] = {
    "too few elements": lambda: PRODUCT + bytes(156),
    "no rows": lambda: wire.describe_product(MATRIX.digest, "forward", 0),
    "too many rows": lambda: wire.describe_product(MATRIX.digest, "forward", MAX_ROWS + 1),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_rows_that_are_none_are_refused(case: str) -> None:
    with accelerating() as address, brought(address) as frames:
        frames.send(wire.PRODUCT, BAD_ROWS[case]())
        answered = frames.receive()
        assert answered is not None
        assert answered[0] == wire.REFUSED


@contextmanager
def brought(address: Address, values: torch.Tensor | None = None) -> Iterator[wire.Frames]:
    """A connection that brought a matrix."""
    with socket.create_connection(address, timeout=10) as connection:
        frames = wire.Frames(connection, seconds=10)
        frames.send(wire.MATRIX, *wire.describe_matrix(MATRIX.values if values is None else values))
        answered = frames.receive()
        assert answered is not None
        assert answered[0] == wire.MATRIX | wire.ANSWER
        yield frames


def small_matrix() -> bytes:
    return struct.pack(">II", 2, 2) + bytes([1, 2, 3, 4])


def test_a_frame_longer_than_allowed_is_refused_before_it_is_read() -> None:
    with (
        accelerating() as address,
        socket.create_connection(address, timeout=10) as connection,
    ):
        connection.sendall(struct.pack(">BI", wire.MATRIX, wire.MAX_FRAME + 1))
        assert connection.recv(1) == bytes([wire.REFUSED])


def test_an_answer_longer_than_a_frame_is_not_made() -> None:
    wide = torch.ones(1 << 16, 1, dtype=torch.int8)  # one number in, 65,536 out
    with accelerating() as address, brought(address, wide) as frames:
        rows = wire.MAX_FRAME // (4 << 16) + 1
        body = wire.describe_product(PublicMatrix(wide).digest, "forward", rows) + bytes(4 * rows)
        frames.send(wire.PRODUCT, body)
        answered = frames.receive()
        assert answered is not None
        assert answered[0] == wire.REFUSED


def test_what_fits_no_message_goes_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = random_entries(MATRIX, "forward", 50)
    with accelerating() as there, dealing() as dealer:
        accelerator, supplier = RemoteAccelerator(*there), dealt(dealer)
        engine = UnderPads(accelerator, supplier=supplier)
        engine.admit(MATRIX)
        monkeypatch.setattr(tensors, "MAX_BYTES", 7 * 160 + 64)
        asked: list[int] = []
        honest = tensors.row_parts
        for module in ("engine", "dealer"):
            monkeypatch.setattr(
                f"sealtrain_together.pads.{module}.row_parts",
                lambda *given, **more: (
                    asked.append(len(honest(*given, **more))) or honest(*given, **more)
                ),
            )
        product = engine.product(MATRIX, "forward", entries)
        assert torch.equal(product, Inside().product(MATRIX, "forward", entries))
        assert asked == [8, 8]
        supplier.close()
        accelerator.close()


@pytest.mark.parametrize(
    ("rows", "width", "parts"),
    [(1, 4096, 1), (128, 4096, 1), (255, 11_008, 1), (256, 4096, 2), (512, 512, 1), (1024, 512, 2)],
)
def test_a_request_has_as_many_rows_as_a_matrix_is_worth_reading_for(
    rows: int, width: int, parts: int
) -> None:
    made = tensors.row_parts(rows, (512, width), numbers=1 << 18)
    assert [case.start for case in made] == [0, *(case.stop for case in made[:-1])]
    assert made[-1].stop == rows
    assert len(made) == parts


def test_no_rows_need_no_product() -> None:
    engine = UnderPads(Watched())
    nothing = torch.zeros(0, 40, dtype=torch.int32)
    assert engine.product(MATRIX, "forward", nothing).shape == (0, 24)
    assert engine.spent.products == 0


def test_a_slow_caller_is_left_and_keeps_nobody_waiting() -> None:
    with accelerating(idle_seconds=0.2, frame_seconds=0.2) as address:
        with socket.create_connection(address, timeout=10) as idle:
            assert idle.recv(1) == b""
        with socket.create_connection(address, timeout=10) as slow:
            slow.sendall(struct.pack(">BI", wire.MATRIX, 100) + b"x")
            assert slow.recv(1) == b""


def test_one_connection_too_many_is_closed_and_room_comes_back() -> None:
    with accelerating(connections=1) as address:
        first = RemoteAccelerator(*address)
        first.admit(MATRIX)
        assert asked(address, wire.MATRIX, small_matrix())[0] == 0
        first.close()
        wait_until(lambda: asked(address, wire.MATRIX, small_matrix())[0] == 0x81, 10)


def test_matrices_go_with_the_connection_that_brought_them() -> None:
    full = MATRIX.values.numel()
    with accelerating(matrix_bytes=full) as address:
        with brought(address):
            assert asked(address, wire.MATRIX, small_matrix())[0] == wire.REFUSED
        wait_until(lambda: asked(address, wire.MATRIX, small_matrix())[0] == 0x81, 10)


def test_a_matrix_that_is_brought_again_takes_no_room() -> None:
    twice = MATRIX.values.numel() * 2
    with accelerating(matrix_bytes=twice) as address, brought(address) as frames:
        for _ in range(5):
            frames.send(wire.MATRIX, *wire.describe_matrix(MATRIX.values))
            assert frames.receive() == (wire.MATRIX | wire.ANSWER, MATRIX.digest)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_accelerator_that_fails_says_so_to_its_guest_and_to_its_operator() -> None:
    class Failing(Multiplier):
        def multiply(self, asked: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
            raise MemoryError("4 GB of a guest's rows")

    said: list[str] = []
    others = set(threading.enumerate())
    broken = Failing(DEVICE, Limits())
    with listening(("127.0.0.1", 0), broken.serve, what="accelerator", say=said.append) as address:
        client = RemoteAccelerator(*address)
        client.admit(MATRIX)
        with pytest.raises(AcceleratorUnreachable) as refused:
            client.product(MATRIX, "forward", random_entries(MATRIX, "forward"))()
        client.close()
    for thread in set(threading.enumerate()) - others:
        thread.join(10)  # it dies of its error, which is this test's and not the next one's
    assert refused.value.got == "it failed: MemoryError"
    assert said == ["accelerator: failed [MemoryError]"]


def test_only_an_end_without_an_error_is_silent() -> None:
    said: list[str] = []
    work = Multiplier(DEVICE, Limits())
    with listening(("127.0.0.1", 0), work.serve, what="accelerator", say=said.append) as address:
        honest = RemoteAccelerator(*address)
        honest.admit(MATRIX)
        honest.close()
        assert asked(address, 0x55, b"")[0] == wire.REFUSED
        with socket.create_connection(address) as gone:
            gone.sendall(struct.pack(">BI", wire.MATRIX, 100) + b"x")
        wait_until(lambda: len(said) >= 2, 10)
    # Each connection has a thread of its own, and either may be the first to end.
    assert sorted(said) == ["accelerator: ended [channel-cut]", "accelerator: ended [data-invalid]"]


# --- Broken accelerators ------------------------------------------------------------------------


@contextmanager
def answering(answer: Callable[[socket.socket], object]) -> Iterator[RemoteAccelerator]:
    """A client of something that listens and does as it is told."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                asked = connection.makefile("rb")
                asked.read(struct.unpack(">xI", asked.read(5))[0])
                answer(connection)
                asked.close()

        thread = threading.Thread(target=serve)
        thread.start()
        client = RemoteAccelerator(*listener.getsockname()[:2], seconds=0.5)
        try:
            yield client
        finally:
            client.close()
            thread.join()


def frame(kind: int, body: bytes = b"", length: int | None = None) -> bytes:
    return struct.pack(">BI", kind, len(body) if length is None else length) + body


BROKEN: dict[str, tuple[Callable[[], bytes], type[SealtrainError]]] = {
    "it goes": (lambda: b"", AcceleratorUnreachable),
    "it goes in the middle": (
        lambda: frame(0x82, b"abc", length=9 * 24 * 4),
        AcceleratorUnreachable,
    ),
    "too few rows": (lambda: frame(0x82, bytes(8 * 24 * 4)), AcceleratorUnreachable),
    "another kind": (lambda: frame(0x81, bytes(32)), AcceleratorUnreachable),
    "a frame without end": (lambda: frame(0x82, length=wire.MAX_FRAME + 1), AcceleratorUnreachable),
    "a refusal": (
        lambda: frame(wire.REFUSED, b"no \x1b[31mroom\xff" + b"x" * 900),
        AcceleratorUnreachable,
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_answer_is_no_answer(case: str) -> None:
    raw, error = BROKEN[case]
    with answering(lambda connection: connection.sendall(raw())) as client:
        with pytest.raises(error) as refused:
            client.product(MATRIX, "forward", random_entries(MATRIX, "forward"))()
        if case == "a refusal":
            assert refused.value.got == ("no \\u{1b}[31mroom\\u{fffd}" + "x" * 187)[:200]
            assert refused.value.got.isprintable()
        elif case.startswith("it goes"):
            assert refused.value.got.startswith("127.0.0.1:")


def test_who_never_answers_is_not_waited_for() -> None:
    release = threading.Event()
    with answering(lambda connection: release.wait(10)) as client:
        begin = time.monotonic()
        with pytest.raises(AcceleratorUnreachable):
            client.product(MATRIX, "forward", random_entries(MATRIX, "forward"))()
        assert time.monotonic() - begin < 5
        release.set()


def test_who_takes_a_matrix_for_another_is_refused() -> None:
    with (
        answering(lambda connection: connection.sendall(frame(0x81, bytes(32)))) as client,
        pytest.raises(ProductAltered) as refused,
    ):
        client.admit(MATRIX)
    assert refused.value.check == "matrix digest"


def test_where_nothing_listens_it_is_said_where() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(AcceleratorUnreachable) as refused:
        RemoteAccelerator("127.0.0.1", port)
    assert refused.value.got == f"127.0.0.1:{port}"


# --- As a process -------------------------------------------------------------------------------


def test_where_something_listens_already_it_is_said() -> None:
    with accelerating() as address, pytest.raises(UsageError) as refused:
        bind(address, what="guests")
    assert refused.value.got == f"127.0.0.1:{address[1]}, Address already in use"


def test_an_address_of_ipv6_is_listened_on() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    with bind(("::1", 0), what="guests") as listener:
        assert listener.family == socket.AF_INET6


def test_an_accelerator_is_a_process_that_ends_with_its_block() -> None:
    with start_accelerator(exact="float64") as there:
        assert there.process != os.getpid()
        assert there.backend == "float64"
        accelerator = RemoteAccelerator(there.host, there.port)
        engine = UnderPads(accelerator)
        engine.admit(MATRIX)
        entries = random_entries(MATRIX, "backward", 2)
        product = engine.product(MATRIX, "backward", entries)
        assert torch.equal(product, Inside().product(MATRIX, "backward", entries))
        accelerator.close()
    with pytest.raises(ProcessLookupError):
        os.kill(there.process, 0)


def test_a_device_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("signal.signal", lambda number, action: None)
    settings = {"device": "cuda:99", "exact": "int8-limb", "threads": 1}
    lines: list[bytes] = []
    run(settings | {"limits": asdict(Limits())}, say=lines.append)
    (line,) = lines
    assert json.loads(line)["refused"].endswith("on cuda:99")


# --- Requests ahead of their answers ------------------------------------------------------------

LARGE = 24 << 20
"""Bytes that no pair of sockets holds by itself."""


@contextmanager
def connected(serve: Callable[[socket.socket], object], **given: Any) -> Iterator[wire.Frames]:
    """A guest's end of a connection, and something at its other end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with listener.accept()[0] as connection, suppress(OSError):
                serve(connection)

        thread = threading.Thread(target=accept)
        thread.start()
        frames = wire.Frames(socket.create_connection(listener.getsockname()), **given)
        try:
            yield frames
        finally:
            frames.close()
            thread.join()


@pytest.mark.claim("C277")
def test_an_answer_that_comes_while_the_next_request_leaves_is_taken_in() -> None:
    told: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        connection.sendall(frame(0x82, b"a" * LARGE) + frame(0x82, b"b" * LARGE))
        with connection.makefile("rb") as asked:  # only now does it read
            for _ in range(2):
                kind, length = struct.unpack(">BI", asked.read(5))
                told.append(bytes([kind]) + asked.read(length)[:1])

    with connected(serve, seconds=60, early=wire.MAX_FRAME) as frames:
        frames.send(wire.PRODUCT, b"1" * LARGE)
        frames.send(wire.PRODUCT, b"2" * LARGE)
        for expected in (b"a", b"b"):
            answered = frames.receive()
            assert answered is not None
            assert (answered[0], bytes(answered[1])) == (0x82, expected * LARGE)
    assert told == [b"\x021", b"\x022"]


@pytest.mark.claim("C277")
def test_what_is_taken_in_meanwhile_has_an_end() -> None:
    sent: list[int] = []

    def serve(connection: socket.socket) -> None:
        while True:  # until the guest leaves
            sent.append(connection.send(bytes(1 << 20)))

    room = 1 << 16
    with (
        connected(serve, seconds=0.5, early=room) as frames,
        pytest.raises(PeerUnreachable),
    ):
        frames.send(wire.PRODUCT, bytes(LARGE))
    assert 0 < sum(sent) < LARGE


@pytest.mark.claim("C277")
def test_who_ends_while_a_request_leaves_is_gone() -> None:
    with (
        connected(
            lambda connection: connection.shutdown(socket.SHUT_WR) or time.sleep(0.5),
            seconds=10,
            early=wire.MAX_FRAME,
        ) as frames,
        pytest.raises(PeerUnreachable),
    ):
        frames.send(wire.PRODUCT, bytes(LARGE))
