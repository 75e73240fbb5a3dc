"""Messages over a pipe whose other end may stop in the middle of one."""

from __future__ import annotations

import multiprocessing
import os
import struct
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest

from sealtrain.base.pipes import Messages


class Ends:
    def __init__(self) -> None:
        self.here, self.there = multiprocessing.Pipe()
        self.now = 0.0
        self.messages = Messages(self.here, 100, seconds=10.0, monotonic=lambda: self.now)

    def write(self, data: bytes) -> None:
        os.write(self.there.fileno(), data)


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.here.close()
    made.there.close()


def test_whole_messages_come_one_after_the_other(ends: Ends) -> None:
    for message in (b"first", b"", b"x" * 100):
        ends.there.send_bytes(message)
    assert [ends.messages.take() for _ in range(4)] == [b"first", b"", b"x" * 100, None]


def test_a_message_that_comes_byte_by_byte_is_whole_in_the_end(ends: Ends) -> None:
    for byte in struct.pack("!i", 3) + b"ab":
        ends.write(bytes([byte]))
        assert ends.messages.take() is None
    ends.write(b"c")
    assert ends.messages.take() == b"abc"


@pytest.mark.parametrize("begun", [b"\0", struct.pack("!i", 8), struct.pack("!i", 8) + b"1234"])
def test_a_message_has_so_many_seconds_however_its_bytes_are_spread(
    ends: Ends, begun: bytes
) -> None:
    assert ends.messages.take() is None
    ends.now = 100.0  # nothing has begun
    ends.write(begun)
    assert ends.messages.take() is None
    ends.now = 110.0
    assert ends.messages.take() is None
    ends.write(b"\0")
    ends.now = 110.1
    with pytest.raises(TimeoutError):
        ends.messages.take()


@pytest.mark.parametrize("length", [101, -1, -2, (1 << 31) - 1, -(1 << 31)])
def test_a_length_that_no_message_has_is_refused_before_there_is_memory(
    ends: Ends, length: int
) -> None:
    ends.write(struct.pack("!i", length))
    with pytest.raises(OSError):
        ends.messages.take()


@pytest.mark.parametrize("begun", [b"", b"\0", struct.pack("!i", 8) + b"1"])
def test_an_end_is_an_end_wherever_it_comes(begun: bytes) -> None:
    here, there = multiprocessing.Pipe(duplex=False)
    messages = Messages(here, 100, seconds=10.0)
    os.write(there.fileno(), begun)
    there.close()
    with pytest.raises(EOFError):
        messages.take()
    here.close()


def test_an_end_whose_reader_does_not_read_does_not_block_the_sender(ends: Ends) -> None:
    def send(connection: Connection) -> None:
        for _ in range(1 << 20):
            connection.send_bytes(bytes(8))

    with pytest.raises(BlockingIOError):
        send(ends.here)
