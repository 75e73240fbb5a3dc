"""Library code inside a run reaches the broker and nothing else, writes nowhere, starts nothing."""

from __future__ import annotations

import itertools
import os
import pty
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from carrying import carries

from sealtrain.errors import EgressRefused
from sealtrain.guest.sandbox.network import confine_to
from sealtrain.guest.sandbox.programs import ProgramRefused

pytestmark = pytest.mark.claim("C36")
NOBODY = "http://127.0.0.1:1"


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
        confine_to(f"http://127.0.0.1:{listener}"),
        socket.create_connection(("127.0.0.1", listener), timeout=5) as connection,
    ):
        assert connection.getpeername()[1] == listener


def test_another_port_is_refused(listener: int) -> None:
    with (
        confine_to(NOBODY),
        socket.socket() as stream,
        pytest.raises(EgressRefused, check=carries(check="egress", expected="the broker only")),
    ):
        stream.connect(("127.0.0.1", listener))


def test_a_broker_that_moved_is_reached_by_its_name(
    listener: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, real = ["127.0.0.2"], socket.getaddrinfo

    def moving(host: str, *words: Any, **named: Any) -> Any:
        if host != "broker.invalid":
            return real(host, *words, **named)
        sys.audit("socket.getaddrinfo", host, *words)
        return real(found[0], *words, **named)

    monkeypatch.setattr(socket, "getaddrinfo", moving)
    with confine_to(f"http://broker.invalid:{listener}"):
        with socket.socket() as stream, pytest.raises(EgressRefused):
            stream.connect(("127.0.0.1", listener))
        found[0] = "127.0.0.1"
        socket.create_connection(("broker.invalid", listener), timeout=5).close()
        with pytest.raises(EgressRefused):
            socket.getaddrinfo("tracker.invalid", listener)


def test_a_store_with_another_address_at_each_look_up_is_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    addresses = itertools.cycle(["127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"])
    real = socket.getaddrinfo

    def rotating(host: str, *words: Any, **named: Any) -> Any:
        if host != "store.invalid":
            return real(host, *words, **named)
        sys.audit("socket.getaddrinfo", host, *words)
        return real(next(addresses), *words, **named)

    monkeypatch.setattr(socket, "getaddrinfo", rotating)
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        with confine_to(f"http://store.invalid:{port}"):
            for _ in range(6):
                socket.create_connection(("store.invalid", port), timeout=5).close()
            # Under another port, or under an address nobody was told, nothing is reached.
            for place in (("127.0.0.3", port + 1), ("127.0.0.9", port)):
                with socket.socket() as stream, pytest.raises(EgressRefused):
                    stream.connect(place)
            with pytest.raises(EgressRefused):
                socket.getaddrinfo("store.invalid.tracker.invalid", port)
    assert socket.getaddrinfo is rotating


def test_a_connection_that_only_reports_a_code_is_refused_too(listener: int) -> None:
    with confine_to(NOBODY), socket.socket() as stream, pytest.raises(EgressRefused):
        stream.connect_ex(("127.0.0.1", listener))


def test_the_broker_written_as_an_ipv6_address_is_the_broker(listener: int) -> None:
    mapped = ("::ffff:127.0.0.1", listener, 0, 0)
    with socket.socket(socket.AF_INET6) as stream:
        with confine_to(NOBODY), pytest.raises(EgressRefused):
            stream.connect(mapped)
        with confine_to(f"http://127.0.0.1:{listener}"):
            stream.connect(mapped)


@pytest.mark.parametrize(
    "look_up",
    [
        lambda name: socket.getaddrinfo(name, 443),
        socket.gethostbyname,
        socket.gethostbyname_ex,
        socket.gethostbyaddr,
        lambda _name: socket.getnameinfo(("192.0.2.1", 80), 0),
        lambda _name: socket.gethostbyaddr("192.0.2.1"),
    ],
    ids=["getaddrinfo", "byname", "byname_ex", "byaddr", "nameinfo", "reverse"],
)
def test_a_name_look_up_is_refused(look_up: Callable[[str], Any]) -> None:
    # Look-ups alone carry data out: records can be spelled as host names.
    with (
        confine_to(NOBODY),
        pytest.raises(EgressRefused, check=carries(check="egress", expected="the broker only")),
    ):
        look_up("secret-record.tracker.invalid")


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_datagram_is_refused(family: socket.AddressFamily, listener: int) -> None:
    place = ("127.0.0.1", listener) if family == socket.AF_INET else ("::1", listener, 0, 0)
    with confine_to(NOBODY), socket.socket(family, socket.SOCK_DGRAM) as datagrams:
        with pytest.raises(EgressRefused):
            datagrams.sendto(b"record", place)
        with pytest.raises(EgressRefused):
            datagrams.sendmsg([b"record"], [], 0, place)
        with pytest.raises(EgressRefused):
            datagrams.connect(place)


def test_a_raw_socket_is_refused() -> None:
    with (
        confine_to(NOBODY),
        pytest.raises(EgressRefused, check=carries(check="egress", got="a raw socket")),
    ):
        socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)


