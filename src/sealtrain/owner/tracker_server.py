"""A tracker's server, asked over HTTP within bounds; each fault ends as an error with a remedy.

1. Answers are JSON objects of at most 16 MiB. Redirects are not followed, and no answer is quoted:
   a server that answers otherwise than its kind does is named as such.
2. Each request takes a minute at most, tries included, and a command ten minutes: what was kept by
   then is kept, and the same command goes on with the rest.
3. What may be done twice is tried again where a connection broke. What is sent is not: it is looked
   for first, by the same command once more.
4. A token goes into a header of requests to the named server, and nowhere else.
"""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self

from sealtrain.base.canonical import canonical_json, parse_foreign
from sealtrain.base.http import LATER, Answer, Bounds, HttpClient, Problem
from sealtrain.errors import ConfigError
from sealtrain.storage.errors import StorageRefused, StorageUnreachable

BOUNDS: Final = Bounds(connect=10.0, read=30.0, total=60.0, tries=3, pause=0.5)
LONGEST_SECONDS: Final = 600.0
_MAX_ANSWER_BYTES: Final = 16 << 20
_AGAIN: Final = "run the command again: it sends what is missing"


class TrackerServer:
    """The server of a tracker; usable as a context manager."""

    def __init__(
        self,
        url: str,
        kind: str,
        *,
        read_from: str,
        headers: Mapping[str, str] | None = None,
        bounds: Bounds = BOUNDS,
        longest: float = LONGEST_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connect to nothing yet.

        Args:
            url: From ``tracking.require_tracker``.
            kind: ``MLflow`` or ``Trackio``, for messages.
            read_from: Variables that hold its credentials, for hints.
            headers: Of each request, in lower case; they may hold a secret.
            bounds: Of each request.
            longest: Seconds for all requests.
            monotonic: What seconds are counted by.

        Raises:
            ConfigError: The process's settings of a network cannot be used, or a header cannot be
                sent.
        """
        self._url = url
        self._kind = kind
        self._read_from = read_from
        self._monotonic = monotonic
        self._ends = monotonic() + longest
        self._bounds = bounds
        self._client = HttpClient(
            bounds,
            failed=self._silent,
            tls=url.startswith("https:"),
            headers={"content-type": "application/json", **_sendable(headers or {}, read_from)},
            monotonic=monotonic,
        )

    def __enter__(self) -> Self:
        """Use in a ``with`` block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close connections."""
        self._client.close()

    def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        idempotent: bool = True,
        absent: Callable[[dict[str, Any]], bool] = lambda _: False,
    ) -> dict[str, Any] | None:
        """What the server answers.

        Args:
            method: ``GET`` or ``POST``.
            path: Below the server's URL, with its query.
            body: Sent as JSON.
            idempotent: Whether it may be sent twice.
            absent: Whether an answer with status 404 says that the thing is not there.

        Returns:
            The JSON object of the answer; ``None`` for a thing that is not there.

        Raises:
            StorageUnreachable: No answer, or the server may do better later.
            StorageRefused: The server refuses for good, or is no tracker of this kind.
        """
        left = self._ends - self._monotonic()
        if left <= 0:
            raise self._silent(Problem("late", "the time for this command is over"))
        answer = self._client.ask(
            method,
            f"{self._url}/{path}",
            cap=_MAX_ANSWER_BYTES,
            content=None if body is None else canonical_json(dict(body)),
            idempotent=idempotent,
            total=min(left, self._bounds.total),
        )
        found = _object_in(answer)
        if answer.status == 404 and found is not None and absent(found):
            return None
        if not 200 <= answer.status < 300:
            raise self._refusal(answer.status)
        if found is None:
            raise self.refuse_answer("no JSON object")
        return found

    def refuse_answer(self, got: str) -> StorageRefused:
        """The error for an answer that no server of its kind gives."""
        return StorageRefused(
            f"the server answers otherwise than {self._kind} does",
            check="tracker",
            got=got,
            expected=f"the API of {self._kind}",
            hint="name the address at which the tracker itself is served, with its path: a page to "
            "sign in, or another service, may stand before it",
        )

    def refuse_loss(self, got: int, expected: int) -> StorageUnreachable:
        """The error for values that the server took and does not show."""
        return StorageUnreachable(
            "the tracker did not keep every value",
            check="tracker",
            got=got,
            expected=expected,
            hint=_AGAIN,
        )

    def _silent(self, problem: Problem) -> StorageUnreachable:
        if problem.kind in ("long", "encoding"):
            return self.refuse_answer(problem.reason)
        message = {
            "tls": "no safe connection to the tracker",
            "proxy": "the proxy does not lead to the tracker",
            "late": "the tracker does not answer in time",
            "connect": "the tracker does not answer",
        }.get(problem.kind, "the connection to the tracker broke, or it speaks no HTTP")
        return StorageUnreachable(
            message,
            check=problem.check or "tracker",
            got=problem.reason,
            hint=problem.remedy
            or f"see that its server runs, and that its name and port are right; then {_AGAIN}",
        )

    def _refusal(self, status: int) -> StorageUnreachable:
        got = f"HTTP {status}"
        if 300 <= status < 400:
            return StorageRefused(
                "the server sends elsewhere, and a redirect is not followed",
                check="tracker",
                got=got,
                hint="name the address at which the tracker itself is served",
            )
        if status in (401, 403, 407):
            return StorageRefused(
                "the tracker wants credentials, or others than these",
                check="token",
                got=got,
                hint=f"set {self._read_from}, with the right to write here",
            )
        if status == 404:
            return self.refuse_answer(got)
        if status in LATER:
            return StorageUnreachable(
                "the tracker cannot take the run now",
                check="tracker",
                got=got,
                hint=f"later, {_AGAIN}",
            )
        if status >= 500:
            return StorageUnreachable(
                "the tracker failed", check="tracker", got=got, hint="see its server's log"
            )
        return StorageRefused(
            "the tracker refuses the run",
            check="tracker",
            got=got,
            hint=f"see its server's log, and {self._read_from}",
        )


def _sendable(headers: Mapping[str, str], read_from: str) -> Mapping[str, str]:
    """The headers, if each may stand in a request."""
    for value in headers.values():
        if not value.isascii() or not value.isprintable():
            raise ConfigError(
                "the tracker's credentials hold a character that no header may have",
                check="token",
                expected="printable ASCII",
                hint=f"set {read_from} anew, without a line's end",
            )
    return headers


def basic_authorization(user: str, password: str) -> str:
    """Value of the header ``authorization`` (RFC 7617)."""
    return f"Basic {b64encode(f'{user}:{password}'.encode()).decode('ascii')}"


def _object_in(answer: Answer) -> dict[str, Any] | None:
    try:
        found = parse_foreign(answer.body)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
