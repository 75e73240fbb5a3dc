"""Handlers of requests as servers on this machine."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """Says nothing of its own, and answers in one call."""

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


@contextmanager
def http_served(
    handler: type[BaseHTTPRequestHandler], certificate: Path | None = None
) -> Iterator[str]:
    """The URL of a server that handles requests so, over TLS where there is a certificate."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
