"""The socket of a broker: connections bounded in number, in time and per address.

1. Heads, answers and places of connections are bounded by ``base.asgi``; the body has its own limit
   (``http.bodies``).
2. With a certificate it speaks TLS, by handshakes bounded in the same way (``base.tlsserver``).
3. On a signal, the server stops accepting connections and finishes the requests it began.
"""

from __future__ import annotations

import logging
import socket as sockets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import uvicorn
from fastapi import FastAPI

from sealtrain.base.asgi import READ_SECONDS, make_bounded_protocol
from sealtrain.base.background import Quitters, in_background, serve_on
from sealtrain.base.connections import Connections
from sealtrain.base.tlsserver import ServerCertificate, make_tls_protocol
from sealtrain.broker.config import BrokerConfig
from sealtrain.errors import UsageError

__all__ = ["READ_SECONDS", "STOP_SECONDS", "serve_app", "serving"]

STOP_SECONDS: Final = 10
_BACKLOG: Final = 1024


async def serve_app(
    app: FastAPI,
    config: BrokerConfig,
    ready: Callable[[str], None] | None,
    quitters: Quitters | None,
    *,
    stop_seconds: int = STOP_SECONDS,
) -> None:
    """Serve ``app`` until told to stop.

    Args:
        app: The application.
        config: Where to listen, and the caps.
        ready: Called with the base URL once it answers.
        quitters: Gets a function that stops it from another thread; ``None`` to stop on SIGTERM and
            SIGINT instead.
        stop_seconds: How long requests may still take once it stops.

    Raises:
        UsageError: The address cannot be listened on.
    """
    listener = _listen(config)
    host, port = listener.getsockname()[:2]
    scheme = "http" if config.certificate is None else "https"
    url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    table = Connections(config.limits, config.proxies)
    settings = uvicorn.Config(
        app,
        lifespan="off",
        ws="none",
        access_log=False,
        log_level="warning",
        log_config=None,
        server_header=False,
        date_header=False,  # `broker.http.watching` tells the broker's time
        proxy_headers=bool(config.proxies),
        forwarded_allow_ips=list(config.proxies),
        http=_protocol(config, table),
        backlog=_BACKLOG,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=stop_seconds,
    )
    with listener:
        await serve_on(listener, settings, lambda: ready and ready(url), quitters)


def _protocol(config: BrokerConfig, table: Connections) -> Any:
    """What answers a connection: HTTP, inside TLS where there is a certificate."""
    protocol = make_bounded_protocol(table, config.limits.head_seconds)
    if config.certificate is None or config.certificate_key is None:
        return protocol
    certificate = ServerCertificate(
        config.certificate, config.certificate_key, on_renewal=_log_renewal
    )
    return make_tls_protocol(certificate, table, config.limits.head_seconds, protocol)


def _log_renewal(problem: str | None) -> None:
    log = logging.getLogger("sealtrain.broker")
    if problem is None:
        log.info("certificate renewed")
    else:
        log.error("certificate kept: %s", problem)


@contextmanager
def serving(
    app: FastAPI, config: BrokerConfig, *, stop_seconds: int = STOP_SECONDS
) -> Iterator[str]:
    """Serve ``app`` in a background thread while the block runs; yields the base URL.

    Args:
        app: What answers.
        config: Where to listen, and the caps.
        stop_seconds: How long requests may still take once the block ends.

    Raises:
        UsageError: The address cannot be listened on.
    """
    with in_background("broker", partial(serve_app, app, config, stop_seconds=stop_seconds)) as url:
        yield url


def _listen(config: BrokerConfig) -> sockets.socket:
    family = sockets.AF_INET6 if ":" in config.host else sockets.AF_INET
    # Named, because asyncio switches Nagle's delay off only for sockets that name their protocol.
    listener = sockets.socket(family, sockets.SOCK_STREAM, sockets.IPPROTO_TCP)
    try:
        listener.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
        listener.bind((config.host, config.port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise UsageError(
            f"cannot listen on {config.host}:{config.port}: {error.strerror or error}",
            check="address",
            hint="choose another --port, or 0 for any free one",
        ) from error
    return listener
