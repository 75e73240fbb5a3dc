"""Real servers on this machine that serve sealed folders, well or badly."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Any

from http_server import Handler, http_served

from sealtrain.storage.address import parse_address
from sealtrain.storage.folder import RemoteFolder
from sealtrain.storage.http import HttpFileSystem
from sealtrain.storage.retry import Patience

HASTY = Patience(sleep=lambda _: None)


class Server:
    """An HTTP server over a folder. Its habits are attributes that tests set.

    Attributes:
        failures: Answers 503 so many more times.
        cuts: Cuts so many more answers in their middle.
        ranges: Whether it honours ranges.
        grows: Bytes it sends beyond what it announces in ``Content-Range``.
        claims: Size it claims of every file, where not the true one.
        redirects: Where it sends everyone, if anywhere.
        denies: Answers 403.
        keeps: Lets nothing be deleted.
        token: Bearer token without which it answers 401.
        delay: Seconds before each answer.
        most_at_once: Requests that waited together.
        status: Counter of what it answered.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.failures = self.cuts = self.grows = 0
        self.ranges, self.denies, self.keeps = True, False, False
        self.token = ""
        self.claims: int | None = None
        self.redirects = ""
        self.delay = 0.0
        self.waiting = self.most_at_once = 0
        self.counting = threading.Lock()
        self.status: Counter[int] = Counter()
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self.url = ""

    def folder(self, name: str, *, token: str | None = None, **options: Any) -> RemoteFolder:
        filesystem = HttpFileSystem(token=token)
        settings: dict[str, Any] = {"hosts": (self.url,), "patience": HASTY}
        return RemoteFolder(filesystem, parse_address(f"{self.url}/{name}"), **settings | options)


@contextmanager
def serving(root: Path) -> Iterator[Server]:
    server = Server(root)
    with http_served(type("Served", (_Handler,), {"server_state": server})) as server.url:
        yield server


class _Handler(Handler):
    server_state: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        state = self.server_state
        with state.counting:
            state.waiting += 1
            state.most_at_once = max(state.most_at_once, state.waiting)
        time.sleep(state.delay)
        with state.counting:
            state.waiting -= 1
        self._get(state)

    def _get(self, state: Server) -> None:
        state.seen.append(("GET", self.path, self._lines()))
        if self._is_stranger(state):
            return self._answer(401, b"who?")
        if state.failures:
            state.failures -= 1
            return self._answer(503, b"later")
        if state.redirects:
            return self._answer(302, b"", location=state.redirects)
        if state.denies:
            return self._answer(403, b"no")
        path = state.root / self.path.lstrip("/")
        if not path.is_file():
            return self._answer(404, b"nothing here")
        data = path.read_bytes()
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if asked is None or not state.ranges:
            return self._answer(200, data)
        size = len(data) if state.claims is None else state.claims
        first, last = int(asked[1]), min(int(asked[2]), size - 1)
        if first >= size:
            return self._answer(416, b"", content_range=f"bytes */{size}")
        part = data[first : last + 1]
        part += bytes(last + 1 - first - len(part)) + bytes(state.grows)
        self._answer(
            206,
            part,
            content_range=f"bytes {first}-{last}/{size}",
            last_modified=formatdate(path.stat().st_mtime, usegmt=True),
        )
        return None

    def do_PUT(self) -> None:
        state = self.server_state
        state.seen.append(("PUT", self.path, self._lines()))
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if self._is_stranger(state):
            return self._answer(401, b"who?")
        if state.failures:
            state.failures -= 1
            return self._answer(503, b"later")
        if state.denies:
            return self._answer(403, b"no")
        path = state.root / self.path.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return self._answer(201, b"")

    def do_DELETE(self) -> None:
        state = self.server_state
        state.seen.append(("DELETE", self.path, self._lines()))
        if state.keeps:
            return self._answer(405, b"")
        path = state.root / self.path.lstrip("/")
        there = path.is_file()
        path.unlink(missing_ok=True)
        return self._answer(204 if there else 404, b"")

    def _is_stranger(self, state: Server) -> bool:
        return bool(state.token) and self.headers.get("Authorization") != f"Bearer {state.token}"

    def _lines(self) -> dict[str, str]:
        return {name.lower(): value for name, value in self.headers.items()}

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        state = self.server_state
        state.status[status] += 1
        self.begin(status, body, **headers)
        if state.cuts and status in (200, 206) and len(body) > 1:
            state.cuts -= 1
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
            self.connection.shutdown(2)
            return
        self.wfile.write(body)
