"""A dstack guest agent of a few lines at a unix socket: it answers what a test says."""

from __future__ import annotations

import json
import socketserver
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from http_server import running as served

from sealtrain.attest.dstack.client import DstackClient

Answer = tuple[int, bytes]


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


@contextmanager
def agent(path: Path, answer: Callable[[str, dict[str, Any]], Answer]) -> Iterator[DstackClient]:
    """A guest agent of a few lines at a socket."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the name is the library's
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            status, data = answer(self.path, json.loads(body))
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def address_string(self) -> str:
            return "guest"

        def log_message(self, *_: object) -> None:
            pass

    with served(_Server(str(path), Handler)):
        yield DstackClient(str(path), timeout=5.0)


def said(value: Any, status: int = 200) -> Answer:
    """An answer in JSON."""
    return status, json.dumps(value).encode()
