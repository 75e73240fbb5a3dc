"""HTTP to a broker: bounded, typed, and a retry only where nothing can have happened yet.

1. Connecting is tried three times; a request that was sent is never sent again.
2. An answer is read up to a cap and parsed strictly.
3. A refusal is raised as the class its code names, so the exit code is the broker's reason.
4. The environment (proxies, certificate files) has no influence.
5. What an owner hands in is signed for this URL; a broker that finds it signed at another time than
   its own gets it once more, signed at the date of its answer.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from email.utils import parsedate_to_datetime
from typing import NoReturn, TypeVar

import httpx

from sealtrain.base.models import StrictModel
from sealtrain.errors import (
    AnswerInvalid,
    BrokerUnreachable,
    DataInvalid,
    RequestStale,
    UsageError,
)
from sealtrain.release.messages import ErrorBody, load_message

__all__ = ["MAX_ANSWER_BYTES", "Sign", "Transport"]

MAX_ANSWER_BYTES = 32 << 20
_MAX_ERROR_BYTES = 64 << 10
_CONNECT_TRIES = 3
_HINT = "check the URL and that the broker runs: sealtrain broker serve"

Answer = TypeVar("Answer", bound=StrictModel)
Sign = Callable[[str, str, bytes, int | None], dict[str, str]]
"""Headers that sign a request: of method, URL, body and time, ``None`` for now."""
Query = Mapping[str, str | int | Sequence[str]]
"""Names and values behind the path; several values are the name repeated."""


class Transport:
    """One broker's URL and how to talk to it.

    Args:
        url: ``http://`` or ``https://`` base URL without query.
        timeout: Seconds to wait for a connection and between bytes.

    Raises:
        UsageError: Not such a URL.
    """

    def __init__(self, url: str, timeout: float = 60.0) -> None:
        parts = _parts(url)
        if parts.scheme not in ("http", "https") or not parts.host or parts.query or parts.userinfo:
            raise UsageError(
                "not the URL of a broker",
                check="broker URL",
                got=url.rpartition("@")[2][:200],  # what stands before it may be a password
                expected="http(s)://host",
            )
        self.url = url.rstrip("/")
        # Without TLS an empty trust store does, and saves reading the machine's.
        trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if parts.scheme == "http" else True
        self._client = httpx.Client(
            base_url=self.url,
            verify=trusted,
            timeout=timeout,
            trust_env=False,
            follow_redirects=False,
        )

    def close(self) -> None:
        """Close connections."""
        self._client.close()

    def get(
        self, path: str, cls: type[Answer], *, bearer: str | None = None, **query: str | int
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
        response = self._send(method, path, body, query, sign, None, bearer)
        with closing(response):
            try:
                return self._read(path, response)
            except RequestStale:
                date = _date(response)
                if sign is None or date is None:
                    raise
        with closing(self._send(method, path, body, query, sign, date)) as response:
            return self._read(path, response)

    def _send(
        self,
        method: str,
        path: str,
        body: bytes | None,
        query: Query,
        sign: Sign | None,
        now: int | None,
        bearer: str | None = None,
    ) -> httpx.Response:
        headers = {} if body is None else {"content-type": "application/json"}
        headers |= {} if bearer is None else {"authorization": f"Bearer {bearer}"}
        for attempt in range(1, _CONNECT_TRIES + 1):
            request = self._client.build_request(
                method, path, content=body, params=query, headers=headers
            )
            if sign is not None:
                request.headers.update(sign(method, str(request.url), body or b"", now))
            try:
                return self._client.send(request, stream=True)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                if attempt == _CONNECT_TRIES:
                    raise self._unreachable(type(error).__name__) from error
            except httpx.HTTPError as error:
                raise self._unreachable(type(error).__name__) from error
        raise AssertionError("the loop above returns or raises")

    def _read(self, path: str, response: httpx.Response) -> bytes:
        cap = MAX_ANSWER_BYTES if response.status_code == 200 else _MAX_ERROR_BYTES
        data = bytearray()
        try:
            for part in response.iter_bytes():
                data += part
                if len(data) > cap:
                    raise self._odd(f"the broker's answer to {path} is too long")
        except httpx.HTTPError as error:
            raise self._unreachable(type(error).__name__) from error
        if response.status_code != 200:
            self._raise(path, response.status_code, bytes(data))
        return bytes(data)

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

    def _unreachable(self, reason: str) -> BrokerUnreachable:
        return BrokerUnreachable(
            f"the broker at {self.url} does not answer", check="broker", got=reason, hint=_HINT
        )

    def _odd(self, problem: str) -> AnswerInvalid:
        return AnswerInvalid(problem, check="answer form", hint=_HINT)


def _parts(url: str) -> httpx.URL:
    try:
        return httpx.URL(url) if url.isascii() else httpx.URL()
    except httpx.InvalidURL:
        return httpx.URL()


def _date(response: httpx.Response) -> int | None:
    """When the broker answered, by its own clock."""
    try:
        return int(parsedate_to_datetime(response.headers.get("date", "")).timestamp())
    except (ValueError, OverflowError):
        return None
