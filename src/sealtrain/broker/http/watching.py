"""Surrounds every request: gives it an id and the date, bounds its head, logs and counts it."""

from __future__ import annotations

import time
from collections.abc import Callable
from email.utils import formatdate
from functools import lru_cache
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sealtrain.base.secret import Random
from sealtrain.broker.errors import HeadTooLarge
from sealtrain.broker.http.bodies import error_answer
from sealtrain.broker.http.metrics import Metrics
from sealtrain.broker.logs import request_line
from sealtrain.errors import Refused, SealtrainError

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_MAX_HEAD: Final = 16 << 10


class WatchMiddleware:
    """Outermost part of the application.

    Args:
        app: The application inside.
        now: The broker's time.
        metrics: Counts them.
        random: Makes request ids.
        timer: Seconds since some moment.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        now: Callable[[], int],
        metrics: Metrics,
        random: Random,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._app = app
        self._now = now
        self._metrics = metrics
        self._random = random
        self._timer = timer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request and count it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = self._timer(), 0
        request_id = self._random(8).hex()

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"x-request-id", request_id.encode()),
                    # By the broker's clock, not the socket's: clients sign by it.
                    (b"date", _http_date(self._now())),
                ]
            await send(message)

        scope.setdefault("state", {})
        try:
            await self._answer_admitted(scope, receive, sending)
        finally:
            self._account(scope, status, request_id, self._timer() - began)

    async def _answer_admitted(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            _require_small_head(scope)
        except HeadTooLarge as error:
            scope["state"]["error"] = type(error)
            await error_answer(error)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _account(self, scope: Scope, status: int, request_id: str, seconds: float) -> None:
        route: Any = scope.get("route")
        error: type[SealtrainError] | None = scope["state"].get("error")
        code = None if error is None else error.code
        told: dict[str, Any] = {
            "method": scope["method"] if scope["method"] in _METHODS else "other",
            # A path without a route is not repeated: the caller may have put anything into it.
            "path": getattr(route, "path", None) or "unknown",
            "status": status,
            "code": "internal" if status == 500 else code,
            "seconds": seconds,
        }
        request_line(request_id=request_id, **told)
        refused = status < 500 and error is not None and issubclass(error, Refused)
        self._metrics.count(**told, refused=refused)


@lru_cache(maxsize=4)
def _http_date(now: int) -> bytes:
    return formatdate(now, usegmt=True).encode()


def _require_small_head(scope: Scope) -> None:
    """Hold path, query and headers to their cap.

    Uvicorn caps only heads that arrive in parts; a head that arrives at once is not checked there.

    Raises:
        HeadTooLarge: They are longer.
    """
    size = len(scope["raw_path"]) + len(scope["query_string"])
    size += sum(len(name) + len(value) for name, value in scope["headers"])
    if size > _MAX_HEAD:
        raise HeadTooLarge(
            "the request's head is too large",
            check="head size",
            got=f"{size} bytes",
            expected=f"at most {_MAX_HEAD} bytes",
        )
