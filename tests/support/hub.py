"""A small hub of models on this machine: the addresses that the hub's own client asks for."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import unquote

from http_server import Handler, http_served


@dataclass
class FakeHub:
    """What the hub holds, and how it misbehaves.

    Attributes:
        files: Name → bytes of the one model's files.
        model_id: Its name.
        commit: What every revision that is no commit resolves to.
        answers: Name → bytes that are sent instead of the announced ones, of the same length.
        stalls: Part of the method and path of requests that are never answered.
        asked: Method and path of each request, in order.
        url: Of the server.
    """

    files: dict[str, bytes]
    model_id: str = "org/tiny"
    commit: str = "c1" * 20
    answers: dict[str, bytes] = field(default_factory=dict)
    stalls: str | None = None
    asked: list[str] = field(default_factory=list)
    url: str = ""

    def digest(self, name: str) -> str:
        """SHA-256 of a large file, else git's name of its content, as the hub announces it."""
        data = self.files[name]
        if name.endswith(".safetensors"):
            return hashlib.sha256(data).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


@contextmanager
def serving_hub(hub: FakeHub) -> Iterator[FakeHub]:
    """Serve a hub on a free port until the block ends."""
    gone = threading.Event()

    class Answering(Handler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def _answer(self) -> None:
            path = unquote(self.path.partition("?")[0])
            hub.asked.append(f"{self.command} {path}")
            if hub.stalls is not None and hub.stalls in hub.asked[-1]:
                gone.wait(30)
                self.close_connection = True
                return
            api, place = f"/api/models/{hub.model_id}/", f"/{hub.model_id}/resolve/"
            if path.startswith(f"{api}revision/"):
                revision = path.removeprefix(f"{api}revision/")
                self._revision(revision)
            elif path.startswith(f"{api}tree/"):
                self._json([self._entry(name) for name in hub.files])
            elif path.startswith(place):
                commit, _, name = path.removeprefix(place).partition("/")
                self._file(commit, name)
            else:
                self._missing("RepoNotFound")

        def _revision(self, revision: str) -> None:
            if revision == "absent":
                self._missing("RevisionNotFound")
            else:
                siblings = [{"rfilename": name} for name in hub.files]
                self._json({"id": hub.model_id, "sha": hub.commit, "siblings": siblings})

        def _entry(self, name: str) -> dict[str, object]:
            data = hub.files[name]
            entry: dict[str, object] = {"type": "file", "path": name, "size": len(data)}
            entry["oid"] = hub.digest(name)
            if name.endswith(".safetensors"):
                entry["lfs"] = {"oid": hub.digest(name), "size": len(data), "pointerSize": 130}
            return entry

        def _file(self, commit: str, name: str) -> None:
            if name not in hub.files:
                self._missing("EntryNotFound")
                return
            data = hub.answers.get(name, hub.files[name])
            self._send(
                data, {"ETag": f'"{hub.digest(name)}"', "X-Repo-Commit": commit}, "octet-stream"
            )

        def _json(self, value: object) -> None:
            self._send(json.dumps(value).encode(), {}, "json")

        def _missing(self, code: str) -> None:
            self._send(b"{}", {"X-Error-Code": code}, "json", status=404)

        def _send(
            self, data: bytes, headers: dict[str, str], kind: str, *, status: int = 200
        ) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Type", f"application/{kind}")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

    with http_served(Answering) as hub.url:
        try:
            yield hub
        finally:
            gone.set()
