"""A tunnel through a proxy (RFC 9110 §9.3.6), and why TLS with a server failed, in words."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

import httpcore2

from sealtrain.base.outbound import ProxyServer

_MAX_HEAD_BYTES: Final = 16 << 10
_HEAD_ENDS: Final = b"\r\n\r\n"
_RECORD_BYTES: Final = 16 << 10
Result = TypeVar("Result")
EXPIRED: Final = "its certificate has expired"
EARLY: Final = "its certificate is not valid yet"
SELF_SIGNED: Final = "its certificate is signed by itself"
FOREIGN: Final = "its certificate is of an authority that is not trusted here"
WRONG_NAME: Final = "its certificate is for another name"
INTERCEPTED: Final = (
    "its certificate is of an authority that is not trusted here, or the proxy shows one of its own"
)
NO_TLS: Final = "it speaks no TLS"
PROXY_SILENT: Final = "the proxy does not answer"
_ALERT: Final = "TLS failed"

FAULTS: Final = {
    9: EARLY,
    10: EXPIRED,
    18: SELF_SIGNED,
    19: FOREIGN,
    20: FOREIGN,
    21: FOREIGN,
    62: WRONG_NAME,
    64: WRONG_NAME,
}
"""What OpenSSL's verification codes (``X509_V_ERR_…``) say of a server."""


_REMEDIES: Final = {
    EXPIRED: "have the server's operator renew the certificate; compare this machine's clock first",
    EARLY: "compare this machine's clock; the certificate counts from a later time on",
    WRONG_NAME: "write the URL with the name that the certificate has",
    NO_TLS: "write the URL with http://, if this server is meant to speak no TLS",
}
_NAME_AUTHORITY: Final = (
    "name the PEM file of its authority: ca_file in sealtrain.toml, SEALTRAIN_CA_FILE, or "
    "sealtrain broker pin --ca-file for one broker"
)
_NAME_PROXY: Final = (
    "compare proxy in sealtrain.toml, SEALTRAIN_PROXY, HTTPS_PROXY and NO_PROXY with what the "
    "network's operator says"
)


class ProxyRefused(Exception):
    """The proxy makes no tunnel; its text says which status it answered, and no address."""


class ProxySilent(httpcore2.ConnectError):
    """No connection to the proxy was made."""


def remedy_of(kind: str, reason: str) -> str | None:
    """What to do about a failure of TLS or of a proxy; ``None`` for another.

    Args:
        kind: As of ``base.http.Problem``.
        reason: As ``reason_of`` gives it.
    """
    if kind == "proxy" or reason == PROXY_SILENT:
        return _NAME_PROXY
    if kind != "tls":
        return None
    unknown = _NAME_AUTHORITY if reason in (FOREIGN, SELF_SIGNED, INTERCEPTED) else None
    return _REMEDIES.get(reason, unknown)


