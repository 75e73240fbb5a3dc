"""The console's server: on loopback, until a signal."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from sealtrain.base.background import Quitters, in_background, serve_on
from sealtrain.base.connections import Caps, Connections
from sealtrain.errors import UsageError

if TYPE_CHECKING:
    from fastapi import FastAPI

LOOPBACK: Final = "127.0.0.1"
_CAPS: Final = Caps(connections=64, connections_per_address=64, body_bytes=1 << 20)
_HEAD_SECONDS: Final = 10.0
_STOP_SECONDS: Final = 3


def serve(app: FastAPI, port: int, ready: Callable[[str], object]) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        app: The application.
        port: Of loopback; 0 for any free one.
        ready: Called with the address to open, once it answers.

    Raises:
        UsageError: The port cannot be listened on.
    """
    asyncio.run(_serve(app, port, ready, None))


@contextmanager
def serving(app: FastAPI, port: int = 0) -> Iterator[str]:
    """Serve in a background thread while the block runs; yields the address."""
    with in_background("console", partial(_serve, app, port)) as url:
        yield url


async def _serve(
    app: FastAPI, port: int, ready: Callable[[str], object], quitters: Quitters | None
) -> None:
    import uvicorn

    from sealtrain.base.asgi import make_bounded_protocol

    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, port))
            listener.listen()
        except OSError as error:
            raise UsageError(
                f"cannot listen on {LOOPBACK}:{port}: {error.strerror or error}",
                check="--port",
                hint="choose another --port, or 0 for any free one",
            ) from error
        settings = uvicorn.Config(
            app,
            lifespan="off",
            ws="none",
            access_log=False,
            log_level="warning",
            log_config=None,
            server_header=False,
            proxy_headers=False,
            http=make_bounded_protocol(Connections(_CAPS), _HEAD_SECONDS),
            timeout_keep_alive=5,
            timeout_graceful_shutdown=_STOP_SECONDS,
        )
        # A passkey belongs to a name, never to an address: pages are opened as localhost.
        url = f"http://localhost:{listener.getsockname()[1]}"
        await serve_on(listener, settings, lambda: ready(url), quitters)
