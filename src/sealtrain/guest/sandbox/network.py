"""Network confinement of library code while a run holds records in memory.

``confine_to``: an audit hook refuses every connection, datagram and name look-up but the broker's,
and listening ports. Trackers, hubs and telemetry fail loudly instead of leaking. The run may look a
named host up again at any time and reach it under the addresses of the answer: large stores give
new addresses at each look-up. ``sandbox.files`` judges files and ``sandbox.programs`` programs,
through the same hook. A process may fork, as the loader does: the child keeps the hook. Native code
does not pass an audit hook; ``sandbox.landlock`` and ``sandbox.seccomp`` bind that too.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sealtrain.errors import EgressRefused
from sealtrain.guest.sandbox.files import PLACES, PlaceRefused
from sealtrain.guest.sandbox.programs import (
    NONE,
    ProgramRefused,
    Programs,
    answer_programs,
    find_program,
    is_told,
)

_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)
_KINDS = (socket.SOCK_STREAM, socket.SOCK_DGRAM)
_SHELL = "/bin/sh"
_BY_FOLDER = "/proc/self/fd/"
_PROTOCOLS = (0, socket.IPPROTO_TCP, socket.IPPROTO_UDP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Borders:
    """The connections, files and programs that stay possible.

    Attributes:
        reachable: Hosts (by name and by number) and ports.
        unix: Paths of unix sockets that may be connected to; ``None`` for any.
        writable: Folders whose files may be written; ``None`` for any.
        programs: The stand-ins for programs that libraries start.
        resolved: Further addresses of those hosts, from later look-ups.
    """

    reachable: frozenset[tuple[str, int]]
    unix: frozenset[str] | None = None
    writable: tuple[Path, ...] | None = None
    programs: Programs = NONE
    resolved: set[tuple[str, int]] = field(default_factory=set)


_borders: Borders | None = None
_noted: Callable[[str], None] | None = None
_hooked = False
_resolving = threading.local()


@contextmanager
def confine_to(
    *urls: str,
    unix: Iterable[Path] | None = None,
    writable: Iterable[Path] | None = None,
    programs: Programs = NONE,
    noted: Callable[[str], None] | None = None,
) -> Iterator[Borders]:
    """Allow connections to the hosts and ports of ``urls``; refuse all others.

    Args:
        urls: Broker first; then the other services that the recipe names.
        unix: Unix sockets that may be connected to, any when ``None``.
        writable: Folders to write in, anywhere when ``None``.
        programs: See ``Borders``.
        noted: Called with the event name of each refusal, for counting.

    Raises:
        EgressRefused: From within the block, in the code that tried to reach elsewhere.
        PlaceRefused: From within the block, on making, changing or removing a file elsewhere.
        ProgramRefused: From within the block, on starting a program. Both are ``PermissionError``,
            so that libraries that only probe go on.
    """
    global _borders, _noted, _hooked
    borders = Borders(
        reachable=frozenset(pair for url in urls for pair in _numbers(url)),
        unix=None
        if unix is None
        else frozenset(name for path in unix for name in (str(path), os.path.realpath(path))),
        writable=None if writable is None else tuple(path.resolve() for path in writable),
        programs=programs,
    )
    if not _hooked:
        sys.addaudithook(_watch)
        _hooked = True
    before = _borders, _noted, sys.dont_write_bytecode, socket.getaddrinfo
    _borders, _noted = borders, noted
    sys.dont_write_bytecode = sys.dont_write_bytecode or writable is not None
    socket.getaddrinfo = _remember_addresses(borders, socket.getaddrinfo)
    try:
        with answer_programs(programs, lambda: _note("program.refused")):
            yield borders
    finally:
        _borders, _noted, sys.dont_write_bytecode, socket.getaddrinfo = before


def program_to_name(error: ProgramRefused) -> str | None:
    """Path of a refused program, if it may leave the run: if no script made it up."""
    writable = () if _borders is None else _borders.writable or ()
    return error.program if is_told(error.program, writable) else None


def address_of(url: str) -> tuple[str, int]:
    """Host and port that a URL leads to."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _numbers(url: str) -> set[tuple[str, int]]:
    """Name and numeric addresses, resolved before the sandbox closes."""
    host, port = address_of(url)
    return {(host, port), *_numbers_of(host, port)}


def _numbers_of(host: str, port: int) -> set[tuple[str, int]]:
    try:
        found = socket.getaddrinfo(host, port)
    except OSError:  # connecting reports it
        return set()
    return {(_plain(str(info[4][0])), port) for info in found}


def _remember_addresses(borders: Borders, real: Callable[..., Any]) -> Callable[..., Any]:
    """``getaddrinfo`` that also makes the addresses of its answer for an allowed host reachable."""

    def look_up(host: Any, port: Any, *words: Any, **named: Any) -> Any:
        name = os.fsdecode(host) if isinstance(host, (str, bytes)) else ""
        ports = [allowed for known, allowed in borders.reachable if known == name]
        before, _resolving.now = getattr(_resolving, "now", False), bool(ports)
        try:
            found = real(host, port, *words, **named)
        finally:
            _resolving.now = before
        for info in found if ports else ():
            borders.resolved.update((_plain(str(info[4][0])), allowed) for allowed in ports)
        return found

    return look_up


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if _borders is None:
        return
    check = _CHECKS.get(event)
    if check is not None:
        check(_borders, event, arguments)
    place = PLACES.get(event)
    if place is not None and _borders.writable is not None:
        try:
            place(_borders.writable, arguments)
        except PlaceRefused:
            _note("file.refused")
            raise


