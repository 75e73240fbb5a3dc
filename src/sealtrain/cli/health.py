"""The page of a guest's health: how far its run is, for the operator.

It shows the guest's status file and nothing else, from a process of its own: the supervisor, which
forks the run's process, keeps no thread.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.base.files import read_regular
from sealtrain.base.processes import end_with_parent
from sealtrain.base.wsgi import App, bind_server
from sealtrain.errors import DataInvalid

_MAX_BYTES: Final = 1 << 16
_PATH: Final = "/healthz"


@contextmanager
def health(place: str | None, status: Path) -> Iterator[None]:
    """Answer ``GET /healthz`` while the block runs.

    The answer is 200 with the status; 503 where the run failed; 404 for any other request.

    Args:
        place: ``HOST:PORT`` to listen at; nothing is served when ``None``.
        status: The status file.

    Raises:
        UsageError: The place cannot be listened at.
    """
    if place is None:
        yield
        return
    server = bind_server(_page(status), place, hint="name a free port as health in the run ticket")

    def serve() -> None:
        if end_with_parent():
            server.serve_forever()

    process = multiprocessing.get_context("fork").Process(target=serve, name="health", daemon=True)
    process.start()
    server.server_close()
    try:
        yield
    finally:
        process.terminate()
        process.join()


def _page(status: Path) -> App:
    def answer(request: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if (request["REQUEST_METHOD"], request["PATH_INFO"]) != ("GET", _PATH):
            start("404 Not Found", [("content-length", "0")])
            return []
        try:
            body = read_regular(status, _MAX_BYTES)
            failed = parse_json(body)["state"] == "failed"
        except (DataInvalid, KeyError, TypeError):
            body, failed = canonical_json({"state": "waiting"}), False
        start(
            "503 Service Unavailable" if failed else "200 OK",
            [("content-type", "application/json"), ("content-length", str(len(body)))],
        )
        return [body]

    return answer
