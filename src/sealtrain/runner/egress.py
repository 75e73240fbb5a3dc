"""What library code cannot send out while a run holds records in memory.

``confined_to``: an audit hook refuses every connection and name look-up but the broker's. Trackers,
hubs and telemetry fail loudly instead of leaking. ``muted``: whatever a library prints is dropped,
since it may quote a record. Both guard against habits, not against hostile code in the same
process; the boundary against that is the measured deployment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from urllib.parse import urlsplit

from sealtrain.errors import EgressRefused

__all__ = ["confined_to", "muted"]

_allowed: frozenset[tuple[str, int]] | None = None
_hooked = False


@contextmanager
def confined_to(url: str) -> Iterator[None]:
    """Allow connections to ``url``'s host and port and to unix sockets; refuse all others.

    Raises:
        EgressRefused: From within the block, in whatever code tried to reach elsewhere.
    """
    global _allowed, _hooked
    if not _hooked:
        sys.addaudithook(_refuse_egress)
        _hooked = True
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    before = _allowed
    _allowed = frozenset({(host, port), *_addresses(host, port)})
    try:
        yield
    finally:
        _allowed = before


@contextmanager
def muted() -> Iterator[None]:
    """Drop what Python code prints on stdout; stderr stays for the progress bar."""
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        yield


def _addresses(host: str, port: int) -> set[tuple[str, int]]:
    """Numeric addresses of the broker, resolved before the gate closes."""
    import socket

    return {(str(info[4][0]), port) for info in socket.getaddrinfo(host, port)}


def _refuse_egress(event: str, arguments: tuple[object, ...]) -> None:
    if _allowed is None:
        return
    if event in ("socket.connect", "socket.sendto"):
        address = arguments[-1]
        if isinstance(address, (str, bytes)):  # a unix socket
            return
        if isinstance(address, tuple) and (str(address[0]), address[1]) in _allowed:
            return
        raise EgressRefused(
            "a library tried to reach the network from inside the run",
            check="egress",
            got=f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "unknown address",
            expected="the broker only",
            hint="switch the tracker, hub or telemetry off in the recipe",
        )
    if event == "socket.getaddrinfo":
        host = arguments[0]
        name = host.decode() if isinstance(host, bytes) else str(host)
        if name not in {allowed for allowed, _port in _allowed}:
            raise EgressRefused(
                "a library tried to look up a name from inside the run",
                check="egress",
                got=name,
                expected="the broker only",
                hint="switch the tracker, hub or telemetry off in the recipe",
            )
