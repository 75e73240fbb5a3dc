"""Small HTTP servers on the standard library's WSGI server; no request is logged."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from sealtrain.base.hostport import host_and_port
from sealtrain.errors import UsageError

__all__ = ["App", "bound"]

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
"""A WSGI application (PEP 3333)."""

_REQUEST_SECONDS: Final = 20


def bound(app: App, listen: str, *, hint: str | None = None) -> WSGIServer:
    """A server of ``app``, bound; it serves with ``serve_forever``, each request in a thread.

    Args:
        app: Answers.
        listen: ``HOST:PORT``, port 0 for any free one.
        hint: What to do where the place is taken.

    Raises:
        UsageError: The place cannot be listened at.
    """
    host, port = host_and_port(listen)
    try:
        return make_server(host, port, app, _Server, _Request)
    except OSError as error:
        raise UsageError(
            "cannot listen", check="listen", got=f"{listen}: {error.strerror}", hint=hint
        ) from None


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Request(WSGIRequestHandler):
    timeout = _REQUEST_SECONDS

    def log_message(self, *_: Any) -> None:
        """Log no request."""
