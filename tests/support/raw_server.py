"""A server at the level of bytes: it answers each request with whatever a test sends."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

Serve = Callable[[socket.socket, int], None]


@contextmanager
def server(
    serve: Serve, unix: Path | None = None, certificate: Path | None = None
) -> Iterator[tuple[str, list[bytes]]]:
    """A server that hands each connection, and its number, to ``serve``; URL and heads received."""
    secured = None
    if certificate is not None:
        secured = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        secured.load_cert_chain(certificate)
    if unix is None:
        listener = socket.create_server(("127.0.0.1", 0))
        scheme = "http://127.0.0.1" if secured is None else "https://localhost"
        url = f"{scheme}:{listener.getsockname()[1]}"
    else:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(unix))
        listener.listen()
        url = "http://guest"
    heads: list[bytes] = []

    def handle(connection: socket.socket, number: int) -> None:
        with suppress(OSError), connection:
            if secured is None:
                answer(connection, number)
            else:
                with secured.wrap_socket(connection, server_side=True) as inside:
                    answer(inside, number)

    def answer(connection: socket.socket, number: int) -> None:
        while head := head_of(connection):
            heads.append(head)
            serve(connection, number)

    def accept() -> None:
        number = 0
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=handle, args=(connection, number), daemon=True).start()
            number += 1

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield url, heads
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def head_of(connection: socket.socket) -> bytes:
    """One request, body included."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            return b""
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [
        int(line.split(b":")[1])
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"content-length")
    ]
    while lengths and len(body) < lengths[0]:
        more = connection.recv(65536)
        if not more:
            return b""
        body += more
    return head + b"\r\n\r\n" + body


def says(status: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body