def _note(event: str) -> None:
    if _noted is not None:
        _noted(event)


def _refuse(event: str, what: str, got: str) -> EgressRefused:
    _note(event)
    return EgressRefused(
        what,
        check="egress",
        got=got,
        expected="the broker only",
        hint="switch the tracker, hub or telemetry off in the recipe",
    )


def _connecting(borders: Borders, _event: str, arguments: tuple[Any, ...]) -> None:
    place = arguments[-1]
    if place is None:  # a datagram socket that was connected, and checked then
        return
    if isinstance(place, (str, bytes)):
        name = os.fsdecode(place)
        if name.startswith(_BY_FOLDER):  # a path that is too long for the kernel (``base.http``)
            name = os.path.realpath(name)
        if borders.unix is None or name in borders.unix:
            return
        raise _refuse("network.refused", "a library tried to reach another service", "unix socket")
    if isinstance(place, tuple):
        wanted = (_plain(str(place[0])), place[1])
        if wanted in borders.reachable or wanted in borders.resolved:
            return
    raise _refuse(
        "network.refused",
        "a library tried to reach the network from inside the run",
        f"{place[0]}:{place[1]}" if isinstance(place, tuple) else "unknown address",
    )


def _looking_up(borders: Borders, _event: str, arguments: tuple[Any, ...]) -> None:
    host = arguments[0]
    if isinstance(host, tuple):  # getnameinfo
        host = host[0]
    name = host.decode("ascii", "replace") if isinstance(host, bytes) else str(host)
    if host is None or is_number(name):  # needs no name server
        return
    ports = [port for allowed, port in borders.reachable if allowed == name]
    if not ports:
        raise _refuse(
            "network.refused", "a library tried to look up a name from inside the run", name
        )
    # Only the answers of ``getaddrinfo`` are seen here: for other calls, look the name up as well.
    if not getattr(_resolving, "now", False):
        _resolving.now = True
        try:
            for port in ports:
                borders.resolved.update(_numbers_of(name, port))
        finally:
            _resolving.now = False


def _asking_for_a_name(borders: Borders, event: str, arguments: tuple[Any, ...]) -> None:
    host = str(arguments[0][0] if isinstance(arguments[0], tuple) else arguments[0])
    if host not in {allowed for allowed, _port in borders.reachable}:
        raise _refuse(
            "network.refused", "a library tried to look up a name from inside the run", host
        )


def _listening(borders: Borders, _event: str, arguments: tuple[Any, ...]) -> None:
    place = arguments[-1]
    if not isinstance(place, tuple) and borders.unix is None:
        return
    raise _refuse("network.refused", "a library tried to open a port inside the run", "a port")


def _making_a_socket(_borders: Borders, _event: str, arguments: tuple[Any, ...]) -> None:
    _self, family, kind, protocol = arguments
    if kind == -1:  # from a descriptor that exists
        return
    plain = int(kind) & ~(socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    if family not in _FAMILIES or plain not in _KINDS or protocol not in _PROTOCOLS:
        raise _refuse("network.refused", "a library tried to make a raw socket", "a raw socket")


def _starting(borders: Borders, event: str, arguments: tuple[Any, ...]) -> None:
    programs, variables = NONE, None
    name: Any = _SHELL
    words: Any = ()
    if event == "subprocess.Popen":  # ``answer_programs`` stands in for that only
        programs, (name, words, _folder, variables) = borders.programs, arguments
    elif event in ("os.exec", "os.posix_spawn"):
        name = arguments[0]
    elif event == "pty.spawn":
        name = arguments[0][0]
    elif event == "os.forkpty":
        name = sys.executable
    program = find_program(os.fsdecode(name), variables)
    if program is None:  # Python itself reports it
        return
    try:
        programs.judge(program, tuple(os.fsdecode(word) for word in words))
    except ProgramRefused:
        _note("program.refused")
        raise


def _never(_borders: Borders, event: str, _arguments: tuple[Any, ...]) -> None:
    raise _refuse("program.refused", "a library tried to leave the run", event)


def _plain(host: str) -> str:
    """The IPv4 address inside an IPv6 one that maps it; else ``host``."""
    try:
        number = ipaddress.ip_address(host)
    except ValueError:
        return host
    mapped = getattr(number, "ipv4_mapped", None)
    return str(number if mapped is None else mapped)


def is_number(host: str) -> bool:
    """Whether a host is written as an address, so that reaching it needs no look-up."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


_CHECKS: dict[str, Callable[[Borders, str, tuple[Any, ...]], None]] = {
    "socket.connect": _connecting,
    "socket.sendto": _connecting,
    "socket.sendmsg": _connecting,
    "socket.getaddrinfo": _looking_up,
    "socket.gethostbyname": _looking_up,
    "socket.gethostbyaddr": _asking_for_a_name,
    "socket.getnameinfo": _asking_for_a_name,
    "socket.bind": _listening,
    "socket.__new__": _making_a_socket,
    "subprocess.Popen": _starting,
    "os.exec": _starting,
    "os.forkpty": _starting,
    "os.posix_spawn": _starting,
    "os.spawn": _starting,
    "os.system": _starting,
    "pty.spawn": _starting,
    "syslog.openlog": _never,
    "syslog.syslog": _never,
    "webbrowser.open": _never,
    "builtins.breakpoint": _never,
    "builtins.input": _never,
    "cpython.run_interactivehook": _never,
    "cpython.remote_debugger_script": _never,
}
