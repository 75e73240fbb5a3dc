"""An enclave gets its ticket from its parent: whole, from nobody else, and not for ever."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sealtrain.client.errors import TicketInvalid
from sealtrain.client.parentticket import PARENT, receive_from_sender
from sealtrain.client.ticket import MAX_TICKET_BYTES, load_ticket, parse_ticket

TICKET = b'{"version": 1, "role": "broker", "public_urls": ["https://broker.example"]}'


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        made.bind(str(tmp_path / "s"))
        made.listen()
        yield made


def sending(listener: socket.socket, *acts: Callable[[socket.socket], None]) -> threading.Thread:
    """One connection after another, each with what it does."""

    def run() -> None:
        for act in acts:
            # The receiver may close a refused connection before it was sent to.
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line, suppress(OSError):
                line.settimeout(30)
                line.connect(listener.getsockname())
                act(line)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def whole(line: socket.socket) -> None:
    for at in range(0, len(TICKET), 7):  # as a stream may deliver it
        line.sendall(TICKET[at : at + 7])


def silent(_: socket.socket) -> None:
    """Connects and hangs up."""


def stalling(line: socket.socket) -> None:
    line.sendall(TICKET[:9])
    while line.recv(1):
        pass


def test_a_ticket_comes_whole_after_those_who_send_none(listener: socket.socket) -> None:
    thread = sending(listener, silent, stalling, whole)
    data = receive_from_sender(
        listener, MAX_TICKET_BYTES, is_sender=lambda _: True, within=30, sends_within=0.3
    )
    thread.join(10)
    assert parse_ticket(data).public_urls == ("https://broker.example",)


def test_nobody_but_the_parent_sends_a_ticket(listener: socket.socket) -> None:
    thread = sending(listener, whole, whole)
    peers = iter([(4, 1000), (PARENT, 1000)])
    took = []

    def is_parent(_: object) -> bool:
        took.append(next(peers))
        return took[-1][0] == PARENT

    assert receive_from_sender(listener, MAX_TICKET_BYTES, is_sender=is_parent, within=30) == TICKET
    thread.join(10)
    assert len(took) == 2


def test_a_ticket_without_end_is_cut_and_refused(listener: socket.socket) -> None:
    thread = sending(listener, lambda line: line.sendall(b" " * 101))
    data = receive_from_sender(listener, 100, is_sender=lambda _: True, within=30)
    thread.join(10)
    assert len(data) == 101
    with pytest.raises(TicketInvalid):
        parse_ticket(b" " * (MAX_TICKET_BYTES + 1))


def test_without_a_ticket_the_guest_ends(listener: socket.socket) -> None:
    with pytest.raises(TicketInvalid):
        receive_from_sender(listener, MAX_TICKET_BYTES, is_sender=lambda _: True, within=0.2)


@pytest.mark.parametrize(
    "place", ["vsock:0", "vsock:", "vsock:-1", "vsock:8475x", "vsock:4294967296"]
)
def test_what_is_no_vsock_port_is_a_file_that_is_not_there(place: str) -> None:
    with pytest.raises(TicketInvalid):
        load_ticket(place)
