"""Library code inside a run reaches the broker and nothing else, and prints into the void."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from sealtrain.errors import EgressRefused
from sealtrain.runner.egress import confined_to, muted


@pytest.fixture
def listener() -> Iterator[int]:
    """A port on loopback that accepts and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(5)

        def accept() -> None:
            try:
                while True:
                    server.accept()[0].close()
            except OSError:
                return

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield server.getsockname()[1]


def test_the_broker_is_reached(listener: int) -> None:
    with (
        confined_to(f"http://127.0.0.1:{listener}"),
        socket.create_connection(("127.0.0.1", listener), timeout=5) as connection,
    ):
        assert connection.getpeername()[1] == listener


def test_another_port_is_refused(listener: int) -> None:
    with (
        confined_to("http://127.0.0.1:1"),
        socket.socket() as stream,
        pytest.raises(EgressRefused, match="network"),
    ):
        stream.connect(("127.0.0.1", listener))


def test_a_name_look_up_is_refused() -> None:
    # Look-ups alone carry data out: records can be spelled as host names.
    with confined_to("http://127.0.0.1:1"), pytest.raises(EgressRefused, match="look up"):
        socket.getaddrinfo("secret-record.tracker.invalid", 443)


def test_a_datagram_is_refused(listener: int) -> None:
    with (
        confined_to("http://127.0.0.1:1"),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
        pytest.raises(EgressRefused),
    ):
        datagrams.sendto(b"record", ("127.0.0.1", listener))


def test_the_gate_opens_again_after_the_run(listener: int) -> None:
    with confined_to("http://127.0.0.1:1"):
        pass
    socket.create_connection(("127.0.0.1", listener), timeout=5).close()


def test_what_a_library_prints_is_dropped(capfd: pytest.CaptureFixture[str]) -> None:
    with muted():
        print("a record")
    print("after")
    assert capfd.readouterr().out == "after\n"
