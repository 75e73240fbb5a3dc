"""One who kept a recording of a connection, and says it again on another one."""

from __future__ import annotations

import json
import socket
import struct
from contextlib import suppress

SECONDS = 30.0


def answered(address: tuple[str, int], said: bytes) -> bytes:
    """Everything that is answered to one who says this, until the other end closes."""
    heard = b""
    with (
        suppress(ConnectionError),
        socket.create_connection(address, timeout=SECONDS) as connection,
    ):
        connection.sendall(said)
        with suppress(OSError):  # it has closed the connection already
            connection.shutdown(socket.SHUT_WR)
        while data := connection.recv(1 << 16):
            heard += data
    return heard


def expect_only_a_handshake(heard: bytes) -> None:
    """It answered a hello, and nothing behind it: not even that it is ready."""
    if heard:
        (size,) = struct.unpack_from(">I", heard)
        assert len(heard) == 4 + size
        assert set(json.loads(heard[4:])) == {"nonce", "proof", "public_key", "sealed", "version"}
