"""The paths that dstack's KMS asks (spec/boot-authority.md)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fastapi import FastAPI, Request
from fastapi.responses import Response

from sealtrain.broker.http.admission import Admission, caller_of
from sealtrain.broker.http.bodies import answer, read_body
from sealtrain.broker.http.lanes import Lanes
from sealtrain.broker.service.bootauth import BootAuthority
from sealtrain.release.boot import MAX_BOOT_BYTES, BootAnswer, BootRole, BootService


def add_boot_routes(
    app: FastAPI, authority: Callable[[], BootAuthority], admission: Admission, lanes: Lanes
) -> None:
    """Add the three paths that dstack's KMS asks.

    Args:
        app: The application.
        authority: The boot authority that decides.
        admission: Counts the callers.
        lanes: Threads to decide in.
    """

    @app.get("/", response_model=BootService, summary="Who answers dstack's KMS")
    async def service() -> Response:
        return answer(authority().service())

    def add(role: BootRole, summary: str) -> None:
        async def endpoint(request: Request) -> Response:
            admission.stranger(request)
            body = await read_body(request, MAX_BOOT_BYTES, authority().body_seconds)
            told, refusal = await lanes.guests.run(
                caller_of(request), partial(authority().answer, role, body)
            )
            answered = answer(told)
            if refusal is not None:
                request.state.error = type(refusal)
                answered.status_code = 400 if refusal.http_status == 400 else 200
            return answered

        app.add_api_route(
            f"/bootAuth/{role}",
            endpoint,
            methods=["POST"],
            response_model=BootAnswer,
            responses={400: {"model": BootAnswer, "description": "Malformed; boots nothing"}},
            summary=summary,
            openapi_extra={"x-body": "BootInfo"},
        )

    add("app", "May this dstack guest get its keys")
    add("kms", "May this dstack KMS run or get root keys")
