"""The one HTTP client: every exchange ends within its bounds, whatever a server does.

1. An answer is read as it came, up to a cap of bytes. It is asked for without compression, and one
   that is compressed all the same is refused: it could unpack to any size.
2. An exchange has a total number of seconds, tries and pauses included. No wait for the network
   takes longer: for a connection, a header or a byte that trickles in.
3. It is tried again where no connection was made, so that nothing can have happened yet; an
   idempotent request also where the connection broke or the server said to come back later.
4. Redirects are not followed. The environment (proxies, certificate files, netrc) has no influence:
   private authorities and a proxy are settings of the process (``base.outbound``).
5. Reasons name what happened, never an address: that may hold a credential.
"""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal, Self
from urllib.parse import urlencode

import certifi
import httpcore2
import httpx2

from sealtrain.base.outbound import DIRECT, Outbound, outbound, trusting
from sealtrain.base.tunnel import (
    PROXY_SILENT,
    ProxyRefused,
    ProxySilent,
    TlsInside,
    open_tunnel,
    reason_of,
    remedy_of,
)

LATER: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses of servers that may do better later."""
_LONGEST_PAUSE: Final = 20.0
_CONNECTIONS: Final = 16
_MAX_SOCKET_PATH: Final = 107
_AGENT: Final = "sealtrain"
_PIECE_BYTES: Final = 16 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How long an exchange may take and how often it is tried.

    Attributes:
        connect: Seconds to wait for a connection.
        read: Seconds to wait for the next bytes, or to get rid of some.
        total: Seconds for the whole exchange.
        tries: At least 1.
        pause: Seconds before the second try, twice as many before each further one; a server that
            names a time is waited for, up to 20 seconds.
    """

    connect: float = 10.0
    read: float = 60.0
    total: float = 120.0
    tries: int = 3
    pause: float = 0.5


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer, whatever its status; an empty body where the cap was ``None``."""

    status: int
    headers: httpx2.Headers
    body: bytes


@dataclass(frozen=True, slots=True)
class Problem:
    """Why an exchange gave no answer.

    Attributes:
        kind: ``url``: not one; ``connect``: no connection was made; ``broken``: one was, and it
            broke, fell silent or spoke no HTTP; ``late``: the total time is over; ``long``: more
            bytes than allowed; ``encoding``: compressed, which was not asked for; ``tls``: the
            server's certificate is not one to accept, ``reason`` says why in words of
            ``base.tunnel``; ``proxy``: the proxy makes no tunnel.
        reason: What happened, without an address.
        status: Of the answer, where it began.
    """

    kind: Literal["url", "connect", "broken", "late", "long", "encoding", "tls", "proxy"]
    reason: str
    status: int | None = None

    @property
    def check(self) -> str | None:
        """``tls`` or ``proxy`` where a setting of the network is at fault."""
        return self.kind if self.kind in ("tls", "proxy") else None

    @property
    def remedy(self) -> str | None:
        """What to do where such a setting is at fault."""
        return remedy_of(self.kind, self.reason)


class NoAnswer(Exception):
    """No answer came.

    Attributes:
        problem: Why.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.reason)
        self.problem = problem


Cap = Callable[[int, httpx2.Headers], int | None]
"""Most bytes of a body, by status and headers; ``None`` leaves it unread."""
Failed = Callable[[Problem], Exception]
"""Makes the caller's own error."""
Query = Mapping[str, str | int | Sequence[str]]
"""Names and values of a query; several values are the name repeated."""
Headers = Mapping[str, str] | Callable[[str], Mapping[str, str]]
"""Headers of a request, or a function that makes them of its whole URL."""


@lru_cache(maxsize=8)
def trust_packaged(packaged: str, *authorities: str) -> ssl.SSLContext:
    """The context of every client that trusts the packaged certificate authorities and these.

    Clients share it: to read the packaged ones takes longer than most exchanges. The library's own
    context trusts the machine's authorities, and those of variables.

    Args:
        packaged: File of the packaged ones.
        authorities: Certificates in PEM.
    """
    return trusting(ssl.create_default_context(cafile=packaged), *authorities)


