"""Bodies in, bounded in size and time; messages out, never cached."""

from __future__ import annotations

import asyncio
from typing import Final

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from starlette.requests import ClientDisconnect

from sealtrain.base.canonical import canonical_json
from sealtrain.base.models import StrictModel
from sealtrain.errors import LimitExceeded, SealtrainError

__all__ = ["NO_STORE", "answer", "error_answer", "internal_answer", "read_body"]

NO_STORE: Final = {"cache-control": "no-store"}
"""Header of every answer."""


async def read_body(request: Request, max_bytes: int, seconds: float) -> bytes:
    """The request's body.

    Args:
        request: Its headers were read.
        max_bytes: Longest body.
        seconds: Until all of it must be here.

    Raises:
        LimitExceeded: It is longer, or comes too slowly, or its sender left.
    """
    announced = request.headers.get("content-length", "0")
    data = bytearray()
    if announced.isdecimal() and int(announced) <= max_bytes:
        try:
            async with asyncio.timeout(seconds):
                async for part in request.stream():
                    data += part
                    if len(data) > max_bytes:
                        break
                else:
                    return bytes(data)
        except (TimeoutError, ClientDisconnect) as error:
            raise LimitExceeded(
                "the request did not arrive in time",
                check="body time",
                expected=f"within {seconds:g} s",
            ) from error
    raise LimitExceeded(
        "the request is too large", check="body size", expected=f"at most {max_bytes} bytes"
    )


def answer(message: StrictModel) -> Response:
    """A message as canonical JSON."""
    return Response(
        canonical_json(message.to_dict()), media_type="application/json", headers=NO_STORE
    )


def error_answer(error: SealtrainError, status: int) -> Response:
    """A refusal."""
    return JSONResponse({"error": error.to_dict()}, status_code=status, headers=NO_STORE)


def internal_answer(status: int = 500) -> Response:
    """A failure of ours; says nothing about it."""
    body = {"error": {"code": "internal", "message": "the broker failed"}}
    return JSONResponse(body, status_code=status, headers=NO_STORE)