def test_no_port_is_opened() -> None:
    with confine_to(NOBODY, unix=()):
        for family, place in ((socket.AF_INET, ("127.0.0.1", 0)), (socket.AF_INET6, ("::1", 0))):
            with (
                socket.socket(family) as server,
                pytest.raises(EgressRefused, check=carries(check="egress", got="a port")),
            ):
                server.bind(place)
        with (
            socket.socket(socket.AF_UNIX) as server,
            pytest.raises(EgressRefused, check=carries(check="egress", got="a port")),
        ):
            server.bind(b"\0abstract")


def test_another_service_behind_a_unix_socket_is_refused(tmp_path: Path) -> None:
    paths = [tmp_path / "guest.sock", tmp_path / "other.sock"]
    servers = [socket.socket(socket.AF_UNIX) for _ in paths]
    for server, path in zip(servers, paths, strict=True):
        server.bind(str(path))
        server.listen()
    with confine_to(NOBODY, unix=[paths[0]]):
        with socket.socket(socket.AF_UNIX) as stream:
            stream.connect(str(paths[0]))
        with socket.socket(socket.AF_UNIX) as stream, pytest.raises(EgressRefused):
            stream.connect(str(paths[1]))
        with socket.socket(socket.AF_UNIX) as stream, pytest.raises(EgressRefused):
            stream.connect(b"\0abstract")
    for server in servers:
        server.close()


def test_syslog_is_refused() -> None:
    import syslog

    with confine_to(NOBODY), pytest.raises(EgressRefused):
        syslog.syslog("a record")


@pytest.mark.parametrize(
    ("start", "program"),
    [
        (lambda: subprocess.run(["true", "a record"], check=False), shutil.which("true")),
        (lambda: os.system("true a record"), "/bin/sh"),  # noqa: S605
        (lambda: os.posix_spawn("/bin/true", ["true", "a record"], {}), "/bin/true"),
        (lambda: os.execv("/bin/true", ["true", "a record"]), "/bin/true"),  # noqa: S606
        (lambda: os.popen("true a record"), "/bin/sh"),  # noqa: S605
        (lambda: pty.spawn(["true", "a record"]), shutil.which("true")),
    ],
    ids=["subprocess", "system", "posix_spawn", "exec", "popen", "pty"],
)
def test_another_program_is_not_started(start: Callable[[], Any], program: str) -> None:
    # It would not carry the hook.
    noted: list[str] = []
    with confine_to(NOBODY, noted=noted.append), pytest.raises(ProgramRefused) as refused:
        start()
    assert refused.value.program == program
    assert noted == ["program.refused"]


def test_a_forked_child_is_confined_as_its_parent(listener: int) -> None:
    with confine_to(NOBODY):
        child = os.fork()
        if child == 0:
            try:
                socket.socket().connect(("127.0.0.1", listener))
            except EgressRefused:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_files_are_written_below_the_named_folder_only(tmp_path: Path) -> None:
    inside, outside = tmp_path / "run", tmp_path / "cache"
    for folder in (inside, outside):
        folder.mkdir()
    (inside / "way-out").symlink_to(outside)
    noted: list[str] = []
    with confine_to(NOBODY, writable=[inside], noted=noted.append):
        (inside / "checkpoint").write_bytes(b"sealed")
        Path(os.devnull).write_bytes(b"x")
        for place in (outside / "a", inside / ".." / "cache" / "b", inside / "way-out" / "c"):
            with pytest.raises(PermissionError):
                place.write_bytes(b"record")
        with pytest.raises(PermissionError):
            os.open(outside / "d", os.O_RDWR | os.O_CREAT)
        with pytest.raises(PermissionError):
            sqlite3.connect(outside / "tracker.db")
        sqlite3.connect(":memory:").close()
    assert list(outside.iterdir()) == []
    assert noted == ["file.refused"] * 5
    (outside / "afterwards").write_bytes(b"free again")


def test_the_gate_opens_again_after_the_run(listener: int) -> None:
    with confine_to(NOBODY):
        pass
    socket.create_connection(("127.0.0.1", listener), timeout=5).close()
