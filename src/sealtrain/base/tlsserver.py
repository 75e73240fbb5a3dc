"""TLS in a server of our own: a certificate that is renewed under it, and bounded handshakes.

1. Certificate and key are read anew when their files change; a pair that cannot be used leaves the
   one before in place, so a renewal that is half written refuses no caller.
2. A connection has its place in the server's table (``base.connections``) from its first byte: a
   caller that does not finish its handshake in time is cut, and gives way to others before.
3. What arrives with the end of a handshake is kept for the protocol inside, and is bounded.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from sealtrain.base.connections import Connection, Connections
from sealtrain.errors import ConfigError, KeyFileInvalid

_MOST_BEFORE: Final = 256 << 10
_Stamp = tuple[tuple[int, int, int, int], ...]


class ServerCertificate:
    """Certificate chain and private key of a server, as their files have them. Thread-safe."""

    def __init__(
        self,
        certificate: Path,
        key: Path,
        *,
        on_renewal: Callable[[str | None], None] = lambda _: None,
    ) -> None:
        """Read them.

        Args:
            certificate: PEM of the chain, the server's own certificate first.
            key: PEM of its private key, which no other user of the machine may read.
            on_renewal: Called after a later reading: with ``None``, or with why the new files
                cannot be used.

        Raises:
            ConfigError: They cannot be used together.
            KeyFileInvalid: Other users may read the key.
        """
        self._files = (certificate, key)
        self._on_renewal = on_renewal
        self._lock = threading.Lock()
        self._stamp = self._stamp_files()
        self._context = self._load()

    def context(self) -> ssl.SSLContext:
        """For the next connection."""
        with self._lock:
            stamp = self._stamp_files()
            if stamp != self._stamp and stamp:
                self._stamp = stamp
                try:
                    self._context = self._load()
                except ConfigError as error:
                    self._on_renewal(error.message)
                else:
                    self._on_renewal(None)
            return self._context

    def _stamp_files(self) -> _Stamp:
        try:
            found = [os.stat(file) for file in self._files]  # noqa: PTH116  # follows links
        except OSError:
            return ()
        return tuple(
            (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns) for status in found
        )

    def _load(self) -> ssl.SSLContext:
        certificate, key = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            if os.stat(key).st_mode & 0o006:  # noqa: PTH116
                raise KeyFileInvalid(
                    "every user of this machine may read or write the key of the TLS server",
                    check="certificate key",
                    expected="a file of mode 0600, or 0640 for a group of its own",
                    hint="chmod o= KEY",
                )
            context.load_cert_chain(certificate, key, password=lambda: b"")
        except (OSError, ValueError) as error:  # ``ssl.SSLError`` is an ``OSError``
            reason = getattr(error, "reason", None) or type(error).__name__
            raise ConfigError(
                "the certificate and the key of the TLS server cannot be used",
                check="certificate",
                got=str(reason)[:80],
                expected="PEM of a chain, and of the key that belongs to its first certificate",
                hint="a key with a passphrase needs a copy without one, of mode 0600",
            ) from None
        return context


def make_tls_protocol(
    certificate: ServerCertificate,
    table: Connections,
    handshake_seconds: float,
    protocol: Callable[..., asyncio.Protocol],
) -> Callable[..., asyncio.Protocol]:
    """A factory of protocols that speak TLS first, for ``uvicorn.Config``.

    Args:
        table: Of the server's connections.
        handshake_seconds: In which a handshake ends.
        protocol: Makes the protocol inside.
    """

    def make(**given: Any) -> asyncio.Protocol:
        return _Handshake(certificate, table, handshake_seconds, lambda: protocol(**given))

    return make


class _EarlyBytes(asyncio.Protocol):
    """Keeps what arrives inside TLS before the protocol inside is told of its connection."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.ended = False

    def data_received(self, data: bytes) -> None:
        self.data += data

    def eof_received(self) -> bool:
        self.ended = True
        return False


class _Handshake(asyncio.Protocol):
    """A connection until its TLS handshake is over."""

    def __init__(
        self,
        certificate: ServerCertificate,
        table: Connections,
        seconds: float,
        inside: Callable[[], asyncio.Protocol],
    ) -> None:
        self._certificate = certificate
        self._table = table
        self._seconds = seconds
        self._inside = inside
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a place, or cut the connection; then shake hands."""
        peer = transport.get_extra_info("peername")
        place = self._table.open(str(peer[0]) if peer else "", transport.abort)
        if place is None:
            transport.abort()
            return
        transport.pause_reading()
        self._task = asyncio.get_running_loop().create_task(self._begin(transport, place))

    async def _begin(self, transport: asyncio.Transport, place: Connection) -> None:
        before = _EarlyBytes()
        try:
            loop = asyncio.get_running_loop()
            inner = await loop.start_tls(
                transport,
                before,
                self._certificate.context(),
                server_side=True,
                ssl_handshake_timeout=self._seconds,
            )
        except (OSError, ConnectionError):  # ``ssl.SSLError`` and time-outs are
            transport.abort()
            return
        finally:
            self._table.close(place)
        if inner is None or inner.is_closing() or len(before.data) > _MOST_BEFORE:
            transport.abort()
            return
        protocol = self._inside()
        inner.set_protocol(protocol)
        protocol.connection_made(inner)
        if before.data:
            protocol.data_received(bytes(before.data))
        if before.ended:
            inner.close()
