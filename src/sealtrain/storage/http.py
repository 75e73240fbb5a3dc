"""HTTP(S) as an fsspec filesystem: whole ranges, bounded, from exactly the server that was named.

fsspec's own reads an answer to its end whatever was asked for; a server may not make this process
hold more than it wanted. No proxy, cookie, redirect or ``.netrc`` is followed: the guest opens its
border for one host, and only that one is spoken to.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx

from sealtrain.errors import UsageError
from sealtrain.storage.patience import Busy
from sealtrain.storage.rangestore import RangeStore

__all__ = ["HttpFileSystem"]

CONNECT_SECONDS = 10.0
READ_SECONDS = 60.0
MAX_CONNECTIONS = 16
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_UNSATISFIED = re.compile(r"bytes \*/(\d+)")
_LATER = {408, 425, 429, 500, 502, 503, 504}
_WRITE_BYTES = 1 << 20


class HttpFileSystem(RangeStore):
    """Files by URL. Whoever asks is patient."""

    protocol = ("http", "https")

    def __init__(self, *, token: str | None = None, transport: Any = None) -> None:
        """Set up connections; none is made yet.

        Args:
            token: Bearer token to send.
            transport: Of ``httpx``, for tests.
        """
        super().__init__()
        headers = {"Accept-Encoding": "identity", "User-Agent": "sealtrain"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        self._client = httpx.Client(
            headers=headers,
            timeout=httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=MAX_CONNECTIONS),
            follow_redirects=False,
            trust_env=False,
            transport=transport,
        )

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """``size`` of a file, as the server claims. Raises as ``cat_file``."""
        data, total = self._asked(path, 0, 1)
        return {"name": path, "type": "file", "size": len(data) if total is None else total}

    def put_file(self, lpath: str, rpath: str, **_: Any) -> None:
        """Send a file by PUT. Raises as ``cat_file``."""
        size = Path(lpath).stat().st_size
        with Path(lpath).open("rb") as file:
            blocks = iter(lambda: file.read(_WRITE_BYTES), b"")
            with _connection_errors():
                answer = self._client.put(
                    rpath, content=blocks, headers={"Content-Length": str(size)}
                )
        if answer.status_code not in (200, 201, 204):
            self._refuse(answer)

    def _range(self, path: str, start: int, end: int) -> bytes:
        return self._asked(path, start, end)[0]

    def _asked(self, url: str, start: int, end: int) -> tuple[bytes, int | None]:
        """A range, and the size of the file where the server tells it."""
        asked = {"Range": f"bytes={start}-{end - 1}"}
        with _connection_errors(), self._client.stream("GET", url, headers=asked) as answer:
            if answer.status_code == 416:
                told = _UNSATISFIED.fullmatch(answer.headers.get("Content-Range", ""))
                return b"", int(told[1]) if told else None
            if answer.status_code == 200:
                return self._whole(answer, start, end)
            if answer.status_code != 206:
                self._refuse(answer)
            told = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
            if told is None or int(told[1]) != start or int(told[2]) >= end:
                raise ConnectionError("the server answers with another range than was asked for")
            wanted = int(told[2]) + 1 - start
            data = _bounded(answer, wanted)
            if len(data) != wanted:
                raise ConnectionError("the server sent another number of bytes than it announced")
            return data, None if told[3] == "*" else int(told[3])

    def _whole(self, answer: httpx.Response, start: int, end: int) -> tuple[bytes, int | None]:
        """The answer of a server that ignores ranges: good enough for a small file's beginning."""
        claimed = answer.headers.get("Content-Length", "")
        size = int(claimed) if claimed.isdecimal() else None
        if start == 0 and end == 1 and size is not None:
            return b"", size
        data = _bounded(answer, end) if start == 0 and (size is None or size <= end) else None
        if data is None or len(data) > end:
            raise UsageError(
                "the server ignores range requests",
                check="storage",
                got="200 OK",
                expected="206 Partial Content",
                hint="serve the folder with ranges, or copy it here and name the copy",
            )
        return data, len(data)

    def _refuse(self, answer: httpx.Response) -> None:
        status = answer.status_code
        said = f"HTTP {status}"
        if status in (404, 410):
            raise FileNotFoundError(said)
        if status in (401, 403, 407):
            raise PermissionError(said)
        if status in _LATER:
            after = answer.headers.get("Retry-After", "")
            raise Busy(said, float(after) if after.isdecimal() and len(after) < 6 else None)
        raise UsageError(
            "the server does not serve this file",
            check="storage",
            got=said,
            expected="206 Partial Content",
            hint="redirects are not followed: name the final URL" if 300 <= status < 400 else None,
        )


class _connection_errors:  # noqa: N801  # reads as a statement
    """Failures of the connection as Python's own."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, httpx.TimeoutException):
            raise TimeoutError("no answer in time") from None
        if isinstance(error, httpx.TransportError):
            raise ConnectionError("the connection failed or was cut") from None
        if isinstance(error, httpx.InvalidURL):
            raise UsageError("not a URL", expected="https://host/folder") from None


def _bounded(answer: httpx.Response, most: int) -> bytes:
    """The body, at most one byte more than ``most``."""
    data = bytearray()
    for block in answer.iter_raw():
        data += block[: most + 1 - len(data)]
        if len(data) > most:
            break
    return bytes(data)
