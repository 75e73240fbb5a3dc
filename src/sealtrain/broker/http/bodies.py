"""Bodies in, bounded in size and time; messages out, never cached."""

from __future__ import annotations

import asyncio
from typing import Final

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from starlette.requests import ClientDisconnect

from sealtrain.base.connections import Connection
from sealtrain.base.models import StrictModel
from sealtrain.broker.errors import RequestLate, RequestTooLarge
from sealtrain.errors import SealtrainError

NO_STORE: Final = {"cache-control": "no-store"}
"""Header of every answer."""
_OUTAGE: Final = "the broker cannot answer this now; its log states why"
_RETRY_SECONDS: Final = 5


async def read_body(request: Request, max_bytes: int, seconds: float) -> bytes:
    """The request's body.

    Args:
        request: Its headers were read and its caller was admitted.
        max_bytes: Longest body.
        seconds: Until all of it must be here.

    Raises:
        RequestTooLarge: It is longer.
        RequestLate: It comes too slowly, or its sender left.
        TooManyRequests: Unfinished bodies fill their share of memory.
    """
    announced = request.headers.get("content-length", "0")
    data = bytearray()
    connection = connection_of(request)
    if announced.isdecimal() and int(announced) <= max_bytes:
        try:
            async with asyncio.timeout(seconds):
                async for part in request.stream():
                    data += part
                    if len(data) > max_bytes:
                        break
                    if connection is not None:
                        connection.hold(len(data))
                else:
                    return bytes(data)
        except (TimeoutError, ClientDisconnect) as error:
            raise RequestLate(
                "the request's body did not arrive in time",
                check="body time",
                expected=f"within {seconds:g} s",
            ) from error
    raise RequestTooLarge(
        "the request's body is too large", check="body size", expected=f"at most {max_bytes} bytes"
    )


def connection_of(request: Request) -> Connection | None:
    """The connection that a request came on; ``None`` where no server of ours took it."""
    found = request.scope.get("state", {}).get("connection")
    return found if isinstance(found, Connection) else None


def answer(message: StrictModel) -> Response:
    """A message as canonical JSON."""
    return raw_answer(message.to_bytes())


def raw_answer(data: bytes) -> Response:
    """Canonical JSON that is there already."""
    return Response(data, media_type="application/json", headers=NO_STORE)


def error_answer(error: SealtrainError) -> Response:
    """An error as JSON, with the status of its class; an outage shows its code and nothing else."""
    status = error.http_status
    told = error.to_dict() if status < 500 else {"code": error.code, "message": _OUTAGE}
    answered = JSONResponse({"error": told}, status_code=status, headers=NO_STORE)
    if error.retry == "again":
        answered.headers["retry-after"] = str(_RETRY_SECONDS)
    if status == 401:
        answered.headers["www-authenticate"] = "Bearer"
    return answered


def internal_answer() -> Response:
    """The answer to a fault of the broker, without a reason."""
    body = {"error": {"code": "internal", "message": "the broker failed"}}
    return JSONResponse(body, status_code=500, headers=NO_STORE)