class HttpClient:
    """Keeps connections to servers; usable as a context manager and by several threads."""

    def __init__(
        self,
        bounds: Bounds,
        *,
        failed: Failed = NoAnswer,
        tls: bool | ssl.SSLContext = True,
        unix: str | None = None,
        headers: Mapping[str, str] | None = None,
        authorities: str = "",
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Connect to nothing yet.

        Args:
            bounds: Of each exchange.
            failed: Makes the error that is raised where there is no answer; by itself one for
                callers who know best what they asked.
            tls: Whom to trust: the packaged certificate authorities, nobody (``False``: enough for
                ``http``, and saves reading them), or those of a context.
            unix: Path of a socket that every exchange goes through.
            headers: Of every request, in lower case.
            authorities: Certificates in PEM that are trusted besides.
            monotonic: What seconds are counted by.
            sleep: Waits so many seconds.

        Raises:
            ConfigError: The process's settings cannot be used.
        """
        self._bounds = bounds
        self._failed = failed
        self._monotonic = monotonic
        self._sleep = sleep
        self._headers = {"accept-encoding": "identity", "user-agent": _AGENT, **(headers or {})}
        self._clock = _Deadline(monotonic)
        self._by = DIRECT if tls is False else outbound()
        if tls is True:
            tls = trust_packaged(certifi.where(), self._by.authorities, authorities)
        elif isinstance(tls, ssl.SSLContext):
            trusting(tls, self._by.authorities, authorities)
        self._context = tls or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._pool = self._connections(_Backend(self._clock), unix=unix)
        self._tunnels: httpcore2.ConnectionPool | None = None
        if self._by.proxy is not None:
            self._tunnels = self._connections(_Tunnels(self._clock, self._by))

    def _connections(
        self, backend: httpcore2.NetworkBackend, *, unix: str | None = None
    ) -> httpcore2.ConnectionPool:
        return httpcore2.ConnectionPool(
            ssl_context=self._context,
            max_connections=_CONNECTIONS,
            keepalive_expiry=5.0,
            uds=unix,
            network_backend=backend,
        )

    def __enter__(self) -> Self:
        """Use in a ``with`` block."""
        return self

    def __exit__(self, *_: object) -> None:
        """As ``close``."""
        self.close()

    def close(self) -> None:
        """Close connections."""
        self._pool.close()
        if self._tunnels is not None:
            self._tunnels.close()

    def ask(
        self,
        method: str,
        url: str | httpx2.URL,
        *,
        cap: int | Cap,
        content: bytes | Callable[[], Iterator[bytes]] | None = None,
        headers: Headers | None = None,
        idempotent: bool = False,
        total: float | None = None,
    ) -> Answer:
        """One exchange.

        Args:
            method: ``GET``, ``POST``, …
            url: Where.
            cap: Most bytes of the answer's body.
            content: What is sent; a function gives it anew for each try, and its length goes into
                ``headers``.
            headers: Of this request, in lower case; a function makes them anew for each try, such
                as a signature.
            idempotent: Doing it twice does no more than doing it once.
            total: Seconds in place of ``bounds.total``.

        Raises:
            Exception: What ``failed`` makes of the problem.
        """
        try:
            whole = httpx2.URL(url)
        except httpx2.InvalidURL:
            raise self._failed(Problem("url", "not a URL")) from None
        if whole.scheme not in ("http", "https") or not whole.host:
            raise self._failed(Problem("url", "not an http(s) URL"))
        ends = self._monotonic() + (self._bounds.total if total is None else total)
        pause = self._bounds.pause
        for left in range(self._bounds.tries - 1, -1, -1):
            own = headers(str(whole)) if callable(headers) else headers or {}
            given = {**self._headers, **own}
            body = content() if callable(content) else content
            found = self._try(method, whole, given, body, cap, ends)
            passing, after = _passes(found, idempotent=idempotent)
            rest = min(max(pause, after or 0.0), _LONGEST_PAUSE)
            if not passing or not left or self._monotonic() + rest >= ends:
                if isinstance(found, Problem):
                    raise self._failed(found)
                return found
            self._sleep(rest)
            pause *= 2
        raise AssertionError("the loop above returns or raises")

    def _try(
        self,
        method: str,
        url: httpx2.URL,
        headers: dict[str, str],
        body: bytes | Iterator[bytes] | None,
        cap: int | Cap,
        ends: float,
    ) -> Answer | Problem:
        """One try."""
        if isinstance(body, bytes) or (body is None and method in ("POST", "PUT")):
            headers["content-length"] = str(len(body or b""))
        bounds = self._bounds
        timeouts = {
            "connect": bounds.connect,
            "pool": max(0.0, min(bounds.connect, ends - self._monotonic())),
            "read": bounds.read,
            "write": bounds.read,
        }
        status = None
        port = url.port or (443 if url.scheme == "https" else 80)
        pool, tunnelling = self._pool, False
        secured = url.scheme == "https"
        if self._tunnels is not None and secured and self._by.proxy_for(url.host, port):
            pool, tunnelling = self._tunnels, True
        try:
            with (
                self._clock.until(ends),
                pool.stream(
                    method,
                    httpcore2.URL(
                        scheme=url.raw_scheme,
                        host=url.raw_host,
                        port=url.port,
                        target=url.raw_path,
                    ),
                    headers=[("host", url.netloc.decode("ascii")), *headers.items()],
                    content=body,
                    extensions={"timeout": timeouts},
                ) as response,
            ):
                status, told = response.status, httpx2.Headers(response.headers)
                most = cap(status, told) if callable(cap) else cap
                if most is None:
                    return Answer(status, told, b"")
                if told.get("content-encoding", "identity") != "identity":
                    return Problem("encoding", "a compressed answer", status)
                data = bytearray()
                for part in response.iter_stream():
                    data += part
                    if len(data) > most:
                        return Problem("long", f"an answer of more than {most} bytes", status)
                return Answer(status, told, bytes(data))
        except _Late:
            return Problem("late", "no whole answer in time", status)
        except ProxyRefused as error:
            return Problem("proxy", str(error))
        except ProxySilent:
            return Problem("connect", PROXY_SILENT)
        except (httpcore2.ConnectError, httpcore2.ConnectTimeout, httpcore2.PoolTimeout) as error:
            fault = reason_of(error, tunnelled=tunnelling)
            if fault is not None:
                return Problem("tls", fault)
            return Problem("connect", type(error).__name__)
        except (
            httpcore2.NetworkError,
            httpcore2.ProtocolError,
            httpcore2.TimeoutException,
        ) as error:
            return Problem("broken", type(error).__name__, status)


def with_query(url: str, query: Query) -> str:
    """A URL with further parameters; ``HttpClient.ask`` sees whether it is one."""
    if not query:
        return url
    return f"{url}{'&' if '?' in url else '?'}{urlencode(query, doseq=True)}"


def retry_after(headers: httpx2.Headers) -> float | None:
    """Seconds that a server asks to wait, where it says."""
    told = headers.get("retry-after", "")
    return float(told) if told.isdecimal() and len(told) < 6 else None


def parts_of(url: str) -> httpx2.URL | None:
    """The parts of an ``http`` or ``https`` URL that names a host and nothing secret.

    Returns:
        ``None`` for anything else: another scheme, no host, a query, a fragment, or a user before
        the host.
    """
    try:
        parts = httpx2.URL(url) if url.isascii() else httpx2.URL()
    except httpx2.InvalidURL:
        return None
    whole = parts.scheme in ("http", "https") and parts.host
    more = parts.query or parts.fragment or parts.userinfo
    return parts if whole and not more else None


def _passes(found: Answer | Problem, *, idempotent: bool) -> tuple[bool, float | None]:
    """Whether another try may help and does no harm, and how long the server asks to wait."""
    if isinstance(found, Answer):
        return idempotent and found.status in LATER, retry_after(found.headers)
    return found.kind == "connect" or (idempotent and found.kind == "broken"), None


class _Late(Exception):
    """The total time of an exchange is over."""


class _Deadline(threading.local):
    """Until when the exchange of this thread may wait for the network."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._ends = 0.0

    def until(self, ends: float) -> Self:
        """Set it, for the block that follows."""
        self._ends = ends
        return self

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        # Connections are closed in their own time.
        self._ends = self._monotonic() + 1.0

    def rest(self, timeout: float | None) -> float:
        """Seconds that one wait may take."""
        left = self._ends - self._monotonic()
        if left <= 0:
            raise _Late
        return left if timeout is None else min(timeout, left)

    def has_passed(self) -> bool:
        """Whether nothing is left."""
        return self._ends <= self._monotonic()


class _Backend(httpcore2.NetworkBackend):
    """Sockets whose every wait ends with the exchange."""

    def __init__(self, deadline: _Deadline) -> None:
        self._behind = httpcore2.SyncBackend()
        self._deadline = deadline

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Any = None,
    ) -> httpcore2.NetworkStream:
        # A name may have hundreds of addresses, and the library would wait as long for each.
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise httpcore2.ConnectError(str(error)) from None
        problem: Exception = httpcore2.ConnectError("no address")
        for *_, address in found:
            try:
                stream = self._behind.connect_tcp(
                    str(address[0]),
                    int(address[1]),
                    self._deadline.rest(timeout),
                    local_address,
                    socket_options,
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                problem = error
            else:
                return _Stream(stream, self._deadline)
        raise problem

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Any = None
    ) -> httpcore2.NetworkStream:
        # The library leaks its socket where no server listens; this one fails first, and is closed.
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe,
            _short(path) as reached,
        ):
            probe.settimeout(self._deadline.rest(timeout))
            try:
                probe.connect(reached)
            except OSError as error:
                raise httpcore2.ConnectError(str(error)) from None
            stream = self._behind.connect_unix_socket(
                reached, self._deadline.rest(timeout), socket_options
            )
        return _Stream(stream, self._deadline)


