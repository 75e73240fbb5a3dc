"""An operator between a guest and its broker, who keeps each request and may change one."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from http_server import Handler, Server, running

RELEASES = "/v1/releases"
Change = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRelease:
    """A request for keys, as it went to the broker, and the broker's answer."""

    request: dict[str, Any]
    status: int
    code: str | None


@dataclass
class RecordingFront:
    """What passes on the way to a broker.

    Attributes:
        port: Of the broker, on this machine.
        url: Where the front listens.
        change: Of requests for keys; each passes unchanged where there is none.
        seen: Requests for keys, oldest first.
    """

    port: int
    url: str = ""
    change: Change | None = None
    seen: list[SeenRelease] = field(default_factory=list)

    def post(self, request: dict[str, Any]) -> SeenRelease:
        """Ask the broker for keys as the operator does; nothing else is on the way."""
        body = json.dumps(request, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
        status, _, answer = self.pass_on("POST", RELEASES, body.encode("utf-8"), {})
        return SeenRelease(request=request, status=status, code=_code_of(status, answer))

    def challenge(self, consortium_id: str) -> str:
        """A fresh challenge for a release."""
        body = {"consortium_id": consortium_id, "purpose": "release", "version": 1}
        said = json.dumps(body, separators=(",", ":")).encode()
        _, _, answer = self.pass_on("POST", "/v1/challenges", said, {})
        return str(json.loads(answer)["challenge"])

    def pass_on(
        self, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, str, bytes]:
        """The broker's answer: status, type and body."""
        broker = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            given = {"Content-Type": "application/json", **headers}
            broker.request(method, path, body or None, given)
            answer = broker.getresponse()
            kind = answer.headers.get("Content-Type", "application/json")
            return answer.status, kind, answer.read()
        finally:
            broker.close()


def _code_of(status: int, answer: bytes) -> str | None:
    return None if status == 200 else str(json.loads(answer)["error"]["code"])


@contextmanager
def recording(url: str) -> Iterator[RecordingFront]:
    """A front before the broker at a URL of this machine."""
    front = RecordingFront(port=int(url.rpartition(":")[2]))

    class Passing(Handler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._pass("GET", b"")

        def do_POST(self) -> None:
            self._pass("POST", self.body())

        def _pass(self, method: str, body: bytes) -> None:
            left_out = ("host", "connection", "content-length", "content-type", "accept-encoding")
            headers = {k: v for k, v in self.headers.items() if k.lower() not in left_out}
            if self.path != RELEASES:
                status, kind, answer = front.pass_on(method, self.path, body, headers)
                self.answer(status, answer, content_type=kind)
                return
            request = json.loads(body)
            if front.change is not None:
                request = front.change(request)
                body = json.dumps(
                    request, separators=(",", ":"), sort_keys=True, ensure_ascii=False
                ).encode("utf-8")
            status, kind, answer = front.pass_on(method, self.path, body, headers)
            front.seen.append(
                SeenRelease(request=request, status=status, code=_code_of(status, answer))
            )
            self.answer(status, answer, content_type=kind)

    server = Server(("127.0.0.1", 0), Passing)
    front.url = f"http://127.0.0.1:{server.server_port}"
    with running(server):
        yield front
