"""HTTP(S) as an fsspec filesystem: whole ranges, bounded, from exactly the server that was named.

fsspec's own reads an answer to its end whatever was asked for; a server may not make this process
hold more than it wanted, nor wait for ever. No cookie, redirect or ``.netrc`` is followed, and no
proxy but the process's (``base.outbound``): the guest opens its border for one host, and it
connects to no other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, NoReturn

from sealtrain.base.http import LATER, Answer, Bounds, HttpClient, Problem, retry_after
from sealtrain.errors import UsageError
from sealtrain.storage.rangestore import BOUNDS, RangeStore, seconds_for, storage_error
from sealtrain.storage.retry import Busy

_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_UNSATISFIED = re.compile(r"bytes \*/(\d+)")
_WRITE_BYTES = 1 << 20


class HttpFileSystem(RangeStore):
    """Files by URL. The caller retries."""

    protocol = ("http", "https")
    _client: HttpClient

    def __init__(self, *, token: str | None = None, bounds: Bounds = BOUNDS) -> None:
        """Set up connections; none is made yet.

        Args:
            token: Bearer token to send.
            bounds: Of one exchange; what it carries adds to the total.
        """
        super().__init__()
        self._bounds = bounds
        self._client = HttpClient(
            bounds,
            failed=_fail,
            headers={"authorization": f"Bearer {token}"} if token else None,
        )

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """``size`` and ``mtime`` of a file, as the server claims. Raises as ``cat_file``."""
        data, total, headers = self._ask(path, 0, 1)
        size = len(data) if total is None else total
        return {"name": path, "type": "file", "size": size, "mtime": _read_modified(headers)}

    def put_file(self, lpath: str, rpath: str, **_: Any) -> None:
        """Send a file by PUT. Raises as ``cat_file``."""
        size = Path(lpath).stat().st_size

        def blocks() -> Iterator[bytes]:
            with Path(lpath).open("rb") as file:
                yield from iter(lambda: file.read(_WRITE_BYTES), b"")

        answer = self._client.ask(
            "PUT",
            rpath,
            cap=lambda _status, _headers: None,
            content=blocks,
            headers={"content-length": str(size)},
            total=seconds_for(size, self._bounds),
        )
        if answer.status not in (200, 201, 204):
            _refuse(answer)

    def rm_file(self, path: str) -> None:
        """Delete a file by DELETE. Raises as ``cat_file``."""
        answer = self._client.ask("DELETE", path, cap=lambda _status, _headers: None)
        if answer.status in (405, 501):
            raise PermissionError(f"HTTP {answer.status}")
        if answer.status not in (200, 202, 204):
            _refuse(answer)

    def _range(self, path: str, start: int, end: int) -> bytes:
        return self._ask(path, start, end)[0]

    def _ask(self, url: str, start: int, end: int) -> tuple[bytes, int | None, Mapping[str, str]]:
        """A range, the size of the file where the server tells it, and what else it says."""

        def cap(status: int, headers: Mapping[str, str]) -> int | None:
            if status == 206:
                announced = _read_range(headers, start, end)
                return None if announced is None else announced[0]
            return end if status == 200 and _is_readable_whole(headers, start, end) else None

        answer = self._client.ask(
            "GET",
            url,
            cap=cap,
            headers={"range": f"bytes={start}-{end - 1}"},
            total=seconds_for(end - start, self._bounds),
        )
        if answer.status == 416:
            told = _UNSATISFIED.fullmatch(answer.headers.get("content-range", ""))
            return b"", int(told[1]) if told else None, answer.headers
        if answer.status == 200:
            return *_whole(answer, start, end), answer.headers
        if answer.status != 206:
            _refuse(answer)
        announced = _read_range(answer.headers, start, end)
        if announced is None:
            raise ConnectionError("the server answers with another range than was asked for")
        wanted, size = announced
        if len(answer.body) != wanted:
            raise ConnectionError("the server sent another number of bytes than it announced")
        return answer.body, size, answer.headers


def _read_modified(headers: Mapping[str, str]) -> float | None:
    """``Last-Modified`` in seconds since 1970; ``None`` where it names no time."""
    try:
        return parsedate_to_datetime(headers.get("last-modified", "")).timestamp()
    except (ValueError, OverflowError):
        return None


def _read_range(headers: Mapping[str, str], start: int, end: int) -> tuple[int, int | None] | None:
    """Length of a range and size of its file; ``None`` where another range was asked for."""
    told = _RANGE.fullmatch(headers.get("content-range", ""))
    if told is None or int(told[1]) != start or not start <= int(told[2]) < end:
        return None
    return int(told[2]) + 1 - start, None if told[3] == "*" else int(told[3])


def _read_size(headers: Mapping[str, str]) -> int | None:
    """Size of a whole file, where the server tells it."""
    claimed = headers.get("content-length", "")
    return int(claimed) if claimed.isdecimal() else None


def _is_size_only(headers: Mapping[str, str], start: int, end: int) -> bool:
    """Whether the caller wanted the size of the file and the server named it."""
    return start == 0 and end == 1 and _read_size(headers) is not None


def _is_readable_whole(headers: Mapping[str, str], start: int, end: int) -> bool:
    """Whether the whole file may be no more than what was asked for."""
    size = _read_size(headers)
    short = start == 0 and (size is None or size <= end)
    return short and not _is_size_only(headers, start, end)


def _whole(answer: Answer, start: int, end: int) -> tuple[bytes, int | None]:
    """The answer of a server that ignores ranges: good enough for a small file's beginning."""
    if _is_size_only(answer.headers, start, end):
        return b"", _read_size(answer.headers)
    if not _is_readable_whole(answer.headers, start, end):
        raise _no_ranges()
    return answer.body, len(answer.body)


def _refuse(answer: Answer) -> NoReturn:
    said = f"HTTP {answer.status}"
    if answer.status in (404, 410):
        raise FileNotFoundError(said)
    if answer.status in (401, 403, 407):
        raise PermissionError(said)
    if answer.status in LATER:
        raise Busy(said, retry_after(answer.headers))
    raise UsageError(
        "the server does not serve this file",
        check="storage",
        got=said,
        expected="206 Partial Content",
        hint="redirects are not followed: name the final URL"
        if 300 <= answer.status < 400
        else None,
    )


def _fail(problem: Problem) -> Exception:
    whole = problem.kind == "long" and problem.status == 200
    return _no_ranges() if whole else storage_error(problem)


def _no_ranges() -> UsageError:
    return UsageError(
        "the server ignores range requests",
        check="storage",
        got="200 OK",
        expected="206 Partial Content",
        hint="serve the folder with ranges, or copy it here and name the copy",
    )
