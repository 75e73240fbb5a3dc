"""An S3 store of another maker: it knows no additional checksums, as older gateways do."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from http_server import Handler, http_served


@dataclass
class OldStore:
    """What it holds and was asked.

    Attributes:
        url: Its endpoint.
        status: What it answers a request with a checksum: 400 or 501; 0 for nothing of the kind.
        always: Answered to every write, where set.
        takes: So many writes more, and then there is no such bucket; all where ``None``.
        objects: Content by path.
        checked: Paths of writes whose signed SHA-256 was that of their content.
        asked: Methods and paths.
    """

    url: str = ""
    status: int = 400
    always: tuple[int, str] | None = None
    takes: int | None = None
    objects: dict[str, bytes] = field(default_factory=dict)
    checked: list[str] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)


_CODES = {400: "InvalidArgument", 501: "NotImplemented"}


@contextmanager
def old_store(status: int = 400, certificate: Path | None = None) -> Iterator[OldStore]:
    """A store on loopback, over TLS where there is a certificate."""
    made = OldStore(status=status)

    class Answers(Handler):
        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", "0")))
            path = urlsplit(self.path).path
            made.asked.append(("PUT", path))
            names = {name.lower() for name in self.headers}
            knows = not any("checksum" in name or "trailer" in name for name in names)
            if made.takes == 0:
                self._error(404, "NoSuchBucket")
            elif made.always is not None:
                self._error(*made.always)
            elif made.status and not knows:
                self._error(made.status, _CODES[made.status])
            else:
                if self.headers.get("x-amz-content-sha256") == hashlib.sha256(body).hexdigest():
                    made.checked.append(path)
                made.objects[path] = body
                made.takes = None if made.takes is None else made.takes - 1
                self._say(200, b"", ETag='"0"')

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            made.asked.append((self.command, path))
            data = made.objects.get(path)
            if data is None:
                self._error(404, "NoSuchKey")
                return
            asked = self.headers.get("range")
            if asked is None:
                self._say(200, data)
                return
            first, last = (int(part) for part in asked.removeprefix("bytes=").split("-"))
            part = data[first : last + 1]
            told = f"bytes {first}-{first + len(part) - 1}/{len(data)}"
            self._say(206, part, **{"Content-Range": told})

        def do_DELETE(self) -> None:
            made.objects.pop(urlsplit(self.path).path, None)
            self._say(204, b"")

        def _error(self, status: int, code: str) -> None:
            self._say(status, f"<Error><Code>{code}</Code></Error>".encode())

        def _say(self, status: int, body: bytes, **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    with http_served(Answers, certificate) as url:
        made.url = url if certificate is None else url.replace("http:", "https:")
        yield made