def reason_of(error: BaseException, *, tunnelled: bool) -> str | None:
    """Why TLS with a server failed, in words; ``None`` for a failure of the network.

    Args:
        error: As the HTTP library raises it.
        tunnelled: The server was reached through a proxy, which could show another certificate.
    """
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, ssl.SSLError):
        seen = seen.__cause__ or seen.__context__
    if seen is None or isinstance(seen, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return None
    if isinstance(seen, ssl.SSLCertVerificationError):
        fault = FAULTS.get(seen.verify_code, "its certificate cannot be verified")
        return INTERCEPTED if tunnelled and fault in (FOREIGN, SELF_SIGNED) else fault
    if seen.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"):
        return NO_TLS
    return f"{_ALERT}: {(seen.reason or type(seen).__name__)[:60]}"


def open_tunnel(
    stream: httpcore2.NetworkStream,
    proxy: ProxyServer,
    context: ssl.SSLContext | None,
    host: str,
    port: int,
    timeout: float | None,
) -> httpcore2.NetworkStream:
    """A stream to a server, through a proxy that a stream leads to.

    Args:
        stream: To the proxy; closed where there is no tunnel.
        proxy: How it is spoken to.
        context: Trust in its certificate, where it is spoken to over TLS.
        host: Of the server.
        port: Of the server.
        timeout: Seconds for each wait.

    Raises:
        ProxyRefused: It answers with something else than a tunnel, or shows a certificate that is
            not one to accept.
    """
    try:
        if context is not None:
            stream = _start_tls(stream, proxy, context, timeout)
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
        if proxy.authorization is not None:
            lines.append(f"Proxy-Authorization: {proxy.authorization}")
        stream.write("\r\n".join((*lines, "", "")).encode("ascii"), timeout)
        _require_tunnel(_head(stream, timeout))
    except BaseException:
        stream.close()
        raise
    return stream


def _start_tls(
    stream: httpcore2.NetworkStream,
    proxy: ProxyServer,
    context: ssl.SSLContext,
    timeout: float | None,
) -> httpcore2.NetworkStream:
    try:
        return stream.start_tls(context, proxy.host, timeout)
    except httpcore2.ConnectError as error:
        raise ProxyRefused(reason_of(error, tunnelled=False) or "its connection broke") from None


def _head(stream: httpcore2.NetworkStream, timeout: float | None) -> bytes:
    """The head of the proxy's answer; a server behind it does not speak before its client does."""
    head = bytearray()
    while _HEAD_ENDS not in head:
        more = stream.read(_MAX_HEAD_BYTES, timeout)
        head += more
        if not more or len(head) > _MAX_HEAD_BYTES:
            raise ProxyRefused("it sent no whole answer")
    if not head.endswith(_HEAD_ENDS) and head.startswith((b"HTTP/1.1 2", b"HTTP/1.0 2")):
        raise ProxyRefused("it sent more than a tunnel")
    return bytes(head)


def refuse_status(status: int) -> str:
    """What a proxy's answer means that makes no tunnel."""
    return "HTTP 407: it wants a user and a password" if status == 407 else f"HTTP {status:03}"


def _require_tunnel(head: bytes) -> None:
    words = head.split(b"\r\n", 1)[0].split(b" ")
    status = words[1] if len(words) > 1 and words[0] in (b"HTTP/1.1", b"HTTP/1.0") else b""
    if len(status) != 3 or not status.isdigit():
        raise ProxyRefused("it speaks no HTTP")
    if not status.startswith(b"2"):
        raise ProxyRefused(refuse_status(int(status)))


class TlsInside(httpcore2.NetworkStream):
    """TLS with a server inside of TLS with a proxy: each wait is one of the stream below.

    The library's own waits its whole time anew for each byte of a record that trickles in.
    """

    def __init__(
        self,
        below: httpcore2.NetworkStream,
        context: ssl.SSLContext,
        host: str | None,
        timeout: float | None,
    ) -> None:
        """Shake hands.

        Args:
            below: The stream through the tunnel; closed where there is no handshake.
            context: Trust in the server's certificate.
            host: Name that the certificate must have.
            timeout: Seconds for each wait.

        Raises:
            ConnectError, ConnectTimeout: Of ``httpcore2``: no handshake.
        """
        self._below = below
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._inside = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        try:
            self._perform(self._inside.do_handshake, timeout)
        except (ssl.SSLError, httpcore2.NetworkError) as error:
            below.close()
            raise httpcore2.ConnectError(str(error)) from error
        except httpcore2.TimeoutException as error:
            below.close()
            raise httpcore2.ConnectTimeout(str(error)) from error
        except BaseException:
            below.close()
            raise

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """At most so many bytes; none at the end."""
        try:
            return self._perform(partial(self._inside.read, max_bytes), timeout)
        except ssl.SSLError as error:
            raise httpcore2.ReadError(str(error)) from error

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send all bytes."""
        try:
            while buffer:
                buffer = buffer[self._perform(partial(self._inside.write, buffer), timeout) :]
        except ssl.SSLError as error:
            raise httpcore2.WriteError(str(error)) from error

    def close(self) -> None:
        """Close the connection to the proxy."""
        self._below.close()

    def get_extra_info(self, info: str) -> Any:
        """What the library asks of a connection."""
        return self._inside if info == "ssl_object" else self._below.get_extra_info(info)

    def _perform(self, act: Callable[[], Result], timeout: float | None) -> Result:
        while True:
            try:
                result = act()
            except ssl.SSLWantReadError:
                self._flush(timeout)
                data = self._below.read(_RECORD_BYTES, timeout)
                if data:
                    self._incoming.write(data)
                else:
                    self._incoming.write_eof()
            else:
                self._flush(timeout)
                return result

    def _flush(self, timeout: float | None) -> None:
        if self._outgoing.pending:
            self._below.write(self._outgoing.read(), timeout)
