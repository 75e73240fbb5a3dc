"""A store for the sealed outputs of a rehearsal: files of one folder by GET, PUT and DELETE.

It serves loopback, checks no credentials and is for data that may be shown. What guests put
there is sealed, and clients take nothing from it that a broker's ledger does not name.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from sealtrain.base.files import atomic_write

MAX_FILE_BYTES: Final = 4 << 30
_RANGE: Final = re.compile(r"bytes=([0-9]{1,15})-([0-9]{1,15})")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_SILENT_SECONDS: Final = 60


@contextmanager
def store_served(folder: Path) -> Iterator[str]:
    """The URL of a store whose files lie in a folder, for as long as the block lasts.

    Args:
        folder: Made where it is missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handler = type("Stored", (_Handler,), {"folder": folder})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        serving.join()


class _Handler(BaseHTTPRequestHandler):
    folder: Path
    timeout = _SILENT_SECONDS
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:  # http.server's name
        path = self._place()
        if path is None or not path.is_file():
            self._answer(404)
            return
        size = path.stat().st_size
        asked = _RANGE.fullmatch(self.headers.get("Range", ""))
        if asked is None:
            self._answer(200, path.read_bytes())
            return
        first, last = int(asked[1]), min(int(asked[2]), size - 1)
        if first > last:
            self._answer(416, content_range=f"bytes */{size}")
            return
        with path.open("rb") as file:
            file.seek(first)
            self._answer(206, file.read(last + 1 - first), f"bytes {first}-{last}/{size}")

    def do_PUT(self) -> None:  # http.server's name
        path, length = self._place(), self.headers.get("Content-Length", "")
        if path is None or not length.isdecimal() or int(length) > MAX_FILE_BYTES:
            self.close_connection = True
            self._answer(400)
            return
        data = self.rfile.read(int(length))
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, data, overwrite=True)
        self._answer(201)

    def do_DELETE(self) -> None:  # http.server's name
        path = self._place()
        if path is None or not path.is_file():
            self._answer(404)
            return
        path.unlink()
        self._answer(204)

    def log_message(self, *_: Any) -> None:
        return

    def _place(self) -> Path | None:
        """The file that is asked for; ``None`` for a path that leads elsewhere."""
        names = unquote(urlsplit(self.path).path).strip("/").split("/")
        if not all(_NAME.fullmatch(name) for name in names):
            return None
        return self.folder.joinpath(*names)

    def _answer(self, status: int, body: bytes = b"", content_range: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if content_range is not None:
            self.send_header("Content-Range", content_range)
        self.end_headers()
        self.wfile.write(body)
