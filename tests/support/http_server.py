"""Handlers of requests as servers on this machine."""

from __future__ import annotations

import socketserver
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

STOP_SECONDS = 20


class Handler(BaseHTTPRequestHandler):
    """Says nothing of its own, answers in one call, and waits for no client for ever."""

    timeout = 60

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        """Answer the request; underscores in names of headers stand for hyphens."""
        self.begin(status, body, **headers)
        self.wfile.write(body)

    def begin(self, status: int, body: bytes, **headers: str) -> None:
        """Answer all but the body."""
        self.send_response(status)
        for name, value in {"content_length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def body(self) -> bytes:
        """What was sent with the request."""
        return self.rfile.read(int(self.headers["content-length"]))

    def log_message(self, *_: Any) -> None:
        return


class Server(ThreadingHTTPServer):
    """One thread for each connection; a client that hangs up is no error of the server."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError | ssl.SSLError):
            super().handle_error(request, client_address)


@contextmanager
def running(server: socketserver.BaseServer) -> Iterator[None]:
    """Serve in a thread; a server that does not stop is an error, and is not waited for."""
    serving = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    )
    serving.start()
    try:
        yield
    finally:
        threading.Thread(target=server.shutdown, daemon=True).start()
        serving.join(STOP_SECONDS)
        server.server_close()
        assert not serving.is_alive(), "the server does not stop"


@contextmanager
def http_served(
    handler: type[BaseHTTPRequestHandler], certificate: Path | None = None
) -> Iterator[str]:
    """The URL of a server that handles requests so, over TLS where there is a certificate."""
    server = Server(("127.0.0.1", 0), handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        # The handshake waits for the client: in its own thread, so that others are accepted.
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    with running(server):
        yield f"http://127.0.0.1:{server.server_address[1]}"
