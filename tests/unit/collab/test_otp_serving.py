"""Accelerators and dealers as servers: what they refuse, and what a guest makes of broken ones."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import pytest
import torch
from otp_world import Watched, in_thread, random_entries, random_matrix

from sealtrain.collab.otp import wire
from sealtrain.collab.otp.accelerator import RemoteAccelerator
from sealtrain.collab.otp.dealer import RemoteDealer
from sealtrain.collab.otp.engine import Inside, UnderPads
from sealtrain.collab.otp.exact import Float64
from sealtrain.collab.otp.masks import drawn_secret
from sealtrain.collab.otp.pads import Pads
from sealtrain.collab.otp.serving import Limits, Server, run, served
from sealtrain.errors import (
    AcceleratorUnreachable,
    LimitExceeded,
    ProductAltered,
    SealtrainError,
    UsageError,
)

MATRIX = random_matrix()


def asked(port: int, kind: int, body: bytes) -> tuple[int, bytes]:
    """Kind and body of what a server answers to raw bytes."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(struct.pack(">BI", kind, len(body)) + body)
        with connection.makefile("rb") as answer:
            head = answer.read(5)
            if len(head) < 5:
                return 0, b""
            kind, length = struct.unpack(">BI", head)
            return kind, answer.read(length)


PRODUCT = wire.asked_product(MATRIX.digest, "forward", 1)
PADS = wire.asked_pads(MATRIX.digest, "forward", 0, 1)
REFUSED: dict[str, tuple[Any, int, bytes]] = {
    "an unknown kind": ("accelerator", 0x55, b""),
    "pads from an accelerator": ("accelerator", wire.PADS, PADS),
    "a beginning with an accelerator": ("accelerator", wire.BEGIN, bytes(1168)),
    "a product from a dealer": ("dealer", wire.PRODUCT, PRODUCT + bytes(160)),
    "pads before a beginning": ("dealer", wire.PADS, PADS),
    "a secret sealed to nobody": ("dealer", wire.BEGIN, bytes(16 + 1136 + 32)),
    "a beginning without a secret": ("dealer", wire.BEGIN, b""),
    "an unknown matrix": (
        "accelerator",
        wire.PRODUCT,
        wire.asked_product(bytes(32), "forward", 1) + bytes(160),
    ),
    "a cut product": ("accelerator", wire.PRODUCT, PRODUCT[:-1]),
    "too few elements": ("accelerator", wire.PRODUCT, PRODUCT + bytes(156)),
    "no rows": (
        "accelerator",
        wire.PRODUCT,
        wire.asked_product(MATRIX.digest, "forward", 0),
    ),
    "too many rows": (
        "accelerator",
        wire.PRODUCT,
        wire.asked_product(MATRIX.digest, "forward", wire.MAX_ROWS + 1),
    ),
    "a third direction": (
        "accelerator",
        wire.PRODUCT,
        struct.pack(">32sII", MATRIX.digest, 2, 1) + bytes(160),
    ),
    "a matrix without sides": ("accelerator", wire.MATRIX, struct.pack(">II", 0, 0)),
    "a matrix too wide": ("accelerator", wire.MATRIX, struct.pack(">II", 1, 1 << 20)),
    "a matrix cut short": ("accelerator", wire.MATRIX, struct.pack(">II", 8, 8) + bytes(63)),
    "a matrix too much": ("accelerator", wire.MATRIX, struct.pack(">II", 100, 100) + bytes(10_000)),
    "a matrix of nothing": ("accelerator", wire.MATRIX, b""),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_server_refuses_says_so_and_serves_the_next(case: str) -> None:
    role, kind, body = REFUSED[case]
    with in_thread(role, matrix_bytes=4000) as server:
        if role == "accelerator":
            server.keep(MATRIX.values)
        answered, said = asked(server.server_address[1], kind, body)
        assert answered == wire.REFUSED
        assert 0 < len(said) <= wire.MAX_REFUSAL
        assert asked(server.server_address[1], wire.MATRIX, small_matrix())[0] == 0x81


def small_matrix() -> bytes:
    return struct.pack(">II", 2, 2) + bytes([1, 2, 3, 4])


def test_a_frame_longer_than_allowed_is_refused_before_it_is_read() -> None:
    with (
        in_thread("accelerator") as server,
        socket.create_connection(server.server_address, timeout=10) as connection,
    ):
        connection.sendall(struct.pack(">BI", wire.MATRIX, wire.MAX_FRAME + 1))
        assert connection.recv(1) == bytes([wire.REFUSED])


def test_an_answer_longer_than_a_frame_is_not_made() -> None:
    wide = torch.ones(1 << 16, 1, dtype=torch.int8)  # one number in, 65,536 out
    with in_thread("accelerator") as server:
        digest = server.keep(wide)
        rows = wire.MAX_FRAME // (4 << 16) + 1
        body = wire.asked_product(digest, "forward", rows) + bytes(4 * rows)
        answered, said = asked(server.server_address[1], wire.PRODUCT, body)
        assert (answered, b"longer answer" in said) == (wire.REFUSED, True)


def test_what_does_not_fit_a_frame_goes_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = random_entries(MATRIX, "forward", 50)
    with in_thread("accelerator") as server, in_thread("dealer") as dealing:
        assert dealing.key is not None
        accelerator = RemoteAccelerator(*server.server_address)
        dealer = RemoteDealer(*dealing.server_address, key=dealing.key.public)
        engine = UnderPads(accelerator, supplier=dealer)
        engine.admit(MATRIX)
        monkeypatch.setattr(wire, "MAX_FRAME", 7 * 160 + 64)
        kinds = []
        honest = wire.Channel.answer
        monkeypatch.setattr(
            wire.Channel,
            "answer",
            lambda channel, kind: kinds.append(kind) or honest(channel, kind),
        )
        product = engine.product(MATRIX, "forward", entries)
        assert torch.equal(product, Inside().product(MATRIX, "forward", entries))
        assert kinds == [wire.PADS] * 8 + [wire.PRODUCT] * 8
        dealer.close()
        accelerator.close()


def test_no_rows_need_no_product() -> None:
    engine = UnderPads(Watched())
    nothing = torch.zeros(0, 40, dtype=torch.int32)
    assert engine.product(MATRIX, "forward", nothing).shape == (0, 24)
    assert engine.spent.products == 0


def test_a_slow_caller_is_left_and_keeps_nobody_waiting() -> None:
    with in_thread("accelerator", idle_seconds=0.2, frame_seconds=0.2) as server:
        with socket.create_connection(server.server_address, timeout=10) as idle:
            assert idle.recv(1) == b""
        with socket.create_connection(server.server_address, timeout=10) as slow:
            slow.sendall(struct.pack(">BI", wire.MATRIX, 100) + b"x")
            assert slow.recv(1) == b""


def test_one_connection_too_many_is_closed_and_room_comes_back() -> None:
    with in_thread("accelerator", connections=1) as server:
        first = RemoteAccelerator(*server.server_address)
        first.admit(MATRIX)
        assert asked(server.server_address[1], wire.MATRIX, small_matrix())[0] == 0
        first.close()
        until = time.monotonic() + 10
        while asked(server.server_address[1], wire.MATRIX, small_matrix())[0] != 0x81:
            assert time.monotonic() < until
            time.sleep(0.01)


def test_a_dealer_gives_rows_in_order_and_each_once() -> None:
    with in_thread("dealer") as server:
        assert server.key is not None
        dealer = RemoteDealer(*server.server_address, key=server.key.public)
        with pytest.raises(UsageError, match="after a beginning"):
            dealer.product(MATRIX, "forward", 0, torch.zeros(1, 40))
        pads = Pads(drawn_secret(), dealer)
        pads.admit(MATRIX)
        pads.take(MATRIX, "forward", 3).product()
        with pytest.raises(UsageError, match="one beginning"):
            Pads(drawn_secret(), dealer)
        with pytest.raises(AcceleratorUnreachable) as refused:
            dealer.product(MATRIX, "forward", 0, torch.zeros(3, 40))()
        assert refused.value.got == "rows of a stream are given in order, each once"
        dealer.close()


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


BROKEN: dict[str, tuple[bytes, type[SealtrainError]]] = {
    "it goes": (b"", AcceleratorUnreachable),
    "it goes in the middle": (frame(0x82, b"abc", length=9 * 24 * 4), AcceleratorUnreachable),
    "too few rows": (frame(0x82, bytes(8 * 24 * 4)), AcceleratorUnreachable),
    "another kind": (frame(0x81, bytes(32)), AcceleratorUnreachable),
    "a frame without end": (frame(0x82, length=wire.MAX_FRAME + 1), LimitExceeded),
    "a refusal": (frame(wire.REFUSED, b"no \x1b[31mroom\xff" + b"x" * 900), AcceleratorUnreachable),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_answer_is_no_answer(case: str) -> None:
    raw, error = BROKEN[case]
    with answering(lambda connection: connection.sendall(raw)) as client:
        with pytest.raises(error) as refused:
            client.product(MATRIX, "forward", random_entries(MATRIX, "forward"))()
        if case == "a refusal":
            assert refused.value.got == "no ?[31mroom\ufffd" + "x" * 187
            assert refused.value.got.isprintable()


def test_who_never_answers_is_not_waited_for() -> None:
    release = threading.Event()
    with answering(lambda connection: release.wait(10)) as client:
        begin = time.monotonic()
        with pytest.raises(AcceleratorUnreachable, match="in time"):
            client.product(MATRIX, "forward", random_entries(MATRIX, "forward"))()
        assert time.monotonic() - begin < 5
        release.set()


def test_who_takes_a_matrix_for_another_is_refused() -> None:
    with (
        answering(lambda connection: connection.sendall(frame(0x81, bytes(32)))) as client,
        pytest.raises(ProductAltered, match="another one"),
    ):
        client.admit(MATRIX)


def test_where_nothing_listens_it_is_said_where() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(AcceleratorUnreachable) as refused:
        RemoteAccelerator("127.0.0.1", port)
    assert refused.value.got == f"127.0.0.1:{port}"


# --- As a process -------------------------------------------------------------------------------


def test_where_something_listens_already_it_is_said() -> None:
    with in_thread("accelerator") as server, pytest.raises(UsageError, match="cannot listen"):
        Server(
            "dealer",
            device="cpu",
            exact="float64",
            limits=Limits(),
            port=server.server_address[1],
        )


def test_a_dealer_is_a_process_that_ends_with_its_block() -> None:
    with served("dealer", exact="float64") as there:
        assert there.process != os.getpid()
        assert there.key is not None
        dealer = RemoteDealer(there.host, there.port, key=there.key)
        pads = Pads(drawn_secret(), dealer)
        pads.admit(MATRIX)
        pad = pads.take(MATRIX, "backward", 2)
        assert torch.equal(pad.product(), Float64().product(pad.mask, MATRIX.factor("backward")))
        dealer.close()
    with pytest.raises(ProcessLookupError):
        os.kill(there.process, 0)


def test_a_device_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("signal.signal", lambda number, action: None)
    settings = {"role": "accelerator", "device": "cuda:99", "exact": "int8-limb", "threads": 1}
    lines: list[bytes] = []
    run(settings | {"limits": asdict(Limits())}, say=lines.append, lifeline=0)
    (line,) = lines
    assert json.loads(line)["refused"].endswith("on cuda:99")
