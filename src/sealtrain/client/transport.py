"""HTTP to a broker: bounded, typed, and a retry only where nothing can have happened yet.

1. Connecting is tried three times; a request that was sent is never sent again.
2. An answer is read up to a cap, within a time, uncompressed, and parsed strictly.
3. A refusal is raised as the class its code names, so the exit code is the broker's reason.
4. The environment (proxies, certificate files) has no influence: ``base.outbound``.
5. What an owner hands in is signed for this URL; a broker that finds it signed at another time than
   its own gets it once more, signed at the date of its answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, NoReturn, TypeVar

from sealtrain.base.http import Answer as HttpAnswer
from sealtrain.base.http import Bounds, HttpClient, Problem, Query, parts_of, with_query
from sealtrain.base.models import StrictModel
from sealtrain.client.errors import BrokerUnreachable
from sealtrain.errors import DataInvalid, UsageError
from sealtrain.release.errors import AnswerInvalid
from sealtrain.release.messages import ErrorBody, load_message
from sealtrain.signing.errors import RequestStale

if TYPE_CHECKING:
    import httpx2

MAX_ANSWER_BYTES = 32 << 20
_MAX_ERROR_BYTES = 64 << 10
_CONNECT_TRIES = 3
_CONNECT_PAUSE = 0.1
_HINT = "check the URL and that the broker runs: sealtrain broker serve"

Answer = TypeVar("Answer", bound=StrictModel)
Sign = Callable[[str, str, bytes, int | None], dict[str, str]]
"""Headers that sign a request: of method, URL, body and time, ``None`` for now."""


class Transport:
    """One broker's URL and how to talk to it.

    Args:
        url: ``http://`` or ``https://`` base URL without query.
        timeout: Seconds to wait for a connection and between bytes.
        total: Seconds for a whole exchange: a page of the ledger over a slow line ends in it.
        authorities: Certificates in PEM of the broker's private authority, where it has one.
        sleep: Waits between tries to connect.

    Raises:
        UsageError: Not such a URL.
    """

    def __init__(
        self,
        url: str,
        timeout: float = 60.0,
        *,
        total: float = 300.0,
        authorities: str = "",
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        parts = parts_of(url)
        if parts is None:
            raise UsageError(
                "not the URL of a broker",
                check="broker URL",
                got=url.rpartition("@")[2][:200],  # what stands before it may be a password
                expected="http(s)://host",
            )
        self.url = url.rstrip("/")
        bounds = Bounds(
            connect=timeout,
            read=timeout,
            total=total,
            tries=_CONNECT_TRIES,
            pause=_CONNECT_PAUSE,
        )
        self._client = HttpClient(
            bounds,
            failed=self._silent,
            tls=parts.scheme == "https",
            authorities=authorities,
            sleep=sleep,
        )

    def close(self) -> None:
        """Close connections."""
        self._client.close()

    def get(
        self,
        path: str,
        cls: type[Answer],
        *,
        bearer: str | None = None,
        **query: str | int | Sequence[str],
    ) -> Answer:
        """Ask for a message.

        Args:
            path: Where.
            cls: What is answered.
            bearer: An operator's token, where one is needed.
            query: What about.

        Raises:
            BrokerUnreachable: No answer, or the broker failed.
            AnswerInvalid: The answer is not a ``cls``.
            SealtrainError: What the broker refused with.
        """
        body = self._exchange("GET", path, None, dict(query), bearer=bearer)
        return self._parse(cls, body)

    def post(
        self,
        path: str,
        body: bytes,
        cls: type[Answer],
        *,
        sign: Sign | None = None,
        query: Query | None = None,
    ) -> Answer:
        """Send a message and parse the answer. Errors as ``get``.

        Args:
            path: Where to.
            body: The message.
            cls: What is answered.
            sign: Makes the headers that show who asks, where it must be shown.
            query: What about.
        """
        return self._parse(cls, self._exchange("POST", path, body, query or {}, sign))

    def _parse(self, cls: type[Answer], body: bytes) -> Answer:
        try:
            return load_message(cls, body, max_bytes=MAX_ANSWER_BYTES, error=AnswerInvalid)
        except DataInvalid as error:
            raise self._odd(f"the broker's {cls.__name__} is not JSON") from error

    def _exchange(
        self,
        method: str,
        path: str,
        body: bytes | None,
        query: Query,
        sign: Sign | None = None,
        bearer: str | None = None,
    ) -> bytes:
        answer = self._ask(method, path, body, query, sign, None, bearer)
        try:
            return self._body(path, answer)
        except RequestStale:
            date = _date(answer.headers)
            if sign is None or date is None:
                raise
        return self._body(path, self._ask(method, path, body, query, sign, date))

    def _ask(
        self,
        method: str,
        path: str,
        body: bytes | None,
        query: Query,
        sign: Sign | None,
        now: int | None,
        bearer: str | None = None,
    ) -> HttpAnswer:
        plain = {} if body is None else {"content-type": "application/json"}
        plain |= {} if bearer is None else {"authorization": f"Bearer {bearer}"}

        def headers(url: str) -> dict[str, str]:
            return plain | ({} if sign is None else sign(method, url, body or b"", now))

        return self._client.ask(
            method,
            with_query(self.url + path, query),
            cap=lambda status, _: MAX_ANSWER_BYTES if status == 200 else _MAX_ERROR_BYTES,
            content=body,
            headers=headers,
        )

    def _body(self, path: str, answer: HttpAnswer) -> bytes:
        if answer.status != 200:
            self._raise(path, answer.status, answer.body)
        return answer.body

    def _raise(self, path: str, status: int, body: bytes) -> NoReturn:
        try:
            told = load_message(ErrorBody, body, max_bytes=_MAX_ERROR_BYTES).error
        except DataInvalid as error:
            raise self._unreachable(f"HTTP {status} without an error of ours") from error
        if status >= 500:
            raise BrokerUnreachable(
                f"the broker at {self.url} failed at {path}",
                check="broker",
                got=f"HTTP {status} {told.code[:64]}",
                hint="its log says why; try again when it is repaired",
            )
        raise told.error()

    def _silent(self, problem: Problem) -> Exception:
        if problem.kind in ("long", "encoding"):
            return self._odd("the broker's answer cannot be read", got=problem.reason)
        if problem.check is not None:
            return BrokerUnreachable(
                f"no safe connection to the broker at {self.url}"
                if problem.check == "tls"
                else f"the proxy does not lead to the broker at {self.url}",
                check=problem.check,
                got=problem.reason,
                hint=problem.remedy or _HINT,
            )
        return self._unreachable(problem.reason, problem.remedy)

    def _unreachable(self, reason: str, remedy: str | None = None) -> BrokerUnreachable:
        return BrokerUnreachable(
            f"the broker at {self.url} does not answer",
            check="broker",
            got=reason,
            hint=remedy or _HINT,
        )

    def _odd(self, problem: str, got: str | None = None) -> AnswerInvalid:
        return AnswerInvalid(problem, check="answer form", got=got, hint=_HINT)


def _date(headers: httpx2.Headers) -> int | None:
    """When the broker answered, by its own clock."""
    try:
        return int(parsedate_to_datetime(headers.get("date", "")).timestamp())
    except (ValueError, OverflowError):
        return None