class _Tunnels(_Backend):
    """Sockets to servers through the proxy."""

    def __init__(self, deadline: _Deadline, by: Outbound) -> None:
        super().__init__(deadline)
        self._by = by
        self._context: ssl.SSLContext | None = None
        if by.proxy is not None and by.proxy.secured:
            # The authority of one server says nothing of a proxy, which may get a password.
            self._context = trusting(httpx2.create_ssl_context(trust_env=False), by.authorities)

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Any = None,
    ) -> httpcore2.NetworkStream:
        proxy = self._by.proxy
        if proxy is None:
            raise AssertionError("tunnels without a proxy")
        try:
            stream = super().connect_tcp(
                proxy.host, proxy.port, timeout, local_address, socket_options
            )
        except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
            raise ProxySilent from error
        return open_tunnel(stream, proxy, self._context, host, port, timeout)


@contextmanager
def _short(path: str) -> Iterator[str]:
    """A socket's path that the kernel takes: by its open folder where it is too long."""
    folder, name = os.path.split(path)
    if len(os.fsencode(path)) <= _MAX_SOCKET_PATH:
        yield path
        return
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise httpcore2.ConnectError(str(error)) from None
    try:
        yield f"/proc/self/fd/{opened}/{name}"
    finally:
        os.close(opened)


class _Stream(httpcore2.NetworkStream):
    """A connection whose every wait ends with the exchange."""

    def __init__(self, behind: httpcore2.NetworkStream, deadline: _Deadline) -> None:
        self._behind = behind
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            return self._behind.read(max_bytes, self._deadline.rest(timeout))
        except httpcore2.ReadTimeout:
            self._say_late()
            raise

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        try:
            # Piece by piece: a server that takes a byte now and then would restart the wait.
            for start in range(0, len(buffer), _PIECE_BYTES):
                piece = buffer[start : start + _PIECE_BYTES]
                self._behind.write(piece, self._deadline.rest(timeout))
        except httpcore2.WriteTimeout:
            self._say_late()
            raise

    def close(self) -> None:
        self._behind.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.NetworkStream:
        timeout = self._deadline.rest(timeout)
        if self._behind.get_extra_info("ssl_object") is not None:  # with the proxy
            return TlsInside(self, ssl_context, server_hostname, timeout)
        secured = self._behind.start_tls(ssl_context, server_hostname, timeout)
        return _Stream(secured, self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._behind.get_extra_info(info)

    def _say_late(self) -> None:
        if self._deadline.has_passed():
            raise _Late from None
