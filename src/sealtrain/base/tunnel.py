"""A tunnel through a proxy (RFC 9110 §9.3.6), and why TLS with a server failed, in words."""

from __future__ import annotations

import ssl
from typing import Final

import httpcore

from sealtrain.base.outbound import ProxyServer

__all__ = [
    "EARLY",
    "EXPIRED",
    "FAULTS",
    "FOREIGN",
    "INTERCEPTED",
    "NO_TLS",
    "SELF_SIGNED",
    "WRONG_NAME",
    "ProxyRefused",
    "ProxySilent",
    "reason_of",
    "remedy_of",
    "tunnelled",
]

_MAX_HEAD_BYTES: Final = 16 << 10
_HEAD_ENDS: Final = b"\r\n\r\n"
EXPIRED: Final = "its certificate has expired"
EARLY: Final = "its certificate is not valid yet"
SELF_SIGNED: Final = "its certificate is signed by itself"
FOREIGN: Final = "its certificate is of an authority that is not trusted here"
WRONG_NAME: Final = "its certificate is for another name"
INTERCEPTED: Final = (
    "its certificate is of an authority that is not trusted here, or the proxy shows one of its own"
)
NO_TLS: Final = "it speaks no TLS"
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


class ProxySilent(httpcore.ConnectError):
    """No connection to the proxy was made."""


def remedy_of(kind: str, reason: str) -> str | None:
    """What to do about a failure of TLS or of a proxy; ``None`` for another.

    Args:
        kind: As of ``base.http.Problem``.
        reason: As ``reason_of`` gives it.
    """
    if kind == "proxy":
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


def tunnelled(
    stream: httpcore.NetworkStream,
    proxy: ProxyServer,
    context: ssl.SSLContext,
    host: str,
    port: int,
    timeout: float | None,
) -> httpcore.NetworkStream:
    """A stream to a server, through a proxy that a stream leads to.

    Args:
        stream: To the proxy; closed where there is no tunnel.
        proxy: How it is spoken to.
        context: Trust in its certificate, where it has one.
        host: Of the server.
        port: Of the server.
        timeout: Seconds for each wait.

    Raises:
        ProxyRefused: It answers with something else than a tunnel, or shows a certificate that is
            not one to accept.
    """
    try:
        if proxy.secured:
            stream = _secured(stream, proxy, context, timeout)
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


def _secured(
    stream: httpcore.NetworkStream,
    proxy: ProxyServer,
    context: ssl.SSLContext,
    timeout: float | None,
) -> httpcore.NetworkStream:
    try:
        return stream.start_tls(context, proxy.host, timeout)
    except httpcore.ConnectError as error:
        raise ProxyRefused(reason_of(error, tunnelled=False) or "its connection broke") from None


def _head(stream: httpcore.NetworkStream, timeout: float | None) -> bytes:
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


def _require_tunnel(head: bytes) -> None:
    words = head.split(b"\r\n", 1)[0].split(b" ")
    status = words[1] if len(words) > 1 and words[0] in (b"HTTP/1.1", b"HTTP/1.0") else b""
    if len(status) != 3 or not status.isdigit():
        raise ProxyRefused("it speaks no HTTP")
    if status == b"407":
        raise ProxyRefused("HTTP 407: it wants a user and a password")
    if not status.startswith(b"2"):
        raise ProxyRefused(f"HTTP {status.decode('ascii')}")
